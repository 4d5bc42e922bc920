"""Cases of ops that reinterpret the bytes of a tensor as another type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cases.base import ANY, EXACT, TRUTH, Array, Case, Range, Shape, Sheet
from cases.integers import Edges


@dataclass(frozen=True)
class Words(Range):
    """Elements of a type whose bytes are those of finite floats, also of smaller ones."""

    def scaled(self, factor: float) -> Words:
        """Return the same: floats that are multiplied might be infinite as halves."""
        return self

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements: each 2 bytes are a half between 1 and 2, or less than 0."""
        nbytes = int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        words = random.integers(0x3C00, 0x4000, -(-nbytes // 2), np.uint16)
        signed = words | random.choice(np.array([0, 0x8000], np.uint16), words.shape)
        return np.asarray(signed.view(np.uint8)[:nbytes].view(self.dtype).reshape(shape))


@dataclass(frozen=True, kw_only=True)
class Bits(Case):
    """A tensor of one type as one of another."""

    tolerance: ClassVar[float] = EXACT

    given: str = "float32"
    result: str = "int32"
    shape: Shape = (2, 3, 5)

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        if self.given == "bool":
            values = TRUTH
        elif self.result in _WHOLE:
            known = {"float32": ANY, **{whole: Edges(dtype=whole) for whole in _WHOLE}}
            values = known.get(self.given, Words(dtype=self.given))
        else:
            values = Words(dtype=self.given)
        ratio = np.dtype(self.result).itemsize // np.dtype(self.given).itemsize
        shape = (*self.shape, ratio) if ratio > 1 else self.shape
        sheet.output(sheet.op("BITCAST", [sheet.input(shape, values)], dtype=self.result))


_WHOLE = ("int8", "uint8", "int16", "int32", "int64")
TYPES = (*_WHOLE, "uint16", "uint32", "uint64", "float16", "float32", "float64", "complex64")

CASES: tuple[Case, ...] = (
    *(Bits(given=given, result=result) for given in TYPES for result in TYPES if given != result),
    Bits(result="float32"),
    Bits(given="bool", result="uint8"),
    Bits(given="bool", result="int32"),
    *(
        Bits(given="int8", result="float32", shape=shape)
        for shape in ((), (1,), (9,), (2, 2, 3, 8))
    ),
    *(Bits(result="int16", shape=shape) for shape in ((1,), (3, 4), (2, 1, 2, 3, 5))),
)
