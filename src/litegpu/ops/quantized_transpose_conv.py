"""QUANTIZED_TRANSPOSE_CONV: what TRANSPOSE_CONV becomes for bytes, with sums in int32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen.storage import Shape4
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.quantized_conv import QuantizedConvSpec, bias_sums, flip_of, signed_weights
from litegpu.ops.traits import Trait
from litegpu.ops.window import Window

QUANTIZED_TRANSPOSE_CONV = "QUANTIZED_TRANSPOSE_CONV"


@dataclass(frozen=True, slots=True)
class QuantizedTransposeAttributes:
    """The window that makes the input of the result, as one of QuantizedConvAttributes."""

    window: Window
    weights: int
    bias: int
    shape: Shape4
    input_zero: int
    weight_zero: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTransposeSpec(QuantizedConvSpec):
    """The way back of a convolution of bytes: `window` goes over `dst` and makes `src`."""


@register
class QuantizedTransposeConv(InternalOp):
    """A transposed convolution of quantized values; only exact ones make it."""

    name = QUANTIZED_TRANSPOSE_CONV
    traits = Trait.SUMS_PRODUCTS

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[QuantizedTransposeSpec]:
        attributes: QuantizedTransposeAttributes = node.attributes
        flip = flip_of(ctx.value(node.inputs[0]))
        weights, weight_flip = signed_weights(ctx.value(attributes.weights))
        return (
            QuantizedTransposeSpec(
                ctx.storage(node.inputs[0]),
                ctx.storage(node.outputs[0]),
                attributes.window,
                weights,
                bias_sums(attributes.bias, attributes.shape[0], ctx),
                1,
                attributes.input_zero - flip,
                attributes.weight_zero - weight_flip,
                bool(flip),
            ),
        )
