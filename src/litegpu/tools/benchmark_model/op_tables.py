"""Prints the time of each op in the table format of TensorFlow Lite's tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.tools.proto import Proto
from litegpu.tools.stats import Stats


@dataclass(frozen=True)
class Row:
    """One op of a run, and its time."""

    kind: str
    name: str
    ms: float


@dataclass(frozen=True)
class Block:
    """The ops of one graph or of one delegate, and the times of whole runs in µs."""

    rows: tuple[Row, ...]
    timings: Stats
    delegate: str = ""

    @property
    def total_ms(self) -> float:
        """The total time of all ops in milliseconds."""
        return sum(row.ms for row in self.rows)


_TOP = 10
"""Number of rows in the table of the slowest ops."""
_NODE_WIDTHS = (24, 9, 9, 8, 8, 10, 9)
_NODES = ("node type", "first", "avg ms", "%", "cdf%", "mem KB", "times called", "Name")
_NODES_CSV = ("node type", "first", "avg_ms", "%", "cdf%", "mem KB", "times called", "name")
_TYPE_WIDTHS = (24, 9, 10, 11, 11, 10, 10)
_TYPE_ROW_WIDTHS = (24, 9, 10, 11, 11, 10, 9)
_TYPES = ("Node type", "count", "avg ms", "avg %", "cdf %", "mem KB", "times called")
_TYPES_CSV = ("node type", "count", "avg_ms", "avg %", "cdf %", "mem KB", "times called")

_Line = Callable[[Sequence[str], Sequence[int]], str]


def block_text(block: Block, csv: bool = False) -> str:
    """Return all tables of a block."""
    line = _comma_line if csv else _tab_line
    slowest = sorted(block.rows, key=lambda row: -row.ms)[:_TOP]
    memory = Stats()
    parts = [
        *_nodes("Run Order", block.rows, block.total_ms, line, csv),
        *_nodes("Top by Computation Time", slowest, block.total_ms, line, csv),
        f"Number of nodes executed: {len(block.rows)}",
        *_types(block, line, csv),
        f"Timings (microseconds): {block.timings.text()}",
        f"Memory (bytes): {memory.text()}",
        f"{len(block.rows)} nodes observed",
        "",
    ]
    return "\n".join(parts)


def _title(text: str) -> str:
    return f"{'=' * 30} {text} {'=' * 30}"


def _tab_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
    return "".join(f"\t{cell}" for cell in [*padded, *cells[len(widths) :]])


def _comma_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return ", ".join(cells)


def _heading(names: Sequence[str], csv: bool) -> list[str]:
    return list(names) if csv else [f"[{name}]" for name in names]


def _nodes(title: str, rows: Sequence[Row], total: float, line: _Line, csv: bool) -> Iterable[str]:
    yield _title(title)
    yield line(_heading(_NODES_CSV if csv else _NODES, csv), _NODE_WIDTHS)
    passed = 0.0
    for row in rows:
        passed += row.ms
        time, shares = f"{row.ms:.3f}", (_percent(row.ms, total), _percent(passed, total))
        yield line((row.kind, time, time, *shares, "0.000", "1", row.name), _NODE_WIDTHS)
    yield ""


def _types(block: Block, line: _Line, csv: bool) -> Iterable[str]:
    yield _title("Summary by node type")
    yield line(_heading(_TYPES_CSV if csv else _TYPES, csv), _TYPE_WIDTHS)
    groups: dict[str, list[float]] = {}
    for row in block.rows:
        groups.setdefault(row.kind, []).append(row.ms)
    passed = 0.0
    ordered = sorted(groups.items(), key=lambda each: (sum(each[1]), each[0]), reverse=True)
    for kind, times in ordered:
        count, total = str(len(times)), sum(times)
        passed += total
        shares = (_percent(total, block.total_ms), _percent(passed, block.total_ms))
        yield line((kind, count, f"{total:.3f}", *shares, "0.000", count), _TYPE_ROW_WIDTHS)
    yield ""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.3f}%"


def profile_message(model: str, init: Block, runs: Sequence[Block]) -> Proto:
    """Return the profile as the message BenchmarkProfilingData."""
    return Proto(
        (
            (1, "model_name", model),
            (2, "init_profile", _model_message([init])),
            (3, "runtime_profile", _model_message(runs)),
        )
    )


def _model_message(blocks: Sequence[Block]) -> Proto:
    names = {False: (1, "subgraph_profiles"), True: (2, "delegate_profiles")}
    return Proto(tuple((*names[bool(block.delegate)], _block_message(block)) for block in blocks))


def _block_message(block: Block) -> Proto:
    """Return a block as SubGraphProfilingData or, for a delegate, as DelegateProfilingData."""
    ops = [
        Proto(
            (
                (1, "node_type", row.kind),
                (2, "inference_microseconds", _stat(round(row.ms * 1e3))),
                (3, "mem_kb", Proto(((9, "count", 0),))),
                (4, "times_called", 1),
                (5, "name", row.name),
                (6, "run_order", index),
            )
        )
        for index, row in enumerate(block.rows)
    ]
    if block.delegate:
        named = (1, "delegate_name", block.delegate)
        return Proto((named, *((2, "per_op_profiles", op) for op in ops)))
    return Proto(((2, "subgraph_index", 0), *((3, "per_op_profiles", op) for op in ops)))


def _stat(us: int) -> Proto:
    """Return the statistics of one value as the message OpProfilingStat."""
    flat = np.float32(0)
    names = ("first", "last", "avg", "stddev", "variance", "min", "max", "sum", "count")
    values = (us, us, us, flat, flat, us, us, us, 1)
    return Proto(tuple(zip(range(1, 10), names, values, strict=True)))
