"""BLOCKWISE_PRODUCT: multiplies int8 rows by 4-bit weights with one scale per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.graph import Node, Value
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit

BLOCKWISE_PRODUCT = "BLOCKWISE_PRODUCT"
INPUTS = 8
"""Number of 4-bit weights per 32-bit word; a block consists of whole words."""
_HIGH_BITS = 0xF0F0F0F0 - (1 << 32)
"""A mask for the high 4 bits of each byte of a word."""


@dataclass(frozen=True, slots=True)
class BlockwiseProductAttributes:
    """The value id of constant weights [O, I] with blockwise quantization."""

    weights: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights,)


@register
class BlockwiseProduct(InternalOp):
    """Multiplies rows by blockwise weights: scales integer sums of blocks to float and adds them.

    The inputs are int8 rows [..., I], and the scales and zero points of the rows [..., 1].
    """

    name = BLOCKWISE_PRODUCT
    traits = Trait.SUMS_PRODUCTS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: BlockwiseProductAttributes = node.attributes
        weights = ctx.value(attributes.weights)
        assert weights.blockwise is not None
        dst, size = ctx.storage(node.outputs[0]), weights.blockwise.size
        outputs, depth = weights.shape
        request = KernelRequest(
            template="blockwise_product",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("src", "row_scale", "row_zero"), node.inputs, strict=True)),
            constants={
                "weights": _packed(weights),
                "scales": _by_channel(weights.blockwise.scales.T),
                "totals": _by_channel(_totals(weights)),
            },
            variables={
                "blocks": depth // size,
                "words": size // INPUTS,
                "real_blocks": round_up(outputs, 4) // 4,
                "high_bits": _HIGH_BITS,
            },
            work={Unit.INT8_DOT: 2 * dst.rows * weights.elements},
        )
        return (request,)


def _packed(weights: Value) -> npt.NDArray[np.int32]:
    """Pack weights [O, I] into words [I / 8, O]: low nibbles have 4 inputs, high nibbles 4 more."""
    outputs, depth = weights.shape
    padded = np.zeros((round_up(outputs, 4), depth // INPUTS, 2, INPUTS // 2), np.uint8)
    padded[:outputs] = np.asarray(weights.data).astype(np.uint8).reshape(outputs, *padded.shape[1:])
    low, high = padded[:, :, 0] & 15, padded[:, :, 1] << 4
    words = np.ascontiguousarray(low | high).view(np.int32)[..., 0]
    return np.ascontiguousarray(words.T)


def _totals(weights: Value) -> npt.NDArray[np.float32]:
    """Return the sum of each row of real weights, rounded to float32 after each block."""
    assert weights.blockwise is not None
    outputs, _ = weights.shape
    blocks = np.asarray(weights.data).reshape(outputs, -1, weights.blockwise.size)
    sums = blocks.sum(axis=2, dtype=np.int32).astype(np.float32)
    totals = np.zeros(outputs, np.float32)
    for scale, total in zip(weights.blockwise.scales.T.astype(np.float32), sums.T, strict=True):
        totals += scale * total
    return totals


def _by_channel(array: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return an array [..., O] as float32, with zeros in padding channels."""
    outputs = array.shape[-1]
    padded = np.zeros((*array.shape[:-1], round_up(outputs, 4)), np.float32)
    padded[..., :outputs] = array
    return padded
