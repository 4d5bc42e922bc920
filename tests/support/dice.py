"""Random choices with one interface for hypothesis and for a seeded generator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from cases.base import Pair, Shape

_T = TypeVar("_T")
MAX_RANK = 6
_CHANNELS: tuple[int, ...] = (*range(1, 10), 12, 16, 17, 33)


class Dice(ABC):
    """Draws whole numbers, and what is made of them."""

    @abstractmethod
    def number(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`."""

    def flag(self) -> bool:
        """Draw a truth value."""
        return self.number(0, 1) == 1

    def one_of(self, *choices: _T) -> _T:
        """Draw one of several things; the first ones are the simplest."""
        return choices[self.number(0, len(choices) - 1)]

    def pair(self, low: int, high: int) -> Pair:
        """Draw two numbers."""
        return self.number(low, high), self.number(low, high)

    def channels(self) -> int:
        """Draw a number of channels: all small ones, and some large."""
        return self.one_of(*_CHANNELS)

    def image(self) -> Shape:
        """Draw the shape of a batch of images."""
        return self.number(1, 3), self.number(1, 9), self.number(1, 8), self.channels()

    def shape(self, lowest: int = 0, highest: int = MAX_RANK) -> Shape:
        """Draw a shape of a rank between the two."""
        rank = self.number(lowest, highest)
        sizes = [self.number(1, 5 if rank < 4 else 3) for _ in range(rank)]
        if rank and self.flag():
            sizes[-1] = self.channels()
        return tuple(sizes)

    def broadcast(self, shape: Shape) -> Shape:
        """Draw a shape that can be broadcast to another one: of lower rank, or with ones."""
        part = shape[self.number(0, len(shape)) if self.number(0, 2) == 0 else 0 :]
        return tuple(1 if self.number(0, 3) == 0 else size for size in part)

    def axis(self, rank: int) -> int:
        """Draw an axis, counted from the front or from the back."""
        return self.number(-rank, rank - 1)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Draw at least one of so many axes, each from the front or from the back."""
        chosen = [axis for axis in range(rank) if self.flag()] or [self.number(0, rank - 1)]
        return tuple(axis - rank if self.flag() else axis for axis in chosen)

    def divisor(self, number: int) -> int:
        """Draw a divisor."""
        return self.one_of(*(each for each in range(1, number + 1) if number % each == 0))

    def order(self, count: int) -> tuple[int, ...]:
        """Draw a permutation."""
        left = list(range(count))
        return tuple(left.pop(self.number(0, len(left) - 1)) for _ in range(count))


class Drawn(Dice):
    """Chance by hypothesis."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def number(self, low: int, high: int) -> int:
        found: int = self._draw(st.integers(low, high))
        return found


class Seeded(Dice):
    """Chance by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high + 1))
