"""In which loops the CPU computes the elements of a result: vectors have other roundings."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from litegpu.graph import EpilogueOp
from litegpu.ops.base import Shape
from litegpu.ops.exact.functions import in_body


@dataclass(frozen=True, slots=True)
class Body:
    """Of each `run` elements that follow each other, the first `end` are computed in vectors."""

    run: int
    end: int

    @property
    def is_all(self) -> bool:
        return self.end == self.run

    def epilogue(
        self, function: str, epilogue_op: EpilogueOp, tail: EpilogueOp | None = None
    ) -> tuple[EpilogueOp, ...]:
        """Return an epilogue op with one function in the body, another in the tail.

        `epilogue op` has the operands and attributes of both in one. None: the tail is left as it
        is.
        """
        if not self.end:
            return () if tail is None else (tail,)
        if self.is_all:
            return (replace(epilogue_op, function=function),)
        ends = (("run", self.run), ("end", self.end))
        attributes = (*epilogue_op.attributes, *ends)
        return (replace(epilogue_op, function=in_body(function), attributes=attributes),)


class Loop(enum.Enum):
    """What the innermost loop over two inputs reads of them."""

    BOTH = "an element of each"
    ONE = "one element of the one, all of the other"
    ANY = "whatever is broadcast, element by element"


@dataclass(frozen=True, slots=True)
class Walk:
    """The loop over two inputs: `run` elements of the result, then all over again."""

    loop: Loop
    run: int

    def body(self, vector: int) -> Body:
        """Return the elements that are computed in vectors of a size."""
        return Body(self.run, self.run // vector * vector)


def body(shape: Shape, vector: int) -> Body:
    """Return the elements of a value that one loop over all of them computes in vectors."""
    return Walk(Loop.BOTH, math.prod(shape)).body(vector)


_KINDS: tuple[Callable[[int, int], bool], ...] = (
    lambda one, other: one == other,
    lambda one, other: one == 1,
    lambda one, other: one == other,
    lambda one, other: other == 1,
    lambda one, other: one == other,
)
"""The dimensions that the CPU has loops for, the innermost first: `one` is broadcast there."""


def walk(first: Shape, second: Shape) -> Walk:
    """Return the loop over two inputs that are broadcast."""
    rank = max(len(first), len(second))
    one, other = ((1,) * (rank - len(shape)) + shape for shape in (first, second))
    differing = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    if differing and differing[-1][0] != 1:
        one, other = other, one
    left = list(zip(one, other, strict=True))
    runs = []
    for fits in _KINDS:
        run = 1
        while left and fits(*left[-1]):
            run *= max(left.pop())
        runs.append(run)
    if left:
        return Walk(Loop.ANY, math.prod(map(max, one, other)))
    return Walk(Loop.BOTH, runs[0]) if runs[0] > 1 or not differing else Walk(Loop.ONE, runs[1])
