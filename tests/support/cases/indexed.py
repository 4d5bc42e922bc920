"""Cases of operations that select, replace or combine parts of a value by indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cases.base import EXACT, FEW, STEPS, TRUTH, UNKNOWN, Case, Range, Shape, Sheet
from cases.integers import Edges
from litegpu.graph import Blockwise, Quantization

_INTEGERS = ("int32", "int64")


def _values(dtype: str) -> Range:
    known = {"float32": STEPS, "bool": TRUTH}
    return known[dtype] if dtype in known else Edges(dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class GatherNd(Case):
    """Slices by rows of indices, which are constant with `fixed`; a constant value with `table`."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (4, 3, 5)
    indices: Shape = (2, 3, 2)
    dtype: str = "float32"
    index: str = "int32"
    fixed: bool = False
    table: bool = False

    def write(self, sheet: Sheet) -> None:
        """A value and indices, one output."""
        places = Range(0.0, min(self.shape[: self.indices[-1]]), dtype=self.index)
        value = (sheet.weights if self.table else sheet.input)(self.shape, _values(self.dtype))
        indices = (sheet.weights if self.fixed else sheet.input)(self.indices, places)
        sheet.output(sheet.op("GATHER_ND", [value, indices], dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Embedding(Case):
    """Rows of a constant table, or one of `stored` integers with a scale for all or `per_row`.

    With `block` it has a scale for so many columns of each row.
    """

    tolerance: ClassVar[float] = EXACT

    table: Shape = (6, 5)
    rows: int = 4
    stored: str = ""
    per_row: bool = False
    block: int = 0
    computed: bool = False

    def write(self, sheet: Sheet) -> None:
        """Numbers of rows, one output."""
        rows = sheet.input((self.rows,), Range(0.0, self.table[0], dtype="int32"))
        if self.computed:
            table = sheet.input(self.table, STEPS)
        elif not self.stored:
            table = sheet.weights(self.table, STEPS)
        else:
            low = -(2 ** (int(self.stored.removeprefix("int")) - 1))
            data = sheet.random.integers(low, -low, self.table)
            if self.block:
                blocks = (self.table[0], self.table[1] // self.block)
                scales = 2.0 ** -sheet.random.integers(2, 7, blocks)
                quantization = Blockwise(scales.astype(np.float16), self.block)
                table = sheet.constant(data, self.stored, quantization)
            else:
                count = self.table[0] if self.per_row else 1
                scales = 2.0 ** -sheet.random.integers(2, 7, count)
                found = Quantization(tuple(map(float, scales)), (0,) * count)
                table = sheet.constant(data, self.stored, found)
        version = 5 if self.stored == "int2" else 3 if self.stored else 1
        sheet.output(sheet.op("EMBEDDING_LOOKUP", [rows, table], version=version))


@dataclass(frozen=True, kw_only=True)
class UpdateSlice(Case):
    """A part that is replaced; `begin` is between these, where not all of the part might fit."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 4, 3, 7)
    update: Shape = (1, 2, 3, 3)
    begin: tuple[int, int] = (-1, 6)
    dtype: str = "float32"
    index: str = "int32"
    fixed: bool = False
    table: bool = False
    read_again: bool = False
    """The value is needed afterwards, too."""

    def write(self, sheet: Sheet) -> None:
        """A value, a part and where it goes, one output or two."""
        value = (sheet.weights if self.table else sheet.input)(self.shape, _values(self.dtype))
        update = sheet.input(self.update, _values(self.dtype))
        places = Range(*self.begin, dtype=self.index)
        begin = (sheet.weights if self.fixed else sheet.input)((len(self.shape),), places)
        sheet.output(sheet.op("DYNAMIC_UPDATE_SLICE", [value, update, begin], dtype=self.dtype))
        if self.read_again:
            sheet.output(sheet.op("ADD", [value, value], dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Sparse(Case):
    """A constant with other elements at some positions, or with one with `alone`."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (4, 3, 5)
    indices: Shape = (7, 3)
    dtype: str = "float32"
    index: str = "int32"
    elsewhere: float = 0.0
    fixed: bool = False
    alone: bool = False

    def write(self, sheet: Sheet) -> None:
        """Positions and values, one output."""
        places = Range(0.0, min(self.shape), dtype=self.index)
        positions = (sheet.weights if self.fixed else sheet.input)(self.indices, places)
        values = sheet.input(() if self.alone else self.indices[:1], _values(self.dtype))
        shape = sheet.constant(self.shape, self.index)
        operands = [positions, shape, values, sheet.constant(self.elsewhere, self.dtype)]
        sheet.output(sheet.op("SPARSE_TO_DENSE", operands, dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Joined(Case):
    """Rows joined by computed (or `fixed`) indices; `result` is what the op is told of its size."""

    tolerance: ClassVar[float] = EXACT

    op: str
    rows: Shape = (6, 2, 5)
    indices: Shape = (6,)
    result: tuple[int, ...] = ()
    dtype: str = "float32"
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """Rows, indices and a size, one output."""
        scattered = self.op == "SCATTER_ND"
        if self.op == "SEGMENT_SUM":
            # The CPU takes segments from 0 on without gaps.
            numbers = np.cumsum(sheet.random.integers(0, 2, self.indices))
            indices = sheet.constant(numbers - numbers[0], "int32")
        else:
            high = min(self.result[: self.indices[-1]] if scattered else self.result)
            places = Range(0.0, high, dtype="int32")
            indices = (sheet.weights if self.fixed else sheet.input)(self.indices, places)
        rows = sheet.input(self.rows, _few(self.dtype))
        operands = [indices, rows] if scattered else [rows, indices]
        if self.result:
            size = self.result if scattered else self.result[0]
            operands.append(sheet.constant(size, "int32"))
        sheet.output(sheet.op(self.op, operands, dtype=self.dtype))


def _few(dtype: str) -> Range:
    """Return values whose sums and products are exact, as halves, too."""
    known = {"float32": FEW, "bool": TRUTH}
    return known[dtype] if dtype in known else Edges(dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Top(Case):
    """The largest elements of rows in which many are equal, and their places."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 3, 9)
    count: int = 4
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, two outputs."""
        source = sheet.input(self.shape, _few(self.dtype))
        sheet.ops.append("TOPK_V2")
        sheet.tensors += 2
        count = sheet.constant(self.count, "int32")
        found = sheet.writer.multi(
            "TOPK_V2", [source, count], [UNKNOWN] * 2, dtypes=[self.dtype, "int32"]
        )
        sheet.output(*found)


@dataclass(frozen=True, kw_only=True)
class ReverseSequence(Case):
    """Sequences of computed (or `fixed`) lengths."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (3, 4, 5)
    along: int = 1
    batch: int = 0
    dtype: str = "float32"
    index: str = "int32"
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """A value and lengths, one output."""
        value = sheet.input(self.shape, _values(self.dtype))
        ends = Range(1.0, self.shape[self.along] + 1, dtype=self.index)
        size = (self.shape[self.batch],)
        lengths = (sheet.weights if self.fixed else sheet.input)(size, ends)
        options = {"seq_dim": self.along, "batch_dim": self.batch}
        sheet.output(sheet.op("REVERSE_SEQUENCE", [value, lengths], options, dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Diagonal(Case):
    """Matrices of a diagonal, or those of `matrix` with another one."""

    tolerance: ClassVar[float] = EXACT

    diagonal: Shape = (2, 3, 5)
    matrix: Shape = ()
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        op = "MATRIX_SET_DIAG" if self.matrix else "MATRIX_DIAG"
        shapes = filter(None, (self.matrix, self.diagonal))
        given = [sheet.input(shape, _values(self.dtype)) for shape in shapes]
        sheet.output(sheet.op(op, given, dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Lookup(Case):
    """Rows of a table by sorted keys, some of which are missing; with `repeated` some are equal."""

    tolerance: ClassVar[float] = EXACT

    table: Shape = (6, 5)
    wanted: int = 7
    dtype: str = "float32"
    repeated: bool = False
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """Wanted keys and a table, the rows and which there are."""
        wanted = sheet.input((self.wanted,), Range(-4.0, 4.0, dtype="int32"))
        known = np.arange(-20, 21) // 3 if self.repeated else np.arange(-8, 30, 2)
        keys = sheet.random.choice(known, self.table[:1], replace=False)
        sorted_keys = sheet.constant(np.sort(keys), "int32")
        values = (sheet.weights if self.fixed else sheet.input)(self.table, _values(self.dtype))
        sheet.ops.append("HASHTABLE_LOOKUP")
        sheet.tensors += 2
        operands = [wanted, sorted_keys, values]
        dtypes = [self.dtype, "uint8"]
        found = sheet.writer.multi("HASHTABLE_LOOKUP", operands, [UNKNOWN] * 2, dtypes=dtypes)
        sheet.output(*found)


@dataclass(frozen=True, kw_only=True)
class SparseEmbedding(Case):
    """Weighted rows of a table added up in buckets that come in order or, with `mixed`, in none."""

    combiner: str = "SUM"
    table: Shape = (5, 3)
    axes: Shape = (4,)
    rows: int = 9
    mixed: bool = False
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """Numbers of rows, weights and a table, one output."""
        rows = sheet.input((self.rows,), Range(0.0, self.table[0], dtype="int32"))
        places = sheet.random.integers(0, np.prod(self.axes), self.rows)
        numbers = np.unravel_index(places if self.mixed else np.sort(places), self.axes)
        within = np.arange(self.rows)
        indices = sheet.constant(np.stack([*numbers, within], axis=1), "int32")
        shape = sheet.constant([*self.axes, self.rows], "int32")
        weights = sheet.input((self.rows,), Range(0.5, 2.0, grid=0.25))
        table = (sheet.weights if self.fixed else sheet.input)(self.table, FEW)
        operands = [rows, indices, shape, weights, table]
        options = {"combiner": self.combiner}
        sheet.output(sheet.op("EMBEDDING_LOOKUP_SPARSE", operands, options))


UNSORTED = tuple(f"UNSORTED_SEGMENT_{what}" for what in ("SUM", "PROD", "MAX", "MIN"))

CASES: tuple[Case, ...] = (
    Sparse(),
    *(Sparse(dtype=dtype, elsewhere=3) for dtype in ("int32", "int64", "int8", "uint8")),
    *(Sparse(shape=(c,), indices=(4,), elsewhere=-1.5) for c in (1, 4, 9)),
    *(Sparse(index="int64", fixed=fixed) for fixed in (False, True)),
    Sparse(shape=(6, 5), indices=(1, 2), elsewhere=0.5, alone=True),
    *(GatherNd(dtype=dtype) for dtype in ("float32", *_INTEGERS)),
    *(GatherNd(indices=(5, depth), shape=(3, 4, 2, 6)) for depth in (1, 2, 3, 4)),
    *(GatherNd(indices=indices) for indices in ((1,), (3,), (3, 1, 2, 2))),
    *(GatherNd(fixed=True, shape=(4, 3, c)) for c in (1, 4, 9)),
    *(GatherNd(index=index) for index in ("int16", "int64")),
    GatherNd(table=True),
    GatherNd(shape=(2, 3, 2, 3, 2, 5), indices=(4, 3)),
    *(Embedding(table=table) for table in ((6, 5), (5, 2, 3), (9, 8))),
    Embedding(computed=True),
    *(
        Embedding(table=(6, c), stored=stored, per_row=per_row)
        for stored, c in (("int8", 5), ("int4", 6), ("int8", 8), ("int2", 12))
        for per_row in (False, True)
    ),
    *(Embedding(table=(5, 24), stored=stored, block=8) for stored in ("int4", "int2")),
    Embedding(table=(3, 12), stored="int4", block=4, rows=1),
    *(Lookup(dtype=dtype) for dtype in ("float32", *_INTEGERS, "int8", "uint8", "int16", "bool")),
    *(Lookup(table=table, repeated=True) for table in ((9,), (1, 4), (12, 2, 9), (7, 3, 2, 5))),
    *(Lookup(table=(5, c), wanted=1, fixed=True) for c in (1, 8)),
    *(SparseEmbedding(combiner=combiner) for combiner in ("SUM", "MEAN", "SQRTN")),
    *(SparseEmbedding(combiner=combiner, mixed=True) for combiner in ("SUM", "MEAN", "SQRTN")),
    *(SparseEmbedding(table=table, fixed=True) for table in ((4, 8), (3, 2, 5), (1, 1))),
    SparseEmbedding(combiner="MEAN", table=(6, 9), axes=(2, 3), rows=17),
    SparseEmbedding(combiner="SQRTN", axes=(2, 1, 2), rows=1),
    *(UpdateSlice(dtype=dtype) for dtype in ("float32", *_INTEGERS)),
    UpdateSlice(index="int64"),
    UpdateSlice(fixed=True),
    UpdateSlice(table=True),
    *(UpdateSlice(read_again=True, dtype=dtype) for dtype in ("float32", *_INTEGERS)),
    UpdateSlice(read_again=True, shape=(3, 8), update=(2, 8)),
    UpdateSlice(shape=(3, 12), update=(2, 2), begin=(0, 11)),
    *(UpdateSlice(shape=(3, c), update=(2, part)) for c, part in ((5, 1), (8, 8), (9, 4))),
    UpdateSlice(shape=(7,), update=(3,)),
    UpdateSlice(shape=(2, 3, 2, 3, 5), update=(1, 2, 2, 1, 3), begin=(0, 2)),
    *(
        Joined(op="SCATTER_ND", rows=rows, indices=indices, result=result)
        for rows, indices, result in (
            ((5, 8), (5, 1), (7, 8)),
            ((2, 3, 5), (2, 3, 2), (4, 3, 5)),
            ((6,), (6, 1), (9,)),
            ((6,), (6, 3), (4, 3, 3)),
            ((3, 2), (3, 3), (3, 3, 3, 2)),
        )
    ),
    *(
        Joined(op="SCATTER_ND", indices=(6, 1), result=(3, 2, 5), dtype=d)
        for d in (*_INTEGERS, "int8", "uint8", "bool")
    ),
    Joined(op="SCATTER_ND", indices=(6, 1), result=(3, 2, 5), fixed=True),
    *(Joined(op="SEGMENT_SUM", dtype=dtype) for dtype in ("float32", "int32")),
    Joined(op="SEGMENT_SUM", rows=(6, 9)),
    *(Joined(op=op, result=(3,), dtype="int32") for op in UNSORTED),
    *(Joined(op=op, result=(1,)) for op in UNSORTED),
    Joined(op="UNSORTED_SEGMENT_SUM", rows=(3, 4, 6), indices=(3, 4), result=(5,), fixed=True),
    *(Top(dtype=dtype) for dtype in ("float32", *_INTEGERS)),
    *(Top(shape=shape, count=count) for shape, count in (((1,), 1), ((7,), 7), ((3, 50), 5))),
    *(
        ReverseSequence(dtype=dtype, index=index)
        for dtype in ("float32", "int64")
        for index in _INTEGERS
    ),
    ReverseSequence(fixed=True),
    *(
        ReverseSequence(shape=(2, 3, 4, 5), along=along, batch=batch, fixed=fixed)
        for along, batch in ((3, 0), (1, 3), (0, 2))
        for fixed in (False, True)
    ),
    *(Diagonal(dtype=dtype) for dtype in ("float32", *_INTEGERS)),
    *(Diagonal(diagonal=shape) for shape in ((1,), (8,), (2, 3, 2, 5))),
    *(
        Diagonal(matrix=matrix, diagonal=(*matrix[:-2], min(matrix[-2:])), dtype=dtype)
        for matrix in ((4, 4), (2, 3, 6), (3, 2, 6, 3))
        for dtype in ("float32", "int32")
    ),
)
