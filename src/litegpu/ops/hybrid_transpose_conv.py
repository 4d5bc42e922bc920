"""HYBRID_TRANSPOSE_CONV: TRANSPOSE_CONV of floats with int8 weights.

The CPU scales each product and adds floats, so the order of the additions affects the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import Window

HYBRID_TRANSPOSE_CONV = "HYBRID_TRANSPOSE_CONV"


@dataclass(frozen=True, slots=True)
class HybridTransposeAttributes:
    """The window from result to input, and the value id of constant weights [O, H, W, I]."""

    window: Window
    weights: int
    scales: tuple[float, ...]
    """Scales of the weights: one scale, or one scale per output channel."""

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights,)


@register
class HybridTransposeConv(InternalOp):
    """Multiplies int8 inputs and weights, with scales per image and channel."""

    name = HYBRID_TRANSPOSE_CONV
    traits = Trait.SUMS_PRODUCTS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: HybridTransposeAttributes = node.attributes
        weights = np.asarray(ctx.value(attributes.weights).data, np.int8)
        dst, window = ctx.storage(node.outputs[0]), attributes.window
        outputs, height, width, depth = weights.shape
        channels = round_up(outputs, 4)
        packed = np.zeros((height, width, round_up(depth, 4), channels), np.int8)
        packed[:, :, :depth, :outputs] = weights.transpose(1, 2, 3, 0)
        taps = -(-height // window.stride[0]) * -(-width // window.stride[1])
        request = KernelRequest(
            template="hybrid_transpose_conv",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "row_scale": node.inputs[1]},
            constants={"weights": packed, "scales": _padded(attributes.scales, outputs)},
            variables={
                "kernel": window.kernel,
                "stride": window.stride,
                "pads": window.pads,
                "real_blocks": channels // 4,
                "input_blocks": round_up(depth, 4) // 4,
            },
            work={Unit.FP32: 4 * dst.rows * outputs * depth * taps},
        )
        return (request,)


def _padded(scales: tuple[float, ...], outputs: int) -> npt.NDArray[np.float32]:
    """Return a scale for each channel of whole channel blocks, 0 for padding."""
    padded = np.zeros(round_up(outputs, 4), np.float32)
    padded[:outputs] = scales
    return padded
