"""Cases of the ops that move stored integers, or fill with the zero point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, TRUTH, Case, Range, Shape, Sheet
from cases.index_maps import IndexMap
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization

_TYPES = ("int8", "uint8", "int16")
_BYTES = _TYPES[:2]


def _params(sheet: Sheet, stored: str, kind: str = ORDINARY) -> Quantization:
    """Draw a quantization; that of int16 has no zero point, as the CPU wants it."""
    drawn = quantization(sheet.random, stored, kind)
    return replace(drawn, zero_point=(0,)) if stored == "int16" else drawn


@dataclass(frozen=True, kw_only=True)
class StoredMove(IndexMap):
    """As Move, of a quantized tensor; `fill` is a last operand of the same type."""

    stored: str = "int8"
    fill: int | None = None

    def write(self, sheet: Sheet) -> None:
        """One input, one op, its outputs."""
        params = _params(sheet, self.stored)
        inputs = [sheet.constant(data, self.dtype) for data in self.operands]
        inputs.insert(self.position, sheet.input(self.shape, Stored(dtype=self.stored), params))
        if self.fill is not None:
            inputs.append(sheet.constant(self.fill, self.stored, params))
        options = dict(self.options)
        outputs = sheet.multi(
            self.op, inputs, self.count, options, self.version, self.result, self.stored, params
        )
        sheet.output(*outputs)


def _moves() -> list[StoredMove]:
    def move(op: str, shape: Shape, *operands: Any, **more: Any) -> list[StoredMove]:
        options = tuple(more.pop("options", {}).items())
        return [
            StoredMove(op=op, shape=shape, operands=operands, options=options, stored=each, **more)
            for each in more.pop("types", _TYPES)
        ]

    pads = ((0, 0), (1, 2), (0, 3), (0, 0))
    edges = ((1, 2), (0, 1))
    nine = {"begin_mask": 0, "end_mask": 0}
    return [
        *move("PAD", (2, 4, 3, 5), pads, version=2),
        *move("PAD", (1, 3, 2, 4), ((1, 0), (0, 0), (2, 1), (3, 2)), version=2, types=_BYTES),
        *move("PAD", (1, 3, 2, 6), ((0, 0), (0, 0), (0, 0), (0, 5)), version=2, types=_BYTES),
        *move("PAD", (2, 2, 3, 1, 5), ((0, 1), *pads), version=2, types=_BYTES),
        *move("PADV2", (2, 4, 3, 5), pads, fill=97, version=2, types=_BYTES),
        *move(
            "MIRROR_PAD",
            (2, 4, 3, 5),
            (*pads[:2], (2, 1), (0, 4)),
            version=2,
            options={"mode": "REFLECT"},
            types=_BYTES,
        ),
        *move("SPACE_TO_BATCH_ND", (1, 5, 7, 9), (2, 2), edges, version=2, types=_BYTES),
        *move("BATCH_TO_SPACE_ND", (4, 3, 4, 5), (2, 2), edges, version=2, types=_BYTES),
        *move("RESHAPE", (2, 4, 3, 5), (3, 2, 20), options={"new_shape": (3, 2, 20)}),
        *move("TRANSPOSE", (2, 4, 3, 5), (0, 3, 1, 2), version=2),
        *move("SLICE", (2, 5, 4, 9), (1, 0, 2, 3), (1, 5, 2, 5), result=(1, 5, 2, 5), version=2),
        *move(
            "STRIDED_SLICE",
            (2, 5, 4, 9),
            (0, 1, 3, 1),
            (2, 5, -5, 9),
            (1, 2, -1, 3),
            options=nine,
            version=2,
        ),
        *move("SPLIT", (2, 4, 3, 6), -1, position=1, options={"num_splits": 2}, count=2, version=2),
        *move("SPLIT_V", (2, 5, 3, 9), (4, 1, 4), 3, options={"num_splits": 3}, count=3, version=2),
        *move("GATHER", (2, 4, 3, 5), (3, 0, 1, 1, 2), version=2, options={"axis": 1}),
        *move("GATHER", (2, 4, 3, 9), (7, 0, 8), version=2, options={"axis": 3}, types=_BYTES),
        *move(
            "UNPACK", (2, 4, 3, 5), options={"num": 3, "axis": 2}, count=3, version=2, types=_BYTES
        ),
        *move("TILE", (2, 3, 2, 5), (2, 1, 2, 3), version=3, types=_BYTES),
        *move("SPACE_TO_DEPTH", (2, 4, 6, 3), options={"block_size": 2}, version=2, types=_BYTES),
        *move("DEPTH_TO_SPACE", (2, 4, 3, 12), options={"block_size": 2}, version=2, types=_BYTES),
        *move("SQUEEZE", (1, 4, 1, 5), options={"squeeze_dims": (0,)}),
        *move("EXPAND_DIMS", (2, 3, 5), 1, types=_BYTES),
        *move("REVERSE_V2", (2, 4, 3, 5), (3,), types=("uint8", "int16"), version=2),
        *move("BROADCAST_TO", (1, 4, 1, 5), (2, 4, 3, 5), version=2, types=_BYTES),
    ]


def _nearest() -> list[StoredMove]:
    sizes = (((5, 7), (9, 16)), ((13, 20), (6, 7)), ((3, 33), (23, 100)))
    flags: tuple[dict[str, bool], ...] = ({}, {"align_corners": True}, {"half_pixel_centers": True})
    return [
        StoredMove(
            op="RESIZE_NEAREST_NEIGHBOR",
            shape=(2, *size, 5),
            operands=(out,),
            options=tuple(options.items()),
            stored=stored,
            version=3 if options else 2,
        )
        for (size, out), stored in zip(sizes, (*_BYTES, "int8"), strict=True)
        for options in flags
    ]


@dataclass(frozen=True, kw_only=True)
class StoredParts(Case):
    """PACK or CONCATENATION; those numbered in `rescaled` have scales of their own."""

    tolerance: ClassVar[float] = EXACT

    shapes: tuple[Shape, ...]
    axis: int = 3
    op: str = "CONCATENATION"
    stored: str = "int8"
    rescaled: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    kind: str = ORDINARY

    def write(self, sheet: Sheet) -> None:
        """Inputs and constants, one output."""
        params = _params(sheet, self.stored, self.kind)
        inputs = []
        for number, shape in enumerate(self.shapes):
            own = number in self.rescaled
            scales = _params(sheet, self.stored, self.kind) if own else params
            if number in self.constants:
                data = Stored(dtype=self.stored).draw(shape, sheet.random)
                inputs.append(sheet.constant(data, self.stored, scales))
            else:
                inputs.append(sheet.input(shape, Stored(dtype=self.stored), scales))
        counts = {"values_count": len(inputs)} if self.op == "PACK" else {}
        options = {"axis": self.axis, **counts}
        computed = sheet.op(self.op, inputs, options, 2, self.stored, params)
        sheet.output(computed)


def _channels(*counts: int) -> tuple[Shape, ...]:
    return tuple((2, 3, 2, count) for count in counts)


@dataclass(frozen=True, kw_only=True)
class StoredChoice(Case):
    """SELECT_V2 of two quantized tensors; the second may be a constant."""

    tolerance: ClassVar[float] = EXACT

    stored: str = "int8"
    constant: bool = False

    def write(self, sheet: Sheet) -> None:
        """A condition, two operands, one output."""
        params = _params(sheet, self.stored)
        shape, values = (2, 3, 2, 5), Stored(dtype=self.stored)
        condition, first = sheet.input(shape, TRUTH), sheet.input(shape, values, params)
        second = (
            sheet.constant(values.draw((5,), sheet.random), self.stored, params)
            if self.constant
            else sheet.input((1, 1, 2, 5), values, params)
        )
        inputs = [condition, first, second]
        sheet.output(sheet.op("SELECT_V2", inputs, {}, 1, self.stored, params))


@dataclass(frozen=True, kw_only=True)
class StoredOneHot(Case):
    """ONE_HOT with quantized results."""

    tolerance: ClassVar[float] = EXACT

    stored: str = "int8"

    def write(self, sheet: Sheet) -> None:
        """Indices, one output."""
        params = _params(sheet, self.stored)
        indices = sheet.input((2, 3), Range(-1, 7, dtype="int32"))
        on, off = (sheet.constant(np.array(each), self.stored, params) for each in (101, 7))
        inputs = [indices, sheet.constant(6, "int32"), on, off]
        sheet.output(sheet.op("ONE_HOT", inputs, {"axis": -1}, 1, self.stored, params))


CASES: tuple[Case, ...] = (
    *_moves(),
    *_nearest(),
    *(StoredParts(shapes=_channels(4, 8, 3), stored=each) for each in _TYPES),
    *(StoredParts(shapes=_channels(3, 5, 1), stored=each, constants=(1,)) for each in _TYPES),
    StoredParts(shapes=((2, 3, 5), (2, 1, 5)), axis=1),
    *(
        StoredParts(shapes=_channels(*counts), stored="uint8", rescaled=which, kind=kind)
        for kind in (ORDINARY, POWER, WIDE)
        for counts, which in (((4, 8, 5), (0, 2)), ((3, 6), (1,)))
    ),
    StoredParts(shapes=_channels(4, 5), stored="uint8", rescaled=(0, 1), constants=(1,)),
    StoredParts(shapes=((2, 7), (2, 7)), stored="uint8", op="PACK", axis=1),
    StoredParts(shapes=((4, 3, 5),) * 3, op="PACK", axis=0),
    *(StoredChoice(stored=each) for each in _BYTES),
    StoredChoice(constant=True),
    *(StoredOneHot(stored=each) for each in _BYTES),
)
