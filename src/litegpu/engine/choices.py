"""Selects one of several candidate kernels for each problem of a program."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")


class Tuning(enum.Enum):
    """The ways to select among candidate kernels."""

    ESTIMATED = "the ops' own estimates"
    CACHED = "cached measurements; estimates for the rest"
    MEASURED = "cached measurements; new measurements for the rest"


@dataclass
class Choices:
    """Selects a candidate for each problem by its text: a given index, or else the first one."""

    selected: Mapping[str, int] = field(default_factory=dict)
    queried: dict[str, int] = field(default_factory=dict)
    """The number of candidates of each problem for which a kernel was selected."""

    def choose(self, problem: str, candidates: Sequence[_T]) -> _T:
        """Return the selected candidate; an index that is out of range is replaced by 0."""
        self.queried[problem] = len(candidates)
        number = self.selected.get(problem, 0)
        return candidates[number if number < len(candidates) else 0]
