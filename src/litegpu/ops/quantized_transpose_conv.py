"""QUANTIZED_TRANSPOSE_CONV: transposed convolutions of 8-bit tensors with int32 sums."""

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
    """A transposed convolution of quantized values with one group, created by exact ops.

    The attribute `window` becomes `window` of the spec.
    """

    name = QUANTIZED_TRANSPOSE_CONV
    traits = Trait.SUMS_PRODUCTS
    spec = QuantizedTransposeSpec
