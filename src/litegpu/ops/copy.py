"""COPY: a node for an epilogue; the identity, a broadcast, or a strided slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import Storage, register_of
from litegpu.graph import Node
from litegpu.ops.base import COPY, InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.traits import Trait

_Four = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class CopyAttributes:
    """A slice: output index d along an axis is input index d * step + begin, or `fill`."""

    begin: _Four = (0, 0, 0, 0)
    step: _Four = (1, 1, 1, 1)
    fill: float = 0.0

    @property
    def moves(self) -> bool:
        return self.begin != (0, 0, 0, 0) or self.step != (1, 1, 1, 1)


@register
class Copy(InternalOp):
    """The identity, broadcast to the output's shape; created by passes, never by models."""

    name = COPY
    traits = Trait.CONVEX

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


def copy_kernel(node: Node, ctx: LowerContext, destination: Storage | None = None) -> KernelRequest:
    """Return the kernel that copies the node's input, to a part of the output if given."""
    dst = destination or ctx.storage(node.outputs[0])
    src = ctx.storage(node.inputs[0])
    explicit = isinstance(node.attributes, CopyAttributes)
    attributes: CopyAttributes = node.attributes if explicit else CopyAttributes()
    moved = register_of(src.dtype)
    return KernelRequest(
        template="copy",
        grid=(dst.channel_blocks, dst.rows, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        variables={
            "plain": not explicit,
            "begin": attributes.begin,
            "step": attributes.step,
            "fill": moved.literal(attributes.fill),
            "limits": _limits(attributes, src, dst),
            "channels_aligned": attributes.step[3] == 1 and attributes.begin[3] % 4 == 0,
            "real_blocks": -(-src.channels // 4),
        },
        destination=destination,
        needed={"src": dst.rows * dst.padded_channels},
        accumulator=moved,
    )


def _limits(attributes: CopyAttributes, src: Storage, dst: Storage) -> list[str]:
    """Return the conditions for an output row to have a corresponding input row."""
    conditions = []
    for axis, name in enumerate("nyx"):
        begin, step = attributes.begin[axis], attributes.step[axis]
        reached = (begin, begin + (dst.shape[axis] - 1) * step)
        if min(reached) < 0:
            conditions.append(f"{name} >= 0")
        if max(reached) >= src.shape[axis]:
            conditions.append(f"{name} < {src.shape[axis]}")
    return conditions


def merge_ranges(shape: Sequence[int], ranges: Sequence[range]) -> list[tuple[int, range]] | None:
    """Return at most 4 axes, and the ranges along them that select the same elements.

    Ranges may start before an axis and end after it. A complete axis is merged into the previous
    one if no elements are omitted between them; the last one remains separate. None if more than 4
    axes remain.
    """
    merged: list[tuple[int, range]] = []
    for size, part in zip(shape[:-1], ranges[:-1], strict=True):
        before, last = merged[-1] if merged else (1, range(1))
        if merged and part == range(size) and (last.step == 1 or size == 1):
            merged[-1] = (before * size, range(last.start * size, last.stop * size, last.step))
        elif merged and before == 1 and last == range(1):
            merged[-1] = (size, part)
        else:
            merged.append((size, part))
    return [*merged, (shape[-1], ranges[-1])] if len(merged) < 4 else None


def four(entries: Sequence[int]) -> _Four:
    """Return four entries as a tuple of that length."""
    a, b, c, d = entries
    return a, b, c, d
