"""QUANTIZED_DEPTHWISE: depthwise convolutions of 8-bit tensors with int32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.graph import ABSENT, Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.depthwise_spec import DepthwiseSpec, Integers
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Window

QUANTIZED_DEPTHWISE = "QUANTIZED_DEPTHWISE"


@dataclass(frozen=True, slots=True)
class QuantizedDepthwiseAttributes:
    """The window, and value ids of constant weights [1, H, W, O] and bias [O] (or ABSENT).

    The zero points of the input and the weights are stored integers.
    """

    window: Window
    weights: int
    bias: int
    input_zero: int
    weight_zero: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias)


@register
class QuantizedDepthwise(InternalOp):
    """A depthwise convolution of quantized values; only exact ops create this op."""

    name = QUANTIZED_DEPTHWISE
    traits = Trait.SUMS_PRODUCTS | Trait.WINDOWED

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[DepthwiseSpec]:
        attributes: QuantizedDepthwiseAttributes = node.attributes
        stored = np.asarray(ctx.value(attributes.weights).data)[0]
        bias = None
        if attributes.bias != ABSENT:
            bias = np.asarray(ctx.value(attributes.bias).data, np.int32).ravel()
        return (
            DepthwiseSpec(
                ctx.storage(node.inputs[0]),
                ctx.storage(node.outputs[0]),
                attributes.window,
                _smallest(stored.astype(np.int16) - attributes.weight_zero),
                bias,
                input_zero=attributes.input_zero,
            ),
        )


def _smallest(weights: Integers) -> Integers:
    """Return weights as bytes if possible: minus their zero point, weights may need 9 bits."""
    as_bytes = weights.astype(np.int8)
    return as_bytes if (as_bytes == weights).all() else weights
