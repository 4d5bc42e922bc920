"""QUANTIZED_TRANSPOSE_CONV: what TRANSPOSE_CONV becomes for bytes, with sums in int32."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.ops.base import register
from litegpu.ops.common.traits import Trait
from litegpu.ops.quantized_conv import QuantizedConv, QuantizedConvSpec

QUANTIZED_TRANSPOSE_CONV = "QUANTIZED_TRANSPOSE_CONV"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTransposeSpec(QuantizedConvSpec):
    """The way back of a convolution of bytes: `window` goes over `dst` and makes `src`."""


@register
class QuantizedTransposeConv(QuantizedConv):
    """A transposed convolution of quantized values, of one group; only exact ones make it.

    The window of its attributes is that of its spec.
    """

    name = QUANTIZED_TRANSPOSE_CONV
    traits = Trait.SUMS_PRODUCTS
    spec = QuantizedTransposeSpec
