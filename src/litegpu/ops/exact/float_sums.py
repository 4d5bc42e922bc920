"""Computes quantized ADD and SUB of bytes in float32 where results equal the CPU's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from litegpu.graph import EpilogueOp
from litegpu.ops.exact.integers import Ints, multiply_high, requantized, round_shift
from litegpu.ops.exact.numbers import Multiplier


def _rounded(raised: Ints, by: Multiplier) -> Ints:
    return round_shift(multiply_high(raised, by.number), by.right)


def _floored(raised: Ints, by: Multiplier) -> Ints:
    return multiply_high(raised, by.number) >> by.right


def _whole(raised: Ints, by: Multiplier) -> Ints:
    return multiply_high(raised >> by.right, by.number)


_RESCALED: Mapping[str, tuple[Callable[[Ints, Multiplier], Ints], int]] = {
    "RESCALED_ADD": (_rounded, 1),
    "RESCALED_ADD_FLOORED": (_floored, 1),
    "RESCALED_ADD_WHOLE": (_whole, 1),
    "RESCALED_SUB": (_rounded, -1),
}
"""For each function, the rescaling of an input and the sign of the second input."""


@dataclass(frozen=True, slots=True)
class Side:
    """A quantized input: its integer range, zero point, and multiplier to the common scale.

    `scale` is the real factor from the input's scale to the result's scale.
    """

    limits: tuple[int, int]
    zero: int
    multiplier: Multiplier
    scale: float

    @property
    def stored(self) -> Ints:
        return np.arange(self.limits[0], self.limits[1] + 1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Sum:
    """The CPU's integer computation of the sum of two bytes, by one or several `functions`.

    Several functions compute different elements: the vector body and the scalar tail. `limits` are
    the least and the greatest result.
    """

    functions: tuple[str, ...]
    left: int
    sides: tuple[Side, Side]
    multiplier: Multiplier
    zero: int
    limits: tuple[int, int]

    def results(self) -> Iterator[Ints]:
        """Yield, for each function, the results of all pairs of inputs: [first, second]."""
        for rescale, sign in (_RESCALED[function] for function in self.functions):
            first, second = (
                rescale((side.stored - side.zero) << self.left, side.multiplier)
                for side in self.sides
            )
            sums = first[:, None] + sign * second[None, :]
            yield np.clip(requantized(sums, self.multiplier) + self.zero, *self.limits)


@dataclass(frozen=True, slots=True)
class FloatSum:
    """The float32 formula floor(a * first + (b * second + rest)) for stored integers a and b."""

    first: float
    second: float
    rest: float

    def epilogue_op(self, plain: EpilogueOp) -> EpilogueOp:
        """Return an epilogue op for the float32 formula, with the inputs of `plain`."""
        numbers = (("first", self.first), ("second", self.second), ("rest", self.rest))
        return replace(plain, function="SUM_BY_FLOATS", attributes=numbers)

    def results(self, wanted: Sum, rows: Sequence[int] | None = None) -> Iterator[Ints]:
        """Yield the results of all pairs, for each choice of FMAs that a compiler may make.

        `rows` restricts the pairs to some indices of the first input.
        """
        a, b = (side.stored.astype(np.float32) for side in wanted.sides)
        a = a if rows is None else a[rows]
        first, second, rest = (np.float32(each) for each in (self.first, self.second, self.rest))
        # float64 holds these products and sums exactly: a byte times a float32, close exponents.
        fused = (b.astype(np.float64) * second + rest).astype(np.float32)
        plain = b * second + rest
        for right in (fused,) if np.array_equal(fused, plain) else (fused, plain):
            wide = a.astype(np.float64)[:, None] * first + right[None, :].astype(np.float64)
            narrow = (a * first)[:, None] + right[None, :]
            for total in (wide.astype(np.float32), narrow):
                floored = np.floor(total).astype(np.int64)
                yield np.clip(floored, *wanted.limits)


_STRETCHES = (0.0, 2.0**-20, 2.0**-18, 2.0**-16, 2.0**-14, 2.0**-12)
"""Relative increases of both factors to try, which make half-integers round away from zero."""
_SHIFTS = (0.0, 2.0**-18, -(2.0**-18), 2.0**-16, -(2.0**-16), 2.0**-14, -(2.0**-14))
"""Offsets to try, in steps of the result's scale."""
_BENDS = (0.0, 2.0**-22, -(2.0**-22), 2.0**-20, -(2.0**-20))
"""Relative changes to try for each factor independently."""


def _changes() -> Iterator[tuple[float, float, float]]:
    """Yield the changes to try: (first factor's change, second factor's change, offset)."""
    yield from ((stretch, stretch, shift) for stretch in _STRETCHES for shift in _SHIFTS)
    for first, second in itertools.product(_BENDS, _BENDS):
        yield from ((first, second, shift) for shift in _SHIFTS)


@lru_cache(maxsize=256)
def find(wanted: Sum) -> FloatSum | None:
    """Return float factors that reproduce all results of a sum, or None if the search fails."""
    results, *others = wanted.results()
    if not all(np.array_equal(results, other) for other in others):
        return None
    first, second = wanted.sides
    sign = _RESCALED[wanted.functions[0]][1]
    telling: list[int] = []
    """Rows where earlier candidates failed; checking them first rejects most candidates quickly."""
    for *changes, shift in _changes():
        a, b = (
            float(np.float32(side.scale * (1 + change)))
            for side, change in zip(wanted.sides, changes, strict=True)
        )
        rest = wanted.zero + 0.5 - a * first.zero - sign * b * second.zero + shift
        found = FloatSum(a, sign * b, float(np.float32(rest)))
        if _wrong_row(found.results(wanted, telling), results[telling]) is not None:
            continue
        wrong = _wrong_row(found.results(wanted), results)
        if wrong is None:
            return found
        telling.append(wrong)
    return None


def _wrong_row(found: Iterable[Ints], results: Ints) -> int | None:
    """Return the index of a row with a wrong result, or None if all results are equal."""
    for each in found:
        wrong = np.flatnonzero((each != results).any(axis=1))
        if wrong.size:
            return int(wrong[0])
    return None
