"""COPY: the identity, a broadcast or a strided slice, with an optional epilogue."""

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
    """A strided slice: output index d reads input index d * step + begin, or is `fill` outside."""

    begin: _Four = (0, 0, 0, 0)
    step: _Four = (1, 1, 1, 1)
    fill: float = 0.0

    @property
    def moves(self) -> bool:
        return self.begin != (0, 0, 0, 0) or self.step != (1, 1, 1, 1)


@register
class Copy(InternalOp):
    """Copies the input, broadcast to the output's shape; only passes create this op."""

    name = COPY
    traits = Trait.CONVEX

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


def copy_kernel(node: Node, ctx: LowerContext, destination: Storage | None = None) -> KernelRequest:
    """Return the kernel that copies the node's input to the output, or to a part of the output."""
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
    """Return a shape with at most 4 axes, and the ranges that select the same elements.

    A range may start before the first element of an axis and end after the last element. The
    function merges a completely selected axis into the previous axis if no elements between them
    are omitted. The last axis remains separate. The result is None if more than 4 axes remain.
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
    """Return four numbers as a tuple of length 4."""
    a, b, c, d = entries
    return a, b, c, d
