"""QUANTIZED_TRANSPOSE_CONV: transposed convolutions of bytes, with sums in int32."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.ops.base import register
from litegpu.ops.common.traits import Trait
from litegpu.ops.quantized_conv import QuantizedConv, QuantizedConvSpec

QUANTIZED_TRANSPOSE_CONV = "QUANTIZED_TRANSPOSE_CONV"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTransposeSpec(QuantizedConvSpec):
    """A transposed convolution of bytes: `window` moves over `dst`, one step per `src` pixel."""


@register
class QuantizedTransposeConv(QuantizedConv):
    """A transposed convolution of quantized values with one group; created only by exact ops.

    `window` of its attributes is the window of its spec.
    """

    name = QUANTIZED_TRANSPOSE_CONV
    traits = Trait.SUMS_PRODUCTS
    spec = QuantizedTransposeSpec
