"""Makes the tables of docs/benchmarks.md, and docs/benchmarks.png, from a result file of rivals.py.

python benchmarks/report.py [--results FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from targets import OURS, RIVAL, Target, best, figure, verdicts

ROOT = Path(__file__).parents[1]
PAGE, CHART = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.png"
RESULTS = ROOT / "benchmarks" / "results" / "h200_rivals.json"
BEGIN = "<!-- From here on written by benchmarks/report.py from a result file: change nothing. -->"
END = "<!-- End of what benchmarks/report.py writes. -->"
DIGEST = "Results"
"""The text field of the picture that tells which figures it shows."""

_INK = "#808080"
"""Can be read on white and on black: the picture itself has no background."""
_NONE = "–"
Result = Mapping[str, Any]
Model = Mapping[str, Any]
Column = tuple[str, Callable[[Model], str]]


# Cells and columns


def number(value: float | None, unit: str = "") -> str:
    """Write three digits; very small numbers as powers of ten."""
    if value is None:
        return _NONE
    if value and abs(value) < 1e-2:
        return f"{value:.1e}{unit}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}{unit}"


def _row(title: str, way: str, field: str) -> Column:
    return title, lambda model: number(figure(model, way, field))


def _best(title: str, rival: str, field: str) -> Column:
    return title, lambda model: number(best(model, rival, field))


def _ratio(title: str, rival: str, ours: str, field: str) -> Column:
    """How many times less `ours` needs than the best row of a rival."""

    def cell(model: Model) -> str:
        over, under = best(model, rival, field), figure(model, ours, field)
        return _NONE if over is None or not under else f"{over / under:.1f}x"

    return title, cell


_BACKENDS = {
    "CUDA": OURS,
    "OpenCL": "litegpu opencl",
    "WebGPU": "litegpu webgpu",
    "OpenGL": "litegpu opengl",
}
_WITH_RIVAL = {**_BACKENDS, "accelerator": RIVAL}
_PRECISIONS = ("fp16", "fp32")
_MODES = {"eager": "eager", "CUDA graph": "graph", "compile": "compile"}

_WHOLE: tuple[Column, ...] = (
    *(
        _row(f"{name} {p}", f"{way} {p}", "whole_ms")
        for name, way in _WITH_RIVAL.items()
        for p in _PRECISIONS
    ),
    _row("XNNPACK, 8 threads", "XNNPACK 8 threads", "whole_ms"),
    _row("XNNPACK, 1 thread", "XNNPACK 1 thread", "whole_ms"),
    *(_best(f"PyTorch {p}, best", f"torch {p}", "whole_ms") for p in _PRECISIONS),
)
_FASTER: tuple[Column, ...] = tuple(
    column
    for p in _PRECISIONS
    for column in (
        _ratio(f"{p}: accelerator", f"{RIVAL} {p}", f"{OURS} {p}", "whole_ms"),
        _ratio(f"{p}: XNNPACK, 8 threads", "XNNPACK 8 threads", f"{OURS} {p}", "whole_ms"),
        _ratio(f"{p}: PyTorch, best", f"torch {p}", f"{OURS} {p}", "whole_ms"),
        _ratio(f"{p}: PyTorch, best, device", f"torch {p}", f"{OURS} {p}", "device_ms"),
    )
)
_DEVICE: tuple[Column, ...] = tuple(
    column
    for p in _PRECISIONS
    for column in (
        _row(f"CUDA {p}", f"{OURS} {p}", "device_ms"),
        _row(f"CUDA {p} with copies", f"{OURS} {p}", "device_with_copies_ms"),
        *(_row(f"{n} {p}, kernel sum", f"{w} {p}", "kernel_sum_ms") for n, w in _BACKENDS.items()),
        *(_row(f"PyTorch {p} {m}", f"torch {p} {w}", "device_ms") for m, w in _MODES.items()),
        _row(
            f"PyTorch {p} compile, even padding",
            f"torch {p} compile, symmetric padding",
            "device_ms",
        ),
    )
)
_CREATION: tuple[Column, ...] = tuple(
    _row(f"{name} {p}", f"{way} {p}", "create_ms")
    for name, way in _WITH_RIVAL.items()
    for p in _PRECISIONS
)
_ACCURACY: tuple[Column, ...] = tuple(
    _row(f"{name} {p}, {title}", f"{way} {p}", field)
    for p in _PRECISIONS
    for name, way in _WITH_RIVAL.items()
    for title, field in (("max", "max_error"), ("norm", "norm_error"))
)

TABLES: tuple[tuple[str, str, tuple[Column, ...]], ...] = (
    (
        "Whole calls",
        "Milliseconds from NumPy arrays to NumPy arrays. CUDA, OpenCL and OpenGL are litegpu's "
        "backends; the accelerator is LiteRT's own (`CompiledModel`).",
        _WHOLE,
    ),
    (
        "How many times faster litegpu's CUDA backend is",
        "Whole calls but for the columns that say device.",
        _FASTER,
    ),
    (
        "Device time",
        "Milliseconds between GPU events, inputs on the device; with copies: from and to pinned "
        "host memory. (Small outputs of litegpu are written straight to the host in both.) "
        "Compile is `torch.compile`, replayed as a CUDA graph; even padding is the same without "
        "the padding steps that TensorFlow's SAME needs in PyTorch (it computes another network). "
        "Kernel sum: each kernel timed by itself.",
        _DEVICE,
    ),
    (
        "Creation",
        "Milliseconds from the bytes of the model to something that can be called, with no "
        "compiled kernel kept on disk.",
        _CREATION,
    ),
    (
        "Accuracy",
        "Against the CPU's built-in kernels, the worst output: max|a−b|/max|b| and ‖a−b‖/‖b‖. "
        "Models that rank what they find, as SSD does, may swap what is nearly equal.",
        _ACCURACY,
    ),
)


# Tables as text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned in plain text too."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def models_table(models: Mapping[str, Model], columns: Sequence[Column]) -> str:
    """Return a line per model; columns without any figure are dropped. Empty if all are."""
    used = [c for c in columns if any(c[1](model) != _NONE for model in models.values())]
    if not used:
        return ""
    rows = ([title, *(cell(model) for _, cell in used)] for title, model in models.items())
    return table(["model", *(title for title, _ in used)], rows)


def targets_table(models: Mapping[str, Model]) -> str:
    """Return a line per target: met, missed, or not measured."""
    rows = []
    for verdict in verdicts(models):
        target = verdict.target
        words = {True: "met", False: "missed", None: "not measured"}
        state = words[verdict.met]
        if verdict.met is None and verdict.value is not None:
            state = f"met where measured (not: {', '.join(verdict.missing)})"
        measured = number(verdict.value, target.unit)
        rows.append((target.name, target.how, _limit(target), measured, verdict.model, state))
    return table(("target", "how measured", "limit", "measured", "worst model", ""), rows)


def _limit(target: Target) -> str:
    return f"{'at least' if target.least else 'at most'} {target.limit:g}{target.unit}"


def failures(models: Mapping[str, Model]) -> list[str]:
    """Return a line per reason, with the ways and the models that it kept from running."""
    found: dict[tuple[str, str], list[str]] = {}
    for title, model in models.items():
        for way, row in {"every way": model, **model["rows"]}.items():
            if "error" in row:
                found.setdefault((row["error"], way), []).append(title)
    ways: dict[tuple[str, str], list[str]] = {}
    for (why, way), titles in found.items():
        ways.setdefault((why, ", ".join(titles)), []).append(way)
    return [f"- {'; '.join(names)} ({titles}): {why}" for (why, titles), names in ways.items()]


def about(result: Result) -> str:
    """Return a paragraph on the machine, the versions and the settings."""
    machine, gpu = result["machine"], result["machine"].get("gpu", {})
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    driver = f", driver {gpu['driver_version']}" if gpu else ""
    commit = f", commit {result['commit']}" if result.get("commit") else ""
    torch = machine.get("torch", {})
    cuda = f"; PyTorch with CUDA {torch['cuda']}, cuDNN {torch['cudnn']}" if torch else ""
    return (
        f"litegpu {result['version']}{commit}, {result['date']}; {gpu.get('name', 'no GPU')}"
        f"{driver}; {machine['cpu_cores']} cores of {machine['cpu']}; {packages}{cuda}. "
        f"{_clocks(result)}Medians of {result['settings']['repeats']} runs; of fewer, three at "
        "least, where one call takes more than 5 ms."
    )


def _clocks(result: Result) -> str:
    rows = (row for model in result["models"].values() for row in model["rows"].values())
    found = [row["clocks"] for row in rows if row.get("clocks")]
    if not found:
        return ""
    sm, memory = (_range(each[name] for each in found) for name in ("clocks.sm", "clocks.mem"))
    return f"Clocks while it ran: SM {sm}, memory {memory}. "


def _range(texts: Iterable[str]) -> str:
    ordered = sorted(texts, key=lambda text: float(text.split()[0]))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def report(result: Result) -> str:
    """Return everything that a result file says, as Markdown."""
    models = result["models"]
    parts = [about(result)]
    for title, text, columns in TABLES:
        found = models_table(models, columns)
        if found:
            parts += [f"### {title}", text, found]
    parts += ["### Targets", targets_table(models)]
    left_out = [f"- not started within the time limit: {name}" for name in result["left_out"]]
    lines = [*failures(models), *left_out]
    if lines:
        parts += ["### Left out", "\n".join(lines)]
    return "\n\n".join(parts)


def page(text: str, result: Result) -> str:
    """Return a page with what is between the two markers written anew.

    Raises ValueError when the page lacks a marker.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page lacks the line {BEGIN} or {END}. Put both back.")
    return f"{before}{BEGIN}\n\n{report(result)}\n\n{END}{after}"


# The picture

_BARS = {
    "litegpu CUDA fp16": (f"{OURS} fp16", "#2e9e4f"),
    "litegpu OpenCL fp16": ("litegpu opencl fp16", "#7fbf7b"),
    "PyTorch fp16, best": ("torch fp16", "#e08214"),
    "LiteRT accelerator fp16": (f"{RIVAL} fp16", "#9b59b6"),
    "XNNPACK, 8 threads": ("XNNPACK 8 threads", "#878787"),
}
"""The way (or how its name begins) and the colour of each bar of a model."""


def chart_data(result: Result) -> dict[str, dict[str, float]]:
    """Return the milliseconds of a whole call by bar and model; bars without any are dropped."""
    found: dict[str, dict[str, float]] = {}
    for label, (way, _) in _BARS.items():
        for title, model in result["models"].items():
            value = best(model, way, "whole_ms")
            if value is not None:
                found.setdefault(label, {})[title.removeprefix("zoo:")] = round(value, 4)
    return found


def digest(data: Mapping[str, Mapping[str, float]]) -> str:
    """Return what tells one picture's figures from another's."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def draw(data: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw the picture: a group of bars for each model. Needs Matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(title for values in data.values() for title in values))
    parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    pyplot.rcParams.update(dict.fromkeys(parts, _INK))
    figure_, axes = pyplot.subplots(figsize=(10, 0.75 * len(models) + 1.6))
    height = 0.8 / len(data)
    for index, (label, values) in enumerate(data.items()):
        rows = [models.index(title) + (index + 0.5) * height - 0.4 for title in values]
        bars = axes.barh(rows, values.values(), height, label=label, color=_BARS[label][1])
        axes.bar_label(bars, [number(value) for value in values.values()], padding=2, fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(models)), models)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a whole call, NumPy to NumPy; shorter is better")
    axes.margins(x=0.1, y=0.01)
    axes.grid(axis="x", color=_INK, alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure_.legend(loc="upper center", ncols=3, frameon=False)
    figure_.tight_layout(rect=(0, 0, 1, 1 - 0.6 / figure_.get_size_inches()[1]))
    about = {DIGEST: digest(data), "Software": None}
    figure_.savefig(path, dpi=120, transparent=True, metadata=about)
    pyplot.close(figure_)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--chart", type=Path, default=CHART)
    settings = parser.parse_args(arguments)
    result = json.loads(settings.results.read_text(encoding="utf-8"))
    written = page(settings.page.read_text(encoding="utf-8"), result)
    settings.page.write_text(written, encoding="utf-8", newline="\n")
    draw(chart_data(result), settings.chart)


if __name__ == "__main__":
    main()
