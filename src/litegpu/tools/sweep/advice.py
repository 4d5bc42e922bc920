"""Recommends the best setting that `--sweep` tried, with the reason."""

from __future__ import annotations

import enum
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.tools.sweep.runs import BUILTIN, Row

_TIE_MARGIN = 0.05
"""Maximum relative increase of the cost at which a more accurate setting is preferred."""


@dataclass(frozen=True)
class Goal:
    """The criterion of the ranking; the lowest cost is the best, and None is not ranked.

    `best` is an adjective for the best setting, `versus` is the text after a factor, and `figure`
    formats a cost.
    """

    name: str
    best: str
    versus: str
    cost: Callable[[Row], float | None]
    figure: Callable[[float], str]


def _us_per_item(row: Row) -> float | None:
    return row.median_us / row.batch


GOALS = {
    goal.name: goal
    for goal in (
        Goal(
            *("throughput", "fastest", "times as fast as", _us_per_item),
            lambda cost: f"{1e6 / cost:.5g} items/s",
        ),
        Goal(
            *("latency", "fastest", "times as fast as", lambda row: row.median_us),
            lambda cost: f"{cost / 1e3:.4g} ms",
        ),
        Goal(
            *("energy", "most frugal", "times less than", lambda row: row.joules),
            lambda cost: f"{cost:.4g} J an item",
        ),
    )
}


def ranked(rows: Sequence[Row], goal: Goal) -> list[Row]:
    """Return the successful rows, the best first; rows without the goal's cost come last."""
    found = [row for row in rows if not row.failed]
    return sorted(found, key=lambda row: (goal.cost(row) is None, goal.cost(row) or 0.0))


@dataclass(frozen=True)
class Recommendation:
    """The recommended flags, the equivalent Python code (None for the CPU), and the reason."""

    row: Row
    flags: str
    python: str | None
    reason: str

    def text(self) -> str:
        """Return the recommendation as a text."""
        how = f", or in Python {self.python}" if self.python is not None else ""
        return f"Set {self.flags}{how}: {self.reason}"

    def lines(self) -> list[str]:
        """Return the settings as lines for copying."""
        python = "no delegate" if self.python is None else self.python
        return [f"flags:  {self.flags}", f"Python: {python}"]


def recommend(
    rows: Sequence[Row],
    goal: Goal,
    tolerance: float,
    threads: int,
    flags: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Recommendation | None:
    """Return the recommended settings; None if no row is within the tolerance.

    Every trial on a GPU uses `flags`, or in Python `options` of GpuDelegate. The best row is the
    first one in the ranking whose error is within the tolerance. A row with nearly the same cost
    replaces the best row if it is more accurate by an order of magnitude.
    """
    order = [row for row in ranked(rows, goal) if goal.cost(row) is not None]
    exact = [row for row in order if _error(row) <= tolerance]
    if not exact:
        return None
    best = exact[0]
    near = [row for row in exact if _cost(row, goal) <= (1 + _TIE_MARGIN) * _cost(best, goal)]
    chosen = min(near, key=lambda row: (_error(row) > _error(best) / 10, _cost(row, goal)))
    way = chosen.way
    every = [*way.flags(), f"--num_threads={threads}", *(flags if way.on_gpu else ())]
    keywords = {"backend": way.backend, "precision": way.precision, **(options or {})}
    listed = ", ".join(f"{name}={_literal(value)}" for name, value in keywords.items())
    python = f"GpuDelegate({listed})" if way.on_gpu else None
    reasons = [f"{goal.figure(_cost(chosen, goal))}{_compared_with_others(chosen, order, goal)}"]
    if chosen.relative_l2 is not None:
        reasons[0] += f", at a relative error of {chosen.relative_l2:.2g}"
    if chosen is not best:
        reasons.append(
            f"{best.way.title} is only a little better ({goal.figure(_cost(best, goal))}) and "
            f"less exact ({_error(best):.2g})"
        )
    if order[0] is not best:
        reasons.append(
            f"{order[0].way.title} would be the {goal.best} "
            f"({goal.figure(_cost(order[0], goal))}), but its error, {_error(order[0]):.2g}, is "
            f"beyond --sweep_tolerance={tolerance:g}"
        )
    return Recommendation(chosen, shlex.join(every), python, f"{'. '.join(reasons)}.")


def _literal(value: Any) -> str:
    """Return a value in Python's syntax; members of enumerations become numbers."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:d}" if isinstance(value, enum.IntEnum | enum.IntFlag) else repr(value)


def _compared_with_others(chosen: Row, order: Sequence[Row], goal: Goal) -> str:
    """Return a comparison of a GPU setting to the best CPU setting, or vice versa."""
    others = [
        row
        for row in order
        if row.way.on_gpu != chosen.way.on_gpu and row.way.batch == chosen.way.batch
    ]
    if not others:
        return ""
    other = others[0]
    times = _cost(other, goal) / (_cost(chosen, goal) or 1e-12)
    rest = "the best of the CPU" if chosen.way.on_gpu else "the best of the GPU"
    return f", {times:.3g} {goal.versus} {rest} ({other.way.title})"


def _cost(row: Row, goal: Goal) -> float:
    cost = goal.cost(row)
    return float("inf") if cost is None else cost


def _error(row: Row) -> float:
    """Return the error of a row relative to the reference, the runtime's built-in kernels."""
    if row.relative_l2 is None:
        return 0.0 if row.way.backend == BUILTIN else float("inf")
    return float("inf") if row.relative_l2 != row.relative_l2 else row.relative_l2
