"""The report page of `--sweep`: recommendation, speed and error of each setting, failures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from litegpu.tools.reports.charts import bars
from litegpu.tools.reports.sections import Page, Section, Table, Text
from litegpu.tools.sweep.advice import Goal, Recommendation, ranked
from litegpu.tools.sweep.runs import Row
from litegpu.tools.sweep.text import Sweep, advice, ranking, reference, title, without_rank


def sweep_page(found: Sweep, goal: Goal, best: Recommendation | None, tolerance: float) -> Page:
    """Return all results as a page."""
    rows = ranked(found.rows, goal)
    sections: list[Section] = []
    if rows:
        sections += [_throughput(rows), _errors(rows, tolerance)]
        sections.append(Table("Ranking", *ranking(found, goal), reference(found)))
    if rest := without_rank(found):
        sections.append(Text("Not in the ranking", rest))
    verdict = advice(found, goal, best, tolerance)
    return Page("benchmark_model --sweep", found.model, verdict, sections)


def _throughput(rows: Sequence[Row]) -> Section:
    return bars(
        "Throughput",
        [title(row.way) for row in rows],
        [row.items_per_second for row in rows],
        "items a second",
        hints=[
            f"{title(row.way)}: {row.items_per_second:.5g} items/s, median "
            f"{row.median_us / 1e3:.3f} ms, p99 {row.p99_us / 1e3:.3f} ms"
            for row in rows
        ],
        colours=[_colour(row) for row in rows],
        note="Blue is the GPU, orange the CPU.",
    )


def _errors(rows: Sequence[Row], tolerance: float) -> Section:
    """Return the errors for a chart, without the reference and without infinite errors."""
    found = [(row, row.relative_l2) for row in rows if row.relative_l2 is not None]
    drawn = [(row, error) for row, error in found if 0 < error < math.inf]
    return bars(
        "Error",
        [title(row.way) for row, _ in drawn],
        [error for _, error in drawn],
        "relative L2",
        hints=[f"{title(row.way)}: {error:.3g}" for row, error in drawn],
        colours=["--hot" if error > tolerance else _colour(row) for row, error in drawn],
        note=f"Red is more than --sweep_tolerance={tolerance:g}.",
        log=True,
    )


def _colour(row: Row) -> str:
    return "--gpu0" if row.way.on_gpu else "--cpu"
