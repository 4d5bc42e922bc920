"""Cases of STABLEHLO_GATHER and STABLEHLO_SCATTER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, STEPS, Array, Case, NumpyCase, Range, Shape, Sheet
from cases.integers import Edges
from cases.rejected.base import Rejected, Tensor, computed
from litegpu.graph import DType


def _values(dtype: str) -> Range:
    return STEPS if dtype == "float32" else Edges(dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Gathered(Case):
    """Parts of a value; some positions reach beyond it. `result` is the shape of the result."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (6, 5)
    positions: Shape = (3, 1)
    sizes: Shape = (1, 5)
    offsets: Shape = (1,)
    collapsed: Shape = (0,)
    mapped: Shape = (0,)
    vector: int = 1
    result: Shape = (3, 5)
    dtype: str = "float32"
    index: str = "int32"
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """A value and positions, one output."""
        places = Range(-2.0, 8.0, dtype=self.index)
        x = sheet.input(self.shape, _values(self.dtype))
        positions = (sheet.weights if self.fixed else sheet.input)(self.positions, places)
        options = {
            "offset_dims": self.offsets,
            "collapsed_slice_dims": self.collapsed,
            "start_index_map": self.mapped,
            "index_vector_dim": self.vector,
            "slice_sizes": self.sizes,
        }
        found = sheet.multi(
            "STABLEHLO_GATHER", [x, positions], 1, options, shape=self.result, dtype=self.dtype
        )
        sheet.output(*found)


@dataclass(frozen=True, kw_only=True)
class Scattered(Case):
    """Parts of a value that are joined with others by `function`, or replaced without one.

    Some positions reach beyond the value, and some parts overlap.
    """

    shape: Shape = (6, 5)
    positions: Shape = (4, 1)
    update: Shape = (4, 5)
    windows: Shape = (1,)
    inserted: Shape = (0,)
    mapped: Shape = (0,)
    vector: int = 1
    function: str = ""
    dtype: str = "float32"
    index: str = "int32"
    fixed: bool = False
    constant: str = ""
    """Which other operand is a constant, "value" or "update"."""

    def write(self, sheet: Sheet) -> None:
        """A value, positions and an update, one output."""
        body = sheet.writer.subgraph()
        sides = [body.input((), self.dtype) for _ in range(2)]
        joined = self.function and body.op(
            f"STABLEHLO_{self.function}", sides, [()], dtype=self.dtype
        )
        body.output(joined or sides[1])
        places = Range(0.0, 7.0, dtype=self.index)
        make = {self.constant: sheet.weights}
        x = make.get("value", sheet.input)(self.shape, _values(self.dtype))
        positions = (sheet.weights if self.fixed else sheet.input)(self.positions, places)
        update = make.get("update", sheet.input)(self.update, _values(self.dtype))
        options = {
            "update_window_dims": self.windows,
            "inserted_window_dims": self.inserted,
            "scatter_dims_to_operand_dims": self.mapped,
            "index_vector_dim": self.vector,
            "update_computation_subgraph_index": body.number,
        }
        operands = [x, positions, update]
        found = sheet.multi(
            "STABLEHLO_SCATTER", operands, 1, options, shape=self.shape, dtype=self.dtype
        )
        sheet.output(*found)


def _start(positions: Array, place: Sequence[int], vector: int) -> Array:
    """Return the index vector at a place of the batch; one number without an axis of vectors."""
    if vector == positions.ndim:
        return np.atleast_1d(positions[tuple(place)])
    return np.asarray(np.moveaxis(positions, vector, -1)[tuple(place)])


def _spread(rank: int, axes: Sequence[int], numbers: Sequence[int] | Array) -> Array:
    """Return an index of this rank with numbers on some axes, and 0 elsewhere."""
    index = np.zeros(rank, np.int64)
    index[list(axes)] = numbers
    return index


@dataclass(frozen=True, kw_only=True)
class GatheredSingly(Gathered, NumpyCase):
    """Parts at positions of one number each, which have no axis of their own.

    The CPU's kernel reads memory that nothing has written, so that NumPy computes the answer.
    """

    positions: Shape = (2, 4)
    vector: int = 2
    offsets: Shape = (2,)
    result: Shape = (2, 4, 5)

    def expected(self, inputs: Sequence[Array], weights: Sequence[Array]) -> tuple[Array, ...]:
        """Follow the specification of StableHLO: parts that reach beyond the value are moved."""
        x, positions = inputs
        found, rank = np.zeros(self.result, x.dtype), x.ndim
        remaining = [axis for axis in range(rank) if axis not in self.collapsed]
        last = np.subtract(x.shape, self.sizes)
        for index in np.ndindex(self.result):
            place = [each for axis, each in enumerate(index) if axis not in self.offsets]
            start = _spread(rank, self.mapped, _start(positions, place, self.vector))
            inside = _spread(rank, remaining, [index[axis] for axis in self.offsets])
            found[index] = x[tuple(np.clip(start, 0, last) + inside)]
        return (found,)


@dataclass(frozen=True, kw_only=True)
class ScatteredSingly(Scattered, NumpyCase):
    """Parts for positions of one number each: see GatheredSingly."""

    positions: Shape = (2, 4)
    update: Shape = (2, 4, 5)
    windows: Shape = (2,)
    vector: int = 2

    def expected(self, inputs: Sequence[Array], weights: Sequence[Array]) -> tuple[Array, ...]:
        """Follow the specification of StableHLO: elements beyond the value are left out."""
        x, positions, update = inputs
        found, rank = x.copy(), x.ndim
        remaining = [axis for axis in range(rank) if axis not in self.inserted]
        join = {"ADD": np.add, "MAXIMUM": np.maximum}.get(self.function, lambda old, new: new)
        for index in np.ndindex(self.update):
            place = [each for axis, each in enumerate(index) if axis not in self.windows]
            start = _spread(rank, self.mapped, _start(positions, place, self.vector))
            target = start + _spread(rank, remaining, [index[axis] for axis in self.windows])
            if (target >= 0).all() and (target < x.shape).all():
                found[tuple(target)] = join(found[tuple(target)], update[index])
        return (found,)


_DTYPES = ("int32", "int64", "int8", "int16", "uint8")
_ELEMENTS: dict[str, Any] = {"windows": (), "inserted": (0, 1, 2), "mapped": (0, 1, 2)}
_FUNCTIONS = ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")

CASES: tuple[Case, ...] = (
    Gathered(),
    *(Gathered(dtype=dtype) for dtype in _DTYPES),
    Gathered(index="int64", fixed=True),
    Gathered(shape=(9,), positions=(4, 1), sizes=(3,), collapsed=(), result=(4, 3), index="int64"),
    Gathered(
        shape=(4, 5, 6),
        positions=(2, 3, 2),
        sizes=(1, 2, 4),
        offsets=(1, 3),
        collapsed=(0,),
        mapped=(2, 0),
        vector=2,
        result=(2, 2, 3, 4),
    ),
    Gathered(
        shape=(4, 5, 6),
        positions=(3, 2),
        sizes=(2, 1, 6),
        offsets=(0, 2),
        collapsed=(1,),
        mapped=(0, 1, 2),
        vector=0,
        result=(2, 2, 6),
        dtype="int32",
        fixed=True,
    ),
    *(
        Gathered(shape=(6, c), sizes=(1, c), result=(3, c), dtype=dtype)
        for c, dtype in ((1, "float32"), (4, "int8"), (9, "float32"))
    ),
    Scattered(),
    *(Scattered(function=each) for each in _FUNCTIONS),
    *(Scattered(function=each, dtype="int32") for each in _FUNCTIONS),
    *(Scattered(dtype=dtype, index="int64") for dtype in _DTYPES),
    Scattered(function="MAXIMUM", dtype="int64", fixed=True),
    Scattered(shape=(9,), positions=(5, 1), update=(5, 3), inserted=(), function="ADD"),
    Scattered(
        shape=(4, 5, 6),
        positions=(2, 3, 2),
        update=(2, 2, 3, 4),
        windows=(1, 3),
        mapped=(2, 0),
        vector=2,
    ),
    Scattered(
        shape=(4, 5, 6),
        positions=(3, 2),
        update=(2, 2, 4),
        windows=(0, 2),
        inserted=(1,),
        mapped=(0, 1, 2),
        vector=0,
        function="MINIMUM",
    ),
    *(Scattered(shape=(6, c), update=(4, c), function="ADD") for c in (1, 4, 9)),
    *(
        Scattered(constant=each, shape=shape, **options)
        for each in ("value", "update")
        for shape, options in (
            ((6, 5), {}),
            # Parts of one element: all of the value is in rows of one.
            ((2, 3, 4), {"positions": (5, 3), "update": (5,), **_ELEMENTS}),
            # Its axes in another order.
            ((3, 8), {"update": (4, 3), "windows": (1,), "inserted": (1,), "mapped": (1,)}),
        )
    ),
    GatheredSingly(),
    GatheredSingly(index="int64"),
    GatheredSingly(positions=(3,), vector=1, result=(3, 5), offsets=(1,)),
    GatheredSingly(positions=(), vector=0, result=(5,), offsets=(0,)),
    GatheredSingly(
        shape=(4, 9, 3),
        positions=(2, 3),
        sizes=(4, 2, 3),
        collapsed=(),
        mapped=(1,),
        offsets=(0, 2, 4),
        result=(4, 2, 2, 3, 3),
    ),
    ScatteredSingly(function="ADD"),
    ScatteredSingly(function="MAXIMUM", index="int64"),
    ScatteredSingly(positions=(3,), vector=1, update=(3, 5), windows=(1,), function="ADD"),
    ScatteredSingly(positions=(), vector=0, update=(5,), windows=(0,)),
    ScatteredSingly(
        shape=(4, 9, 3),
        update=(4, 2, 2, 4, 3),
        windows=(0, 2, 4),
        inserted=(),
        mapped=(1,),
        function="ADD",
    ),
)

_POSITIONS = Tensor(shape=(3, 1), dtype=DType.INT32)
_GATHER = {
    "offset_dims": (1,),
    "collapsed_slice_dims": (0,),
    "start_index_map": (0,),
    "index_vector_dim": 1,
    "slice_sizes": (1, 5),
}

REJECTED = (
    Rejected(
        "STABLEHLO_GATHER",
        (computed(6, 5), _POSITIONS),
        "The dimension parameters do not fit a value of [6, 5] with indices of [3, 1].",
        params={**_GATHER, "slice_sizes": (1, 6)},
    ),
    Rejected(
        "STABLEHLO_SCATTER",
        (computed(6, 5), _POSITIONS, computed(3, 5)),
        "The update graph cannot be read, or is not a sum, product, minimum or maximum.",
    ),
)
