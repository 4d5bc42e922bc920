"""Which of several ways to do the same a program takes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")


class Tuning(enum.Enum):
    """What decides among candidates."""

    ESTIMATED = "the ops' own estimates"
    CACHED = "what was measured before and kept; estimates for the rest"
    MEASURED = "what was kept; measurements for the rest"


@dataclass
class Choices:
    """Chooses among candidates by the text of a problem: the number it was told, or the first."""

    selected: Mapping[str, int] = field(default_factory=dict)
    queried: dict[str, int] = field(default_factory=dict)
    """How many candidates each problem had that was asked about."""

    def choose(self, problem: str, candidates: Sequence[_T]) -> _T:
        """Return one of the candidates; a number that is none of theirs counts as 0."""
        self.queried[problem] = len(candidates)
        number = self.selected.get(problem, 0)
        return candidates[number if number < len(candidates) else 0]
