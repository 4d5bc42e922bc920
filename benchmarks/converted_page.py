"""The tables of docs/converted_models.md: how converted models run on backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

import machine
from litegpu.backends import BACKENDS

TOLERANCES = {"fp32": 1e-5, "fp16": 5e-3}
"""The relative error up to which floats agree with the CPU's, for each precision tried."""

_COLUMNS = (
    *("architecture", "nodes", "on the GPU", "partitions", "kernels", "fp32", "fp16", "seconds"),
    *("on the CPU", "backend", "commit"),
)
_BACKEND_COLUMNS = ("architecture", *BACKENDS, "XNNPACK", "1 ulp", "device", "commit")
_FREE = 2
"""An error stands out if it is more than this many times the CPU's own spread."""
MAX_REASON = 160
"""Characters of a reason."""
_BACKENDS_HEADING = "## Backends of one machine"
_HEADING = "## Nodes and kernels"


@dataclass(frozen=True)
class Trial:
    """How a model runs on a backend, at a precision."""

    nodes: int
    delegated: int
    partitions: int
    kernels: int
    seconds: float
    """Of the creation of an interpreter with the delegate."""
    error: float
    """The greatest relative L2 error of an output of floats."""
    differing: float
    """The greatest share of elements of another output that differ."""
    reasons: tuple[str, ...] = ()
    """Why nodes stay on the CPU."""
    device: str = ""
    commit: str = ""
    """At which the trial ran."""

    @property
    def whole(self) -> bool:
        """Whether all nodes are in one partition."""
        return (self.delegated, self.partitions) == (self.nodes, 1)

    @property
    def shown_error(self) -> str:
        """Return the greater of the error and the share that differs."""
        return shown((self.error, self.differing))


Errors: TypeAlias = tuple[float, float]
"""The greatest relative L2 error of an output of floats, and share of others that differ."""


@dataclass(frozen=True)
class Spread:
    """How far apart results of a model on the CPU are."""

    kernels: Errors
    """Of the runtime's default kernels, against its built-in ones."""
    inputs: Errors | None
    """Of the built-in kernels if each input of floats changes by one ulp; None without any."""

    @property
    def errors(self) -> Errors:
        """Return the greater errors of the two."""
        both = np.array([self.kernels, self.inputs or self.kernels])
        error, differing = both.max(axis=0).tolist()
        return error, differing


def shown(errors: Errors) -> str:
    """Return the greater of an error and a share that differs."""
    return f"{np.maximum(*errors):.1e}"


Trials: TypeAlias = Mapping[tuple[str, str], Trial | str]
"""The trials of a model by backend and precision, or why there is none."""
Row: TypeAlias = Sequence[str]


def accurate(trial: Trial, precision: str, spread: Spread | None) -> bool:
    """Return whether floats are within the tolerance and others equal, or all within the spread."""
    error, differing = spread.errors if spread else (0.0, 0.0)
    return (
        trial.error <= max(TOLERANCES[precision], _FREE * error)
        and trial.differing <= _FREE * differing
    )


def row(name: str, trials: Trials | str, backend: str) -> Row | None:
    """Return a row of the table of nodes and kernels; None without a trial on the backend."""
    end = (backend, machine.commit())
    if isinstance(trials, str):
        return [name, *[""] * (len(_COLUMNS) - 4), trials, "", end[1]]
    both = [trials.get((backend, precision)) for precision in TOLERANCES]
    reason = next((each for each in both if isinstance(each, str)), None)
    if reason is not None:
        return [name, *[""] * (len(_COLUMNS) - 4), reason, *end]
    first = both[0]
    if not isinstance(first, Trial):
        return None
    counts = (first.nodes, first.delegated, first.partitions, first.kernels)
    errors = [each.shown_error if isinstance(each, Trial) else "" for each in both]
    reasons = "; ".join(each[:MAX_REASON] for each in first.reasons)
    commit = first.commit or machine.commit()
    return [name, *map(str, counts), *errors, f"{first.seconds:.1f}", reasons, backend, commit]


def backends_row(name: str, trials: Trials | str, spread: Spread | None) -> Row | None:
    """Return a row of the table with a column for each backend; None without a trial."""
    if isinstance(trials, str) or not trials:
        return None
    ran = [each for each in trials.values() if isinstance(each, Trial)]
    device = next((each.device for each in ran), "")
    commit = next((each.commit for each in ran if each.commit), machine.commit())
    cells = (_backend_cell(trials, backend, spread) for backend in BACKENDS)
    spreads = (spread.kernels, spread.inputs) if spread else (None, None)
    return [name, *cells, *(shown(each) if each else "" for each in spreads), device, commit]


def _backend_cell(trials: Trials, backend: str, spread: Spread | None) -> str:
    parts = []
    for precision in TOLERANCES:
        trial = trials.get((backend, precision))
        if isinstance(trial, str):
            parts.append(f"**{trial}**")
        elif trial is not None:
            text = trial.shown_error
            if not trial.whole:
                text = (
                    f"{trial.delegated} of {trial.nodes} nodes in {trial.partitions} "
                    f"partitions, {text}"
                )
            bold = not (trial.whole and accurate(trial, precision, spread))
            parts.append(f"**{text}**" if bold else text)
    return " / ".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Return rows of nodes and kernels as a table of Markdown."""
    return _table(_COLUMNS, rows)


def backends_table(rows: Sequence[Row]) -> str:
    """Return rows with a column for each backend as a table of Markdown."""
    return _table(_BACKEND_COLUMNS, rows)


def _table(columns: Row, rows: Sequence[Row]) -> str:
    rows = [columns, *rows]
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    rule = f"| {' | '.join(['---'] * len(columns))} |"
    return "\n".join([lines[0], rule, *lines[1:]])


def summary(rows: Sequence[Row]) -> str:
    """Return how many architectures are whole, and how many are not."""
    tried = [row for row in rows if row[1]]
    whole = sum(row[1] == row[2] and row[3] == "1" for row in tried)
    return f"{len(rows)} architectures, {len(tried)} tried, {whole} whole in one partition."


def backends_summary(rows: Sequence[Row]) -> str:
    """Return on how many architectures each backend was tried, and how many pass."""
    parts = []
    for place, backend in enumerate(BACKENDS, 1):
        cells = [row[place] for row in rows if row[place]]
        passed = sum("**" not in cell for cell in cells)
        parts.append(f"{backend} {passed} of {len(cells)}")
    return f"Whole in one partition and accurate: {', '.join(parts)}."


def write_page(path: Path, text: str, rows: Sequence[Row], backends: Sequence[Row]) -> None:
    """Write a page of the documentation: new rows replace earlier ones of their architectures.

    Args:
        path: the page; it may exist.
        text: what it says first.
        rows: of the table of nodes and kernels.
        backends: of the table with a column for each backend.
    """
    rows = _merged(_earlier(path, _HEADING), rows)
    backends = _merged(_earlier(path, _BACKENDS_HEADING), backends)
    parts = [
        "<!-- Generated by benchmarks/convert_architectures.py: do not edit. -->",
        f"# Converted models\n\n{text}",
        *([f"{_BACKENDS_HEADING}\n\n{_backends_text(backends)}"] if backends else []),
        f"{_HEADING}\n\n{summary(rows)}\n\n{table(rows)}\n",
    ]
    path.write_text("\n\n".join(parts), "utf-8")


def _backends_text(rows: Sequence[Row]) -> str:
    limits = " or ".join(f"{limit:.0e} at {name}" for name, limit in TOLERANCES.items())
    text = (
        "A cell has the errors at fp32 and at fp16. XNNPACK is the error of the runtime's default\n"
        "kernels, against the same built-in ones; 1 ulp is how much the result of the built-in\n"
        "kernels changes if each input of floats changes by one unit in the last place. What is\n"
        f"**bold** failed, is not whole in one partition, or has an error of more than {limits}\n"
        f"(integers: 0) that is also more than {_FREE} times the greater of these two. What is\n"
        "empty was not tried, or has no inputs of floats.\n\n"
    )
    return f"{text}{backends_summary(rows)}\n\n{backends_table(rows)}"


def _earlier(path: Path, heading: str) -> list[Row]:
    """Return the rows of the table under a heading of a page."""
    text = path.read_text("utf-8") if path.exists() else ""
    section = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    lines = [line[2:-2].split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def _merged(earlier: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and before them those of other architectures."""
    names = {row[0] for row in rows}
    return [*(row for row in earlier if row[0] not in names), *rows]
