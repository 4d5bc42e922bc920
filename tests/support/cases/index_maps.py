"""Cases of the ops that move elements by index arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cases.base import EXACT, STEPS, UNKNOWN, Case, Shape, Sheet

Integers = tuple[Any, ...] | int


@dataclass(frozen=True, kw_only=True)
class IndexMap(Case):
    """An op with one computed input of `shape` and constants (`operands`) around it.

    `position` is the place of the computed input; `options` are pairs of names and values.
    `result` is the shape that the file states, for CPU kernels that insist.
    """

    tolerance: ClassVar[float] = EXACT

    op: str
    shape: Shape = (2, 4, 3, 5)
    operands: tuple[Integers, ...] = ()
    position: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    count: int = 1
    dtype: str = "int32"
    version: int = 1
    result: Shape = UNKNOWN

    def write(self, sheet: Sheet) -> None:
        """One input, one op, its outputs."""
        inputs = [sheet.constant(data, self.dtype) for data in self.operands]
        inputs.insert(self.position, sheet.input(self.shape))
        options = dict(self.options)
        outputs = sheet.multi(self.op, inputs, self.count, options, self.version, self.result)
        sheet.output(*outputs)


def _transposes() -> list[IndexMap]:
    orders: list[tuple[Shape, tuple[int, ...]]] = [
        *(((2, 4, 3, c), (0, 3, 1, 2)) for c in range(1, 10)),
        *(((2, 4, 3, 8), order) for order in ((0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3))),
        *(((2, 4, 3, 5), order) for order in ((3, 2, 1, 0), (0, 1, 2, 3), (1, 2, 3, 0))),
        ((1, 6, 1, 8), (0, 2, 1, 3)),
        ((1, 6, 1, 8), (2, 1, 0, 3)),
        ((1, 1, 1, 8), (0, 3, 1, 2)),
        ((1, 40, 32, 64), (0, 3, 1, 2)),
        ((7,), (0,)),
        ((5, 9), (1, 0)),
        ((3, 5, 8), (1, 0, 2)),
        ((3, 5, 7), (2, 0, 1)),
        ((2, 3, 2, 5, 4), (0, 2, 1, 3, 4)),
        ((2, 3, 2, 5, 7), (4, 2, 0, 3, 1)),
        ((2, 3, 1, 5, 7), (2, 0, 1, 3, 4)),
        ((2, 3, 2, 2, 3, 5), (0, 1, 3, 2, 4, 5)),  # windows of an image
        ((2, 3, 2, 2, 3, 5), (0, 1, 4, 2, 5, 3)),  # its pixels shuffled
        ((2, 3, 2, 2, 3, 5), (5, 4, 3, 2, 1, 0)),
    ]
    return [IndexMap(op="TRANSPOSE", shape=shape, operands=(order,)) for shape, order in orders]


def _splits() -> list[IndexMap]:
    def split(shape: Shape, axis: int, count: int) -> IndexMap:
        options = (("num_splits", count),)
        return IndexMap(
            op="SPLIT", shape=shape, operands=(axis,), position=1, options=options, count=count
        )

    def split_v(shape: Shape, axis: int, *sizes: int, dtype: str = "int32") -> IndexMap:
        return IndexMap(
            op="SPLIT_V",
            shape=shape,
            operands=(sizes, axis),
            options=(("num_splits", len(sizes)),),
            count=len(sizes),
            dtype=dtype,
        )

    def unpack(shape: Shape, axis: int) -> IndexMap:
        options = (("num", shape[axis]), ("axis", axis))
        return IndexMap(op="UNPACK", shape=shape, options=options, count=shape[axis])

    return [
        split((2, 4, 3, 6), 0, 2),
        split((2, 4, 3, 6), 1, 4),
        split((2, 4, 3, 6), -2, 3),
        split((2, 4, 3, 6), 3, 2),
        split((2, 4, 3, 8), -1, 2),
        split((2, 4, 3, 6), 2, 1),
        split((3, 9), 1, 3),
        split((8,), 0, 2),
        split((2, 2, 4, 3, 6), 4, 2),
        split((2, 2, 4, 3, 6), 1, 2),
        split((2, 3, 2, 4, 3, 6), 3, 2),
        split_v((2, 5, 3, 9), 3, 4, 1, 4),
        split_v((2, 5, 3, 9), 1, 2, -1),
        split_v((3, 12), -1, 4, 8),
        split_v((2, 5, 3, 9), 2, 3),
        split_v((2, 2, 5, 3, 9), 0, 1, 1),
        unpack((2, 4, 3, 5), 0),
        unpack((2, 4, 3, 5), 1),
        unpack((2, 4, 3, 5), -2),
        unpack((2, 4, 3, 5), 3),
        unpack((3, 8), 0),
        unpack((3,), 0),
        unpack((1, 6), 0),
        unpack((2, 2, 3, 4, 8), 2),
        unpack((2, 2, 3, 2, 2, 5), 4),
    ]


def _repeats() -> list[IndexMap]:
    tiles: list[tuple[Shape, Shape]] = [
        *(((2, 3, 2, c), (1, 2, 3, 1)) for c in range(1, 10)),
        ((2, 3, 2, 5), (2, 1, 1, 3)),
        ((1, 1, 1, 4), (1, 5, 6, 2)),
        ((2, 3, 2, 5), (1, 1, 1, 1)),
        ((3,), (4,)),
        ((3, 1), (2, 7)),
        ((2, 3, 2, 2, 3), (2, 1, 3, 1, 2)),
        ((2, 1, 3, 2, 2, 3), (1, 2, 1, 3, 1, 2)),
    ]
    broadcasts: list[tuple[Shape, Shape]] = [
        ((1, 4, 1, 5), (2, 4, 3, 5)),
        ((4, 1, 1), (2, 4, 3, 5)),
        ((8,), (2, 4, 3, 8)),
        ((1,), (3, 5)),
        ((2, 4, 3, 5), (2, 4, 3, 5)),
        ((2, 1, 3, 1, 5), (2, 4, 3, 2, 5)),
        ((3, 1, 2, 1, 5), (2, 1, 3, 2, 2, 3, 5)),
    ]
    return [
        *(IndexMap(op="TILE", shape=shape, operands=(times,)) for shape, times in tiles),
        *(
            IndexMap(op="BROADCAST_TO", shape=shape, operands=(to,), version=2)
            for shape, to in broadcasts
        ),
        IndexMap(op="TILE", operands=((1, 2, 1, 2),), dtype="int64"),
        IndexMap(op="BROADCAST_TO", shape=(5,), operands=((2, 5),), dtype="int64", version=2),
    ]


def _blocks() -> list[IndexMap]:
    def depth(op: str, shape: Shape, block: int) -> IndexMap:
        return IndexMap(op=op, shape=shape, options=(("block_size", block),))

    def batch(op: str, shape: Shape, blocks: Integers, edges: Integers) -> IndexMap:
        return IndexMap(op=op, shape=shape, operands=(blocks, edges))

    none = ((0, 0), (0, 0))
    to_batch, to_space = "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"
    return [
        *(depth("SPACE_TO_DEPTH", (2, 4, 6, c), 2) for c in (1, 2, 3, 4, 5, 8)),
        depth("SPACE_TO_DEPTH", (1, 6, 9, 4), 3),
        depth("SPACE_TO_DEPTH", (2, 4, 6, 3), 1),
        *(depth("DEPTH_TO_SPACE", (2, 4, 3, 4 * c), 2) for c in (1, 2, 3, 4, 5, 8)),
        depth("DEPTH_TO_SPACE", (1, 2, 3, 36), 3),
        depth("DEPTH_TO_SPACE", (2, 4, 3, 5), 1),
        batch(to_batch, (2, 4, 6, 5), (2, 3), none),
        batch(to_batch, (1, 5, 7, 8), (2, 2), ((1, 2), (0, 1))),
        batch(to_batch, (3, 5, 7, 3), (4, 1), ((2, 1), (0, 0))),
        batch(to_batch, (2, 4, 6, 5), (1, 1), ((1, 0), (2, 3))),
        batch(to_batch, (2, 9, 5), (3,), ((1, 2),)),
        batch(to_space, (12, 2, 2, 5), (2, 3), none),
        batch(to_space, (4, 3, 4, 8), (2, 2), ((1, 2), (0, 1))),
        batch(to_space, (12, 2, 7, 3), (4, 1), ((2, 1), (0, 3))),
        batch(to_space, (6, 4, 5), (3,), ((1, 3),)),
        batch(to_space, (2, 3, 4, 5), (1, 1), ((0, 2), (0, 0))),
        batch(to_space, (3, 4, 2, 4), (1, 1), ((0, 0), (0, 1))),
        batch(to_space, (2, 3, 5), (1,), ((0, 2),)),
        batch(to_space, (1, 3, 5), (1,), ((0, 1),)),
    ]


def _mirrors() -> list[IndexMap]:
    pads: list[tuple[Shape, Integers]] = [
        ((2, 4, 3, 5), ((0, 0), (1, 2), (2, 1), (0, 0))),
        ((2, 4, 3, 8), ((0, 0), (3, 3), (2, 2), (0, 0))),
        ((2, 4, 3, 5), ((1, 0), (0, 1), (0, 0), (2, 4))),
        ((6, 5), ((5, 1), (0, 4))),
        ((7,), ((3, 2),)),
        ((2, 3, 4), ((0, 0), (0, 0), (0, 0))),
        ((2, 1, 2, 3, 2, 5), ((0, 0), (0, 0), (1, 0), (0, 1), (0, 0), (1, 0))),
    ]
    found = [
        IndexMap(op="MIRROR_PAD", shape=shape, operands=(table,), options=(("mode", mode),))
        for mode in ("REFLECT", "SYMMETRIC")
        for shape, table in pads
    ]
    edge = ((2, 2), (3, 3))
    return [
        *found,
        IndexMap(op="MIRROR_PAD", shape=(2, 3), operands=(edge,), options=(("mode", "SYMMETRIC"),)),
        IndexMap(
            op="MIRROR_PAD",
            shape=(4, 5),
            operands=(edge,),
            options=(("mode", "REFLECT"),),
            dtype="int64",
        ),
    ]


def _gathers() -> list[IndexMap]:
    def gather(shape: Shape, indices: Integers, axis: int, batch: int = 0, **more: Any) -> IndexMap:
        options = (("axis", axis), *((("batch_dims", batch),) if batch else ()))
        return IndexMap(op="GATHER", shape=shape, operands=(indices,), options=options, **more)

    return [
        gather((2, 4, 3, 5), (1, 0, 0), 0),
        gather((2, 4, 3, 5), (3, 0, 1, 1, 2), 1),
        gather((2, 4, 3, 8), (2, 0), 2),
        gather((2, 4, 3, 5), (4, 0, 1, 1, 2, 3, 0), 3),
        gather((2, 4, 3, 5), (4, 0), -1),
        gather((6, 9), ((1, 2, 3), (5, 4, 0)), 0),
        gather((6, 9), ((8, 2), (5, 4)), 1),
        gather((6, 9), 3, 1),
        gather((6,), ((1, 2, 3), (5, 4, 0)), 0),
        gather((6,), 4, 0),
        gather((2, 4, 3), ((1, 2, 3), (0, 2, 2)), 1, 1),
        gather((2, 4, 3), ((1, 2, 2), (0, 2, 1)), 2, 1),
        gather((2, 2, 5, 3), (((1, 4), (0, 0)), ((2, 3), (4, 4))), 2, 2),
        gather((2, 4, 3, 8), ((1, 0), (0, 3)), 1),
        gather((2, 3, 2, 4, 3), ((1, 0), (0, 3)), 3),
        gather((6, 9), (1, 5), 0, dtype="int64"),
        # Indices that are sums of digits: repeated, reversed, at a distance
        gather((2, 3, 4, 5), (0, 0, 1, 1, 2, 2), 1),
        gather((2, 4, 3, 8), (7, 5, 3, 1), 3),
        gather((2, 4, 3, 8), (1, 1, 2, 2, 1, 1, 2, 2), 3),
        gather((6, 9), (2, 3, 4), 0),
    ]


def _others() -> list[IndexMap]:
    def slice_(shape: Shape, begin: Shape, size: Shape, dtype: str = "int32") -> IndexMap:
        result = tuple(
            extent - first if count == -1 else count
            for first, count, extent in zip(begin, size, shape, strict=True)
        )
        return IndexMap(op="SLICE", shape=shape, operands=(begin, size), dtype=dtype, result=result)

    return [
        slice_((2, 5, 4, 9), (0, 1, 1, 0), (2, 3, 2, 9)),
        slice_((2, 5, 4, 9), (1, 0, 2, 4), (-1, 5, -1, 5)),
        slice_((2, 5, 4, 9), (0, 0, 0, 2), (2, 5, 4, 5)),
        slice_((3, 9), (1, 4), (2, 4), "int64"),
        slice_((9,), (3,), (-1,)),
        slice_((3, 4, 7), (1, 0, 6), (1, -1, 1)),
        slice_((2, 2, 5, 4, 9), (0, 1, 1, 2, 3), (2, 1, 3, -1, 5)),
        slice_((2, 2, 3, 2, 4, 9), (0, 1, 1, 0, 0, 4), (2, 1, 2, 2, 4, 5)),
        slice_((2, 2, 3, 2, 4, 9), (0, 0, 1, 0, 1, 4), (2, 2, 2, 2, 2, 5)),
        *(
            IndexMap(op="REVERSE_V2", shape=shape, operands=((axis,),))
            for shape, axis in (
                ((2, 4, 3, 5), 0),
                ((2, 4, 3, 5), 1),
                ((2, 4, 3, 8), 3),
                ((3, 9), -1),
                ((7,), 0),
                ((2, 3, 2, 3, 5), 2),
                ((2, 1, 3, 2, 3, 5), 3),
            )
        ),
        *(
            IndexMap(op="EXPAND_DIMS", shape=shape, operands=(axis,))
            for shape, axis in (
                ((2, 3, 5), 0),
                ((2, 3, 5), -1),
                ((4, 3), 1),
                ((7,), 1),
                ((2, 3, 2, 3, 5), 3),
            )
        ),
        IndexMap(op="EXPAND_DIMS", shape=(2, 3, 4, 5), operands=(2,), dtype="int64"),
    ]


@dataclass(frozen=True, kw_only=True)
class Pack(Case):
    """Values of one shape side by side along a new dimension."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (4, 3, 5)
    axis: int = 0
    count: int = 3
    constant: bool = False

    def write(self, sheet: Sheet) -> None:
        """Inputs, or one constant among them, and one output."""
        parts = [sheet.input(self.shape) for _ in range(self.count)]
        if self.constant:
            parts[0] = sheet.weights(self.shape, STEPS)
        options = {"axis": self.axis, "values_count": self.count}
        sheet.output(sheet.op("PACK", parts, options))


CASES: tuple[Case, ...] = (
    *_transposes(),
    *_splits(),
    *_repeats(),
    *_blocks(),
    *_mirrors(),
    *_gathers(),
    *_others(),
    *(Pack(axis=axis) for axis in (0, 1, 2, 3, -1, -4)),
    *(Pack(shape=(4, 3, 8), axis=axis) for axis in (1, 2)),
    *(Pack(shape=(5,), axis=axis) for axis in (0, 1)),
    Pack(shape=(2, 6), axis=1, count=1),
    Pack(shape=(2, 6), axis=1, constant=True),
    *(Pack(shape=(2, 4, 3, 5), axis=axis, constant=True) for axis in (1, 4)),
    *(Pack(shape=(2, 4, 3, 4), axis=axis, count=2) for axis in range(5)),
    Pack(shape=(2, 1, 3, 2, 4), axis=3),
)
