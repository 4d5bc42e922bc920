"""Converts PyTorch architectures with litert-torch, Keras ones with TensorFlow, and tries each.

Every architecture (architectures.py, picture_architectures.py, sequence_architectures.py,
further_architectures.py, keras_architectures.py, keras_layers.py) has random weights and few, small
layers, so that it has the operations of its kind and converts in seconds. Keras models are
converted in float, with float16 weights, with dynamic ranges, and quantized as int8 and as int16
with int8 weights. Each architecture is converted and tested in separate processes, one for each
backend and precision: if a process crashes, the row has the reason.

Errors are relative L2 errors against the CPU's built-in kernels (integers: the share of elements
that differ). All supported nodes are delegated, even if that does not save time. The table of nodes
and kernels has, for each architecture, how many of its nodes run on the GPU and in how many
partitions and kernels, the errors, the seconds that the creation at fp32 takes, and why nodes stay
on the CPU, on the first backend. A run with several backends also has a table with a column for
each, and with how far apart results of the CPU itself are. A run replaces only the rows of the
architectures that it tests; the last columns are the device or backend and the commit of a row. A
creation takes longer if the machine does other work, as it did for most rows of
docs/converted_models.md. The rows since 9e371217639a on PoCL are of kernels that it did not
optimize (POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable).

The rows on cuda and the table of several backends are of one NVIDIA H200 with driver 580.159.04, at
commit 7529cdf51f63. The constants of more than 4 KiB of these models were drawn again: they have
the distribution of those that the converters wrote, but are not the same numbers. At fp16, values
of less than 8 MiB and weights of less than 256 KiB stay float32 by design
([numerics](numerics.md)), so that the errors of small models are often those at fp32.

One cell stands out, keras_efficientnet_float on opencl at fp16. If the weights of 14 of its 15
layers of 256 KiB or more are rounded to half, the CPU's own result also changes by 5.0e-2, to
within 4e-4 of what opencl gives on PoCL. The errors of keras_mobilenet_v3_int16x8 on webgpu and
opengl were of HARD_SWISH between int16 tensors; on llvmpipe, it has none on opengl after that
commit.

Packages, in an environment with litegpu (pip install -e '.[opencl,benchmarks]'):

    pip install torch torchvision litert-torch timm transformers ultralytics tensorflow-cpu
    pip install keras-hub

For example:

    python benchmarks/convert_architectures.py                    # all, on OpenCL
    python benchmarks/convert_architectures.py --only 'swin*' gpt2 'keras_*' --backend cuda
    python benchmarks/convert_architectures.py --list
    python benchmarks/convert_architectures.py --models out/models --page docs/converted_models.md
    python benchmarks/convert_architectures.py --models out/models --convert-only --jobs 2
    python benchmarks/convert_architectures.py --models out/models --json out/trials.json \
        --backend cuda opencl webgpu opengl --jobs 14 --minutes 8 --only 'yolo*' '*'

With `--models` the converted files stay in a folder, and are not converted again: an environment
without PyTorch can try them. With `--json` the results are written after each trial, and those in
the file that ran are not measured again: `--minutes 0` makes a page of them. With `--cpu-only` a
machine without a GPU compares the kernels of the CPU with each other, and adds that to the file.
Architectures are tried in the order of the patterns.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import keras_architectures
import machine
from architectures import ARCHITECTURES
from converted_page import (
    MAX_REASON,
    TOLERANCES,
    Errors,
    Spread,
    Trial,
    Trials,
    backends_row,
    backends_summary,
    backends_table,
    row,
    summary,
    table,
    write_page,
)
from further_architectures import FURTHER_ARCHITECTURES
from keras_architectures import KERAS_ARCHITECTURES
from litegpu import GpuDelegate
from litegpu.backends import BACKENDS
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

Found: TypeAlias = dict[str, Trials | str]
"""The trials of each model, or why it was not converted."""
Spreads: TypeAlias = dict[str, Spread]
"""How far apart results of each model on the CPU are."""
Task: TypeAlias = tuple[str, tuple[str, str] | None, Sequence[str]]
"""An architecture, the backend and precision of a trial, and arguments of this program."""

_ERROR = re.compile(r"^\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)
"""What the last lines of a failed process say."""


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


def spread(path: Path) -> Spread:
    """Run a file with two kinds of kernels of the CPU, and with other inputs."""
    content, inputs = _file(path)
    reference = reference_interpreter(content, 1)
    expected = _outputs(reference, inputs)
    kernels = errors(expected, _outputs(interpreter(content, threads=1), inputs))
    if not any(each.dtype.kind == "f" for each in inputs):
        return Spread(kernels, None)
    return Spread(kernels, errors(expected, _outputs(reference, one_ulp_away(inputs))))


def one_ulp_away(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs whose floats are the next larger or smaller ones, at random."""
    generator = np.random.default_rng(0)
    return [
        np.nextafter(each, generator.choice(np.array([-np.inf, np.inf], each.dtype), each.shape))
        if each.dtype.kind == "f"
        else each
        for each in inputs
    ]


def _file(path: Path) -> tuple[bytes, list[Any]]:
    """Return the content of a file, and the inputs next to it."""
    with np.load(path.with_suffix(".npz")) as stored:
        return path.read_bytes(), [stored[name] for name in stored.files]


def attempt(path: Path, backend: str, precision: str) -> Trial:
    """Run a file on the CPU and on a device, with the inputs next to it."""
    content, inputs = _file(path)
    expected = _outputs(reference_interpreter(content, 1), inputs)
    delegate = GpuDelegate(
        backend=backend,
        precision=precision,
        max_delegated_partitions=10_000,
        min_nodes_per_partition=1,
        cache=False,
    )
    start = time.perf_counter()
    target = interpreter(content, delegate)
    seconds = time.perf_counter() - start
    error, differing = errors(expected, _outputs(target, inputs))
    report = delegate.report
    assert report is not None
    reasons = Counter((each.op, without_tensors(each.reason)) for each in report.rejected)
    left = [f"{len(each.nodes)} nodes: {each.reason}" for each in report.left_out]
    return Trial(
        report.total_nodes,
        len(report.delegated_nodes),
        len(report.partitions),
        sum(each.kernels for each in report.partitions),
        seconds,
        error,
        differing,
        (*(f"{count} {op}: {reason}" for (op, reason), count in reasons.items()), *left),
        delegate.device.name,
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


def errors(expected: Sequence[Any], got: Sequence[Any]) -> Errors:
    """Return the greatest relative L2 error of floats, and share of other elements that differ."""
    error = differing = 0.0
    for wanted, found in zip(expected, got, strict=True):
        if wanted.dtype.kind != "f":
            differing = max(differing, float(np.mean(wanted != found)) if wanted.size else 0.0)
            continue
        if not np.isfinite(wanted).all():
            raise SystemExit("ValueError: The CPU's result is not finite.")
        norm = float(np.linalg.norm(wanted.astype(np.float64)))
        distance = float(np.linalg.norm(found.astype(np.float64) - wanted)) / (norm or 1.0)
        # Unlike max(), this keeps a NaN.
        error = float(np.maximum(error, distance))
    return error, differing


def run(settings: argparse.Namespace, folder: Path) -> tuple[Found, Spreads]:
    """Return the results of each architecture; write them to the file of results as they end."""
    deadline = time.monotonic() + 60 * settings.minutes
    about = machine.about(settings)
    found, spreads = _read(settings.json)
    files = {name: folder / f"{name}.tflite" for name in settings.names}
    conversions = [
        (name, None, ("--convert", name, str(path)))
        for name, path in files.items()
        if not path.exists()
    ]
    with progress(len(conversions)) as say:
        for name, _, _, trouble in _ended(settings, deadline, conversions):
            say(f"{name}  {trouble or 'converted'}")
            if trouble:
                found[name] = f"not converted: {trouble}"
                _write(settings.json, about, found, spreads)
    comparisons = [
        (name, None, ("--spread", str(path)))
        for name, path in files.items()
        if settings.compare and path.exists() and name not in spreads
    ]
    with progress(len(comparisons)) as say:
        for name, _, said, trouble in _ended(settings, deadline, comparisons):
            if not trouble:
                spreads[name] = _spread(json.loads(said))
            say(f"{name}  {trouble or said}")
            _write(settings.json, about, found, spreads)
    places = [(backend, precision) for backend in settings.backend for precision in TOLERANCES]
    trials = [
        (name, place, ("--attempt", str(path), *place))
        for name, path in files.items()
        for place in places
        if path.exists() and not isinstance(_known(found, name).get(place), Trial)
    ]
    with progress(len(trials)) as say:
        for name, place, said, trouble in _ended(settings, deadline, trials):
            result = f"failed: {trouble}" if trouble else _trial(json.loads(said))
            found[name] = {**_known(found, name), place: result}
            say("  ".join([name, *place, _line(result)]))
            _write(settings.json, about, found, spreads)
    return {name: found[name] for name in settings.names if name in found}, spreads


def _known(found: Found, name: str) -> Trials:
    trials = found.get(name, {})
    return {} if isinstance(trials, str) else trials


def _ended(
    settings: argparse.Namespace, deadline: float, tasks: Sequence[Task]
) -> Iterator[tuple[str, Any, str, str]]:
    """Run this program for each task, some at once; give name, place, last line and trouble."""

    def one(task: Task) -> tuple[str, Any, str, str] | None:
        name, place, arguments = task
        ended = _alone(settings.limit, deadline, arguments)
        return None if ended is None else (name, place, *ended)

    with ThreadPoolExecutor(settings.jobs) as pool:
        for each in as_completed([pool.submit(one, task) for task in tasks]):
            if (result := each.result()) is not None:
                yield result


def _alone(limit: float, deadline: float, arguments: Sequence[str]) -> tuple[str, str] | None:
    """Run this program once more; return the last line that it printed, and what went wrong.

    It returns None if the process has not ended at the deadline.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        return None
    command = [sys.executable, __file__, *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=min(limit, left), check=False
        )
    except subprocess.TimeoutExpired:
        return None if left < limit else ("", f"It took more than {limit:g} seconds.")
    if ended.returncode:
        said = _ERROR.findall(ended.stderr) or [f"The process ended with {ended.returncode}."]
        return "", said[-1][:MAX_REASON]
    return (ended.stdout.splitlines() or [""])[-1], ""


def _line(result: Trial | str) -> str:
    if isinstance(result, str):
        return result
    counts = f"{result.delegated} of {result.nodes} nodes, {result.partitions} partitions"
    return f"{counts}, {result.shown_error}, {result.seconds:.1f} s"


def _read(path: Path | None) -> tuple[Found, Spreads]:
    """Return the results in a file."""
    if path is None or not path.exists():
        return {}, {}
    found: Found = {}
    stored = json.loads(path.read_text("utf-8"))
    for name, trials in stored["models"].items():
        found[name] = trials
        if not isinstance(trials, str):
            found[name] = {
                (backend, precision): each if isinstance(each, str) else _trial(each)
                for backend, of_backend in trials.items()
                for precision, each in of_backend.items()
            }
    return found, {name: _spread(each) for name, each in stored.get("spreads", {}).items()}


def _write(path: Path | None, about: Mapping[str, Any], found: Found, spreads: Spreads) -> None:
    """Write a file of results; an earlier one is whole until the new one is."""
    if path is None:
        return
    models: dict[str, Any] = {}
    for name, trials in found.items():
        if isinstance(trials, str):
            models[name] = trials
            continue
        of_model = models[name] = {}
        for (backend, precision), each in trials.items():
            data = each if isinstance(each, str) else asdict(each)
            of_model.setdefault(backend, {})[precision] = data
    part = path.with_suffix(".part")
    stored = {name: asdict(each) for name, each in spreads.items()}
    content = {**about, "models": models, "spreads": stored}
    part.write_text(json.dumps(content, indent=1), "utf-8")
    part.replace(path)


def _trial(data: dict[str, Any]) -> Trial:
    return Trial(**{**data, "reasons": tuple(data["reasons"])})


def _spread(data: dict[str, Any]) -> Spread:
    inputs = data["inputs"]
    return Spread(tuple(data["kernels"]), None if inputs is None else tuple(inputs))


def _text() -> str:
    """Return what the page of the documentation says first."""
    paragraphs = (__doc__ or "").split("\n\n", 1)[1].split("\n\nPackages", 1)[0]
    packages = machine.facts()["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{paragraphs}\n\n"
        "Generated by `python benchmarks/convert_architectures.py --page docs/converted_models.md`"
        f", the last rows with {versions}."
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="names (default: all)")
    add("--list", action="store_true", help="print the names, and do nothing")
    add("--backend", nargs="+", default=["opencl"], choices=BACKENDS, help="(default: opencl)")
    add("--convert-only", action="store_true", help="try nothing")
    add("--cpu-only", action="store_true", help="compare kernels of the CPU, try no backend")
    add("--models", type=Path, metavar="FOLDER", help="where converted files stay (default: none)")
    add("--jobs", type=int, default=1, help="processes at once (default: 1)")
    add("--limit", type=float, default=600, metavar="SECONDS", help="for each process")
    add("--minutes", type=float, default=math.inf, help="for the whole run (default: no limit)")
    add("--page", type=Path, metavar="FILE", help="write a page of the documentation")
    add("--json", type=Path, metavar="FILE", help="where the results are")
    add("--convert", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    add("--spread", metavar="FILE", help=argparse.SUPPRESS)
    add("--attempt", nargs=3, metavar=("FILE", "BACKEND", "PRECISION"), help=argparse.SUPPRESS)
    settings = parser.parse_args(arguments)
    known = (*TORCH_ARCHITECTURES, *KERAS_ARCHITECTURES)
    matches = (fnmatch.filter(known, pattern) for pattern in settings.only)
    settings.names = list(dict.fromkeys(itertools.chain.from_iterable(matches)))
    if not settings.names:
        parser.error(f"No architecture is called {settings.only}: see --list.")
    if settings.convert_only or settings.cpu_only:
        settings.backend = []
    settings.compare = settings.cpu_only or len(settings.backend) > 1
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert and try the architectures; print tables."""
    settings = parse(arguments)
    os.environ.update(NO_DRIVER_CACHES)
    if settings.list:
        print("\n".join(settings.names))
    elif settings.convert:
        convert(settings.convert[0], Path(settings.convert[1]))
    elif settings.spread:
        print(json.dumps(asdict(spread(Path(settings.spread)))))
    elif settings.attempt:
        path, backend, precision = settings.attempt
        print(json.dumps(asdict(attempt(Path(path), backend, precision))))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = settings.models or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            found, spreads = run(settings, folder)
        _show(settings, found, spreads)


def _show(settings: argparse.Namespace, found: Found, spreads: Spreads) -> None:
    """Print the tables, and write the page."""
    main_backend = settings.backend[0] if settings.backend else ""
    rows = [each for name, of in found.items() if (each := row(name, of, main_backend))]
    print(f"{table(rows)}\n\n{summary(rows)}")
    backends = []
    if len(settings.backend) > 1:
        backends = [
            each
            for name, of in found.items()
            if (each := backends_row(name, of, spreads.get(name)))
        ]
        print(f"\n{backends_table(backends)}\n\n{backends_summary(backends)}")
    if settings.page:
        write_page(settings.page, _text(), rows, backends)


if __name__ == "__main__":
    main()
