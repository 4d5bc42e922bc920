"""Formats the results of `--sweep` as a printed ranking, CSV or JSON."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import Any

from litegpu.tools.console import print_table, print_text
from litegpu.tools.stats import figure
from litegpu.tools.sweep.advice import Goal, Recommendation, ranked
from litegpu.tools.sweep.runs import BUILTIN, CPU, Combination, Row


@dataclass
class Sweep:
    """The results so far, and unavailable backends with the reasons."""

    model: str
    threads: int
    absent: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    left: list[Combination] = field(default_factory=list)


def title(way: Combination) -> str:
    """Return the name of a setting, including the batch."""
    return f"{way.title}, batch {way.batch}" if way.batch else way.title


def print_sweep(found: Sweep, goal: Goal, best: Recommendation | None, tolerance: float) -> None:
    """Print the ranking, a line for each unranked setting, and the recommendation."""
    columns, rows = ranking(found, goal)
    if rows:
        print_table(columns, rows)
    print()
    for line in without_rank(found):
        print_text(line, "  ")
    if rows:
        print_text(reference(found), "  ")
    if best:
        print_text(f"Best: {title(best.row.way)}, {best.reason}", "  ")
        print(*(f"  {line}" for line in best.lines()), sep="\n")
    elif said := advice(found, goal, best, tolerance):
        print_text(said, "  ")


def ranking(found: Sweep, goal: Goal) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of successful settings, the best first."""
    rows = ranked(found.rows, goal)
    joules = any(row.joules is not None for row in rows)
    columns = [">rank", "way", ">batch", ">median ms", "?>p90 ms", "?>p99 ms", ">items/s"]
    columns += ["?>init ms", "?>nodes on GPU", "?>max error", ">relative L2"]
    columns += [">J/item"] if joules else []
    return columns, [_cells(index, row, joules) for index, row in enumerate(rows, 1)]


def without_rank(found: Sweep) -> list[str]:
    """Return a line for each unranked setting: failed, unavailable or not tried."""
    return [
        *(f"{title(row.way)}: {row.reason}" for row in found.rows if row.failed),
        *(f"{name}: no usable device. {reason}" for name, reason in found.absent.items()),
        *(f"{title(way)}: not tried." for way in found.left),
    ]


def advice(found: Sweep, goal: Goal, best: Recommendation | None, tolerance: float) -> str:
    """Return the recommendation, or why there is none; empty if all settings failed."""
    if best:
        return best.text()
    if all(row.failed for row in found.rows):
        return ""
    return (
        f"No configuration is recommended, because none has both {goal.name} and an error within "
        f"--sweep_tolerance={tolerance:g}."
    )


def reference(found: Sweep) -> str:
    """Return an explanation of the figures."""
    return (
        f"{found.threads} CPU threads. Errors are against the CPU's {_reference_way(found)}, of "
        "the worst output, on the same random inputs; times are of invoke()."
    )


def _reference_way(found: Sweep) -> str:
    builtin = [row for row in found.rows if row.way.backend == BUILTIN and not row.failed]
    return BUILTIN if builtin else f"{CPU} (the built-in kernels do not run this model)"


def _cells(position: int, row: Row, joules: bool) -> list[str]:
    cells = [str(position), row.way.title + " (software)" * row.software, str(row.batch)]
    cells += [f"{us / 1e3:.3f}" for us in (row.median_us, row.p90_us, row.p99_us)]
    cells += [f"{row.items_per_second:.5g}", f"{row.init_us / 1e3:.0f}"]
    cells.append(f"{row.nodes[0]} of {row.nodes[1]}" if row.nodes else "")
    for error in (row.max_error, row.relative_l2):
        cells.append("" if error is None else f"{error:.2e}")
    if joules:
        cells.append("" if row.joules is None else figure(row.joules))
    return cells


_REPORTED = ("software", "init_us", "median_us", "p90_us", "p99_us", "max_error", "relative_l2")


def _reported(row: Row, rank: int | None) -> dict[str, Any]:
    """Return a row as plain data; a failed row has no figures."""
    figures = {name: None if row.failed else getattr(row, name) for name in _REPORTED}
    nodes = row.nodes or (None, None)
    return {
        "rank": rank,
        "device": "gpu" if row.way.on_gpu else "cpu",
        "backend": row.way.backend,
        "precision": row.way.precision or "fp32",
        "batch": row.way.batch if row.failed else row.batch,
        **figures,
        "items_per_second": None if row.failed else row.items_per_second,
        "joules_per_item": row.joules,
        "nodes_on_gpu": nodes[0],
        "nodes": nodes[1],
        "flags": " ".join(row.way.flags()),
        "reason": row.reason,
    }


def _table(found: Sweep, goal: Goal) -> list[dict[str, Any]]:
    order = ranked(found.rows, goal)
    reported = [_reported(row, index) for index, row in enumerate(order, 1)]
    return [*reported, *(_reported(row, None) for row in found.rows if row.failed)]


def as_csv(found: Sweep, goal: Goal) -> str:
    """Return the ranking as CSV, followed by the failures, with a header line."""
    target = io.StringIO()
    table = _table(found, goal)
    names = list(_reported(Row(Combination("", "", 0)), None))
    writer = csv.DictWriter(target, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return target.getvalue()


def as_json(found: Sweep, goal: Goal, best: Recommendation | None) -> dict[str, Any]:
    """Return all results as plain data for JSON."""
    return {
        "model": found.model,
        "goal": goal.name,
        "threads": found.threads,
        "reference": _reference_way(found),
        "rows": _table(found, goal),
        "absent": found.absent,
        "not_tried": [title(way) for way in found.left],
        "recommended": None
        if best is None
        else {"flags": best.flags, "python": best.python, "reason": best.reason},
    }
