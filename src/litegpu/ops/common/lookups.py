"""Represents slices, repetitions and gathers along separate axes as index lists."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source
from litegpu.ops.strided_slice import STRIDED_SLICE

_MOST = 1 << 14


@dataclass(frozen=True, slots=True)
class Lookup:
    """The input indices along one axis of the input, as a function of one output axis.

    `indices` has an entry for each position along `axis` of the output, or a single entry if `axis`
    is None.
    """

    axis: int | None
    indices: tuple[int, ...]

    def keeps(self, axis: int, size: int) -> bool:
        """Whether the lookup is the identity for axis `axis` of size `size`."""
        return self.axis == axis and self.indices == tuple(range(size))

    def text(self, coordinate: str) -> str | None:
        """Return the text of the index at a position, if steps and run lengths are constant."""
        start = self.indices[0]
        run = next((i for i, index in enumerate(self.indices) if index != start), 0)
        if not run:
            return str(start)
        step = self.indices[run] - start
        if any(index != start + i // run * step for i, index in enumerate(self.indices)):
            return None
        text = coordinate if run == 1 else f"({coordinate}) / {run}"
        text = text if step == 1 else f"({text}) * ({step})"
        return f"{text} + ({start})" if start else text


def lookups(graph: Graph, node: Node) -> list[Lookup] | None:
    """Return the lookup of each input axis, if the node only moves data before its epilogue.

    The result is also None if an axis has more than 16384 positions, since a lookup lists every
    position.
    """
    shape, out = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    if max(out, default=0) > _MOST:
        return None
    if node.op == INDEX_MAP:
        attributes: IndexMapAttributes = node.attributes
        if any(len(axis.sizes) > 1 or axis.begin for axis in attributes.digits):
            return None
        found = [_lookup(s, size, out) for s, size in zip(attributes.sources, shape, strict=True)]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None
    if node.op == STRIDED_SLICE and isinstance(node.attributes, CopyAttributes):
        return _slice(node.attributes, shape, out)
    return None


def _slice(attributes: CopyAttributes, shape: Shape, out: Shape) -> list[Lookup] | None:
    if len(shape) != 4:
        return None
    return [
        Lookup(axis, tuple(begin + step * i for i in range(size)))
        for axis, (begin, step, size) in enumerate(
            zip(attributes.begin, attributes.step, out, strict=True)
        )
    ]


def _lookup(source: Source, size: int, out: Shape) -> Lookup | None:
    if source.bounded or source.operand or len(source.terms) > 1:
        return None
    axis, factor = source.terms[0] if source.terms else (None, 0)
    positions = (source.offset + factor * i for i in range(1 if axis is None else out[axis]))
    if source.mirror is not None:
        positions = (_mirrored(i, source.mirror, size) for i in positions)
    table = source.table
    return Lookup(axis, tuple(i if table is None else table[i] for i in positions))


def _mirrored(index: int, edge: int, size: int) -> int:
    """Return an index reflected at both ends, as kernels compute it."""
    inner = max(index, edge - index)
    return min(inner, 2 * size - 2 - edge - inner)
