"""BLOCKWISE_PRODUCT: multiplies int8 rows by 4-bit weights with one scale per block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import Node, Value
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Target, register
from litegpu.ops.common.nibble_words import HIGH_BITS, NIBBLES, pack_nibbles
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import DividedSums, by_load, divide_sums

BLOCKWISE_PRODUCT = "BLOCKWISE_PRODUCT"
_ROWS = (4, 2, 1)
"""Possible numbers of rows per work item."""
_VECTOR = 16
"""Size of a float4 in bytes."""


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
        channel_blocks = round_up(outputs, 4) // 4
        request = KernelRequest(
            template="blockwise_product",
            grid=(1, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("src", "row_scale", "row_zero"), node.inputs, strict=True)),
            constants={
                "weights": pack_nibbles(np.asarray(weights.data), channel_blocks),
                "scales": _by_channel(weights.blockwise.scales.T),
                "totals": _by_channel(_totals(weights)),
            },
            variables={
                "blocks": depth // size,
                "words": size // NIBBLES,
                "real_blocks": channel_blocks,
                "high_bits": HIGH_BITS,
            },
            work={Unit.INT8_DOT: 2 * dst.rows * weights.elements},
        )
        fitting = [rows for rows in _ROWS if rows <= dst.rows]
        sums = _divided_sums(dst, depth // size, fitting, ctx.target)
        if sums is not None:
            return (_divided(request, sums, dst, depth // size),)
        rows, *_ = by_load(
            fitting, lambda rows: dst.channel_blocks * -(-dst.rows // rows), ctx.target
        )
        variables = {**request.variables, "ROWS": rows}
        grid = (dst.channel_blocks, -(-dst.rows // rows), 1)
        return (replace(request, grid=grid, variables=variables),)


def _divided_sums(
    dst: Storage, blocks: int, fitting: Sequence[int], target: Target
) -> DividedSums | None:
    """Return work groups that divide sums of `blocks` blocks of weights.

    The result is None if the device is busy without them, or if they need too much memory.
    """
    if dst.rows * dst.channel_blocks * 4 > target.parallel_items:
        return None
    for rows in fitting:
        sums = divide_sums(-(-dst.rows // rows), rows, dst.channel_blocks, blocks, target)
        if isinstance(sums, str):
            continue
        if _VECTOR * _vectors(sums, blocks) <= target.local_memory_bytes:
            return sums
    return None


def _vectors(sums: DividedSums, blocks: int) -> int:
    """Return how many float4 a work group shares: the sum of each block."""
    return sums.rows * sums.columns * blocks


def _divided(request: KernelRequest, sums: DividedSums, dst: Storage, blocks: int) -> KernelRequest:
    """Return the request for the kernel whose work items divide each sum."""
    return replace(
        request,
        template="blockwise_product_split_k",
        grid=sums.grid(dst.channel_blocks, -(-dst.rows // sums.rows)),
        local=(sums.group, 1, 1),
        variables={**request.variables, **sums.words()},
        shared=(("float4", "scratch", _vectors(sums, blocks)),),
    )


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
