"""Converts PyTorch architectures with litert-torch, Keras ones with TensorFlow, and tries each.

Every architecture (architectures.py, picture_architectures.py, sequence_architectures.py,
further_architectures.py, keras_architectures.py, keras_layers.py) has random weights and few, small
layers, so that it has the operations of its kind and converts in seconds. Keras models are
converted in float, with float16 weights, with dynamic ranges, and quantized as int8 and as int16
with int8 weights. Each architecture is converted and tested in separate processes: if a process
crashes, the row has the reason.

The table has, for each architecture, how many of its nodes run on the GPU and in how many
partitions and kernels, the relative L2 error against the CPU's built-in kernels at fp32 and at fp16
(integers: the share of elements that differ), the seconds that the creation at fp32 takes, and why
nodes stay on the CPU. All supported nodes are delegated, even if that does not save time. A run
replaces only the rows of the architectures that it tests; the last columns are the backend and the
commit of a row. A creation takes longer if the machine does other work, as it did for most rows of
docs/converted_models.md. The rows since 9e371217639a are of kernels that PoCL did not optimize
(POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable).

Packages, in an environment with litegpu (pip install -e '.[opencl,benchmarks]'):

    pip install torch torchvision litert-torch timm transformers ultralytics tensorflow-cpu
    pip install keras-hub

For example:

    python benchmarks/convert_architectures.py                    # all, on OpenCL
    python benchmarks/convert_architectures.py --only 'swin*' gpt2 'keras_*' --backend cuda
    python benchmarks/convert_architectures.py --list
    python benchmarks/convert_architectures.py --models out/models --page docs/converted_models.md

With `--models` the converted files stay in a folder, and are not converted again: an environment
without PyTorch can try them. With `--json` the results are written after each architecture, and
those in the file that ran are not measured again.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import keras_architectures
import machine
from architectures import ARCHITECTURES
from further_architectures import FURTHER_ARCHITECTURES
from keras_architectures import KERAS_ARCHITECTURES
from litegpu import GpuDelegate
from litegpu.delegation.report import without_tensors
from litegpu.runtime_abi.interpreter import interpreter
from measuring import NO_DRIVER_CACHES, reference_interpreter
from picture_architectures import PICTURE_ARCHITECTURES
from rivals import progress
from sequence_architectures import SEQUENCE_ARCHITECTURES

TORCH_ARCHITECTURES = {
    **ARCHITECTURES,
    **PICTURE_ARCHITECTURES,
    **SEQUENCE_ARCHITECTURES,
    **FURTHER_ARCHITECTURES,
}
"""A builder for each architecture of PyTorch."""

_COLUMNS = (
    *("architecture", "nodes", "on the GPU", "partitions", "kernels", "fp32", "fp16", "seconds"),
    *("on the CPU", "backend", "commit"),
)
_ERROR = re.compile(r"^\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)
"""What the last lines of a failed process say."""
_LONGEST = 160
"""Characters of a reason."""


@dataclass(frozen=True)
class Trial:
    """How a model runs."""

    nodes: int
    delegated: int
    partitions: int
    kernels: int
    seconds: float
    """Of the creation of an interpreter with the delegate, at fp32."""
    errors: tuple[float, float]
    """At fp32 and fp16."""
    reasons: tuple[str, ...]
    backend: str = ""
    commit: str = ""
    """At which the trial ran."""


def convert(name: str, path: Path) -> None:
    """Write the file of an architecture, and its inputs next to it (.npz, in their order)."""
    if name in KERAS_ARCHITECTURES:
        content, arrays = keras_architectures.convert(name)
        np.savez(path.with_suffix(".npz"), *arrays)
        path.write_bytes(content)
        return
    import litert_torch
    import torch

    torch.manual_seed(0)
    model, inputs = TORCH_ARCHITECTURES[name]()
    converted = litert_torch.convert(model.eval(), inputs)
    np.savez(path.with_suffix(".npz"), *(each.numpy() for each in inputs))
    converted.export(str(path))


def attempt(path: Path, backend: str) -> Trial:
    """Run a file on the CPU and on a device, with the inputs next to it."""
    content = path.read_bytes()
    with np.load(path.with_suffix(".npz")) as stored:
        inputs = [stored[name] for name in stored.files]
    expected = _outputs(reference_interpreter(content, 1), inputs)
    errors, report, seconds = [], None, 0.0
    for precision in ("fp32", "fp16"):
        delegate = GpuDelegate(
            backend=backend,
            precision=precision,
            max_delegated_partitions=10_000,
            min_nodes_per_partition=1,
            cache=False,
        )
        start = time.perf_counter()
        target = interpreter(content, delegate)
        seconds = seconds or time.perf_counter() - start
        got = _outputs(target, inputs)
        errors.append(max(itertools.starmap(_error, zip(expected, got, strict=True))))
        report = report or delegate.report
    assert report is not None
    reasons = Counter((each.op, without_tensors(each.reason)) for each in report.rejected)
    left = [f"{len(each.nodes)} nodes: {each.reason}" for each in report.left_out]
    return Trial(
        report.total_nodes,
        len(report.delegated_nodes),
        len(report.partitions),
        sum(each.kernels for each in report.partitions),
        seconds,
        (errors[0], errors[1]),
        (*(f"{count} {op}: {reason}" for (op, reason), count in reasons.items()), *left),
        backend,
        machine.commit(),
    )


def _outputs(target: Any, inputs: Sequence[Any]) -> list[Any]:
    details = sorted(target.get_input_details(), key=lambda each: _place(each["name"]))
    for detail, array in zip(details, inputs, strict=True):
        target.set_tensor(detail["index"], array.astype(detail["dtype"]))
    target.invoke()
    return [target.get_tensor(each["index"]) for each in target.get_output_details()]


def _place(name: str) -> int:
    """Return the place of an input among the arguments, which litert-torch numbers."""
    numbers = re.findall(r"args_(\d+)", name)
    return int(numbers[0]) if numbers else 0


def _error(expected: Any, got: Any) -> float:
    """Return the relative L2 error of floats, and the share of other elements that differ."""
    if expected.dtype.kind != "f":
        return float(np.mean(expected != got))
    if not np.isfinite(expected).all():
        raise SystemExit("ValueError: the CPU's result is not finite.")
    norm = float(np.linalg.norm(expected.astype(np.float64)))
    return float(np.linalg.norm(got.astype(np.float64) - expected)) / (norm or 1.0)


def run(names: Sequence[str], folder: Path, settings: argparse.Namespace) -> dict[str, Trial | str]:
    """Return a trial of each architecture, or why there is none."""
    known = _read(settings.json)
    found: dict[str, Trial | str] = {name: known[name] for name in names if name in known}
    names = [name for name in names if name not in found]
    with progress(len(names)) as say:
        for name in names:
            path = folder / f"{name}.tflite"
            trouble = "" if path.exists() else _alone(settings, "--convert", name, str(path))[1]
            if trouble:
                found[name] = f"not converted: {trouble}"
            else:
                result, trouble = _alone(settings, "--attempt", str(path))
                found[name] = f"failed: {trouble}" if trouble else _trial(json.loads(result))
            say(_line(name, found[name]))
            _write(settings, {**known, **found})
    return {name: found[name] for name in settings.names}


def _read(path: Path | None) -> dict[str, Trial]:
    """Return the trials in a file of results."""
    if path is None or not path.exists():
        return {}
    models = json.loads(path.read_text("utf-8"))["models"]
    return {name: _trial(each) for name, each in models.items() if isinstance(each, dict)}


def _write(settings: argparse.Namespace, found: Mapping[str, Trial | str]) -> None:
    if settings.json:
        data = {n: each if isinstance(each, str) else asdict(each) for n, each in found.items()}
        text = json.dumps({**machine.about(settings), "models": data}, indent=1)
        settings.json.write_text(text, "utf-8")


def _trial(data: dict[str, Any]) -> Trial:
    return Trial(**{**data, "errors": tuple(data["errors"]), "reasons": tuple(data["reasons"])})


def _alone(settings: argparse.Namespace, *arguments: str) -> tuple[str, str]:
    """Run this program once more; return the last line that it printed, and what went wrong."""
    command = [sys.executable, __file__, "--backend", settings.backend, *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=settings.limit, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"It took more than {settings.limit} seconds."
    if ended.returncode:
        said = _ERROR.findall(ended.stderr) or [f"The process ended with {ended.returncode}."]
        return "", said[-1][:_LONGEST]
    return (ended.stdout.splitlines() or [""])[-1], ""


def _line(name: str, found: Trial | str) -> str:
    return "  ".join(cell for cell in _cells(name, found) if cell)


def _cells(name: str, found: Trial | str) -> list[str]:
    """Return a row of the table."""
    if isinstance(found, str):
        return [name, *[""] * (len(_COLUMNS) - 4), found, "", machine.commit()]
    counts = (found.nodes, found.delegated, found.partitions, found.kernels)
    errors = [f"{error:.1e}" for error in found.errors]
    reasons = "; ".join(each[:_LONGEST] for each in found.reasons)
    ends = (found.backend, found.commit)
    return [name, *map(str, counts), *errors, f"{found.seconds:.1f}", reasons, *ends]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown."""
    rows = [_COLUMNS, *rows]
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    rule = f"| {' | '.join(['---'] * len(_COLUMNS))} |"
    return "\n".join([lines[0], rule, *lines[1:]])


def summary(rows: Sequence[Sequence[str]]) -> str:
    """Return how many architectures are whole, and how many are not."""
    tried = [row for row in rows if row[1]]
    whole = sum(row[1] == row[2] and row[3] == "1" for row in tried)
    return f"{len(rows)} architectures, {len(tried)} tried, {whole} whole in one partition."


def page(rows: Sequence[Sequence[str]]) -> str:
    """Return a page of the documentation."""
    packages = machine.facts()["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        "<!-- Generated by benchmarks/convert_architectures.py: do not edit. -->\n\n"
        f"# Converted models\n\n{_paragraphs()}\n\n"
        "Generated by `python benchmarks/convert_architectures.py --page docs/converted_models.md`"
        f", the last rows with {versions}.\n\n"
        f"{summary(rows)}\n\n{table(rows)}\n"
    )


def with_earlier(path: Path, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the rows, and before them the rows of a page for other architectures."""
    text = path.read_text("utf-8") if path.exists() else ""
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    earlier = [[cell.strip() for cell in line] for line in lines[2:]]
    names = {row[0] for row in rows}
    return [*(row for row in earlier if row[0] not in names), *rows]


def _paragraphs() -> str:
    return (__doc__ or "").split("\n\n", 1)[1].split("\n\nPackages", 1)[0]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="names (default: all)")
    add("--list", action="store_true", help="print the names, and do nothing")
    add("--backend", default="opencl", help="of litegpu (default: opencl)")
    add("--models", type=Path, metavar="FOLDER", help="where converted files stay (default: none)")
    add("--limit", type=float, default=600, metavar="SECONDS", help="for each process")
    add("--page", type=Path, metavar="FILE", help="write a page of the documentation")
    add("--json", type=Path, metavar="FILE", help="where the results are")
    add("--convert", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    add("--attempt", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args(arguments)
    known = (*TORCH_ARCHITECTURES, *KERAS_ARCHITECTURES)
    names = [n for n in known if any(fnmatch.fnmatch(n, p) for p in settings.only)]
    if not names:
        parser.error(f"No architecture is called {settings.only}: see --list.")
    settings.names = names
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert and try the architectures; print a table."""
    settings = parse(arguments)
    os.environ.update(NO_DRIVER_CACHES)
    if settings.list:
        print("\n".join(settings.names))
    elif settings.convert:
        convert(settings.convert[0], Path(settings.convert[1]))
    elif settings.attempt:
        print(json.dumps(asdict(attempt(settings.attempt, settings.backend))))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = settings.models or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            found = run(settings.names, folder, settings)
        rows: Sequence[Sequence[str]] = [_cells(name, each) for name, each in found.items()]
        print(f"{table(rows)}\n\n{summary(rows)}")
        if settings.page:
            rows = with_earlier(settings.page, rows)
            settings.page.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main()
