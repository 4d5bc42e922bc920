"""PACK_WEIGHTS: arranges computed weights in the layout of convolution kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Shape, register

PACK_WEIGHTS = "PACK_WEIGHTS"
BLOCK = 16
"""Number of elements of a block of 4 inputs x 4 outputs; packed rows need no padding."""


@dataclass(frozen=True, slots=True)
class PackAttributes:
    """The shape [O, H, W, I] of the weights before packing, and the number of groups."""

    shape: Shape4
    groups: int = 1


@register
class PackWeights(InternalOp):
    """Arranges computed weights in the layout of convolution kernels."""

    name = PACK_WEIGHTS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: PackAttributes = node.attributes
        outputs, height, width, depth = attributes.shape
        _, _, _, spread = dense_shape(attributes)
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="pack_weights",
            grid=(BLOCK // 4, dst.rows, 1),
            local=(4, 16, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "taps": height * width,
                "outputs": outputs,
                "depth": depth,
                "group_outputs": outputs // attributes.groups if spread != depth else 0,
                "input_blocks": -(-spread // 4),
                "weight_blocks": packed_blocks(outputs),
            },
        )
        return (request,)


def packed_shape(attributes: PackAttributes) -> Shape:
    """Return the shape of packed weights: rows of blocks, 4 inputs x 4 outputs each."""
    outputs, height, width, spread = dense_shape(attributes)
    rows = height * width * -(-spread // 4) * packed_blocks(outputs)
    return (rows, BLOCK)


def packed_blocks(outputs: int) -> int:
    """Return the number of output channel blocks that the largest tile may read.

    A result inside a concatenation of float16 values may have an additional padding channel block.
    """
    return round_up(-(-outputs // 4) + 1, 2)


def dense_shape(attributes: PackAttributes) -> Shape4:
    """Return the weights' shape, expanded with zeros if groups are not whole blocks."""
    outputs, height, width, depth = attributes.shape
    whole = whole_groups(attributes.shape, attributes.groups)
    return outputs, height, width, (depth if whole else depth * attributes.groups)


def whole_groups(shape: Shape4, groups: int) -> bool:
    """Whether every group of weights [O, H, W, I / groups] starts at a whole channel block.

    Groups that start inside a channel block would need channel-wise gathers, which cost more than
    dense weights with zeros.
    """
    return groups == 1 or (shape[3] % 4 == 0 and (shape[0] // groups) % 4 == 0)
