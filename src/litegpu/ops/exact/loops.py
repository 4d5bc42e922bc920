"""Models the loops of CPU kernels, whose vectorized elements round differently."""

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
    """The vectorized part of a loop: the first `end` of each `run` consecutive elements."""

    run: int
    end: int

    @property
    def is_all(self) -> bool:
        return self.end == self.run

    def epilogue(
        self, function: str, epilogue_op: EpilogueOp, tail: EpilogueOp | None = None
    ) -> tuple[EpilogueOp, ...]:
        """Return epilogue ops that apply `function` in the body and `tail` in the tail.

        The functions for body and tail have the operands and attributes of `epilogue_op`. If `tail`
        is None, tail elements stay unchanged.
        """
        if not self.end:
            return () if tail is None else (tail,)
        if self.is_all:
            return (replace(epilogue_op, function=function),)
        ends = (("run", self.run), ("end", self.end))
        attributes = (*epilogue_op.attributes, *ends)
        return (replace(epilogue_op, function=in_body(function), attributes=attributes),)


class Loop(enum.Enum):
    """The access pattern of the CPU's innermost loop over two broadcast inputs."""

    BOTH = "an element of each"
    ONE = "one element of the one, all of the other"
    ANY = "whatever is broadcast, element by element"


@dataclass(frozen=True, slots=True)
class Walk:
    """The CPU's loop over two inputs, which restarts after each `run` elements of the result."""

    loop: Loop
    run: int

    def body(self, vector: int) -> Body:
        """Return the part of the loop that uses vectors of `vector` elements."""
        return Body(self.run, self.run // vector * vector)


def body(shape: Shape, vector: int) -> Body:
    """Return the vectorized part of a single loop over all elements of a shape."""
    return Walk(Loop.BOTH, math.prod(shape)).body(vector)


_KINDS: tuple[Callable[[int, int], bool], ...] = (
    lambda one, other: one == other,
    lambda one, other: one == 1,
    lambda one, other: one == other,
    lambda one, other: other == 1,
    lambda one, other: one == other,
)
"""Conditions on both sizes of an axis, for each of the CPU's nested loops, innermost first."""


def walk(first: Shape, second: Shape) -> Walk:
    """Return the loop over two inputs with these shapes, with broadcasting."""
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
