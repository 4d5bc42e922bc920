"""Put small faults into litegpu, one at a time, and say which of them the tests do not catch.

Usage: mutants.py [FILE ...] [--sample N] [--seed S] [--jobs J] [--json OUT], after `make setup`.
Files are those of src/litegpu that are to be changed, or folders of them; without any it takes what
computes: ops, passes, engine, kernels. Each mutant is a copy of src/, on which the tests run that
concern the file: those that bear its name, the cases of its operations, those that import it, and
those of its room. A mutant is caught by a test that fails with it and not without it, or that takes
longer than --limit: the latter are listed, for the fault may be innocent of a slow machine.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from mutations import Mutation, mutations_of

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "litegpu"
TESTS = ROOT / "tests"
FOLDERS = ("ops", "passes", "engine", "kernels")

SUFFIXES = (".py", ".jinja", ".cuh")

CASES = {
    "add_n": "Sum",
    "affine": "Normalization or Chain",
    "arg": "Arg",
    "arg_max": "Arg",
    "axis_operand": "Arg or CumSum or Reduce or Gather",
    "bilinear": "Resize or Transform or Resample",
    "concat": "Concat",
    "conv": "Conv or Dense",
    "conv_mma": "Conv or Dense or View or QuantizedMatrix",
    "conv_narrow": "Conv",
    "conv_patch": "Conv",
    "conv_spec": "Conv or Dense or View",
    "conv_tile": "Conv or Dense or View or QuantizedMatrix",
    "convolution_2d_transpose_bias": "TransposeConvBias",
    "depthwise": "Depthwise",
    "halves": "Conv or Dense",
    "landmarks_to_matrix": "ToMatrix",
    "landmarks_to_transform_matrix": "ToMatrix",
    "lstm_cells": "Lstm",
    "lstm_gates": "Lstm",
    "matmul": "Matmul",
    "matmul_spec": "Matmul",
    "max_pool_argmax": "ArgmaxPool",
    "max_pooling_with_argmax_2d": "ArgmaxPool",
    "max_unpool": "Unpool",
    "max_unpooling_2d": "Unpool",
    "pack_weights": "computed",
    "permutation": "IndexMap",
    "placement": "Conv or View or Slice or Concat",
    "portable_tiles": "Conv or Dense or Matmul",
    "quantized_functions": "QuantizedLookup or QuantizedPair",
    "quantized_logarithms": "StoredSoftmax",
    "quantize_rows": "Hybrid or Rows",
    "quantized_rows": "Rows or Hybrid or StoredSoftmax",
    "resampler": "Resample",
    "row_ranges": "Hybrid",
    "separable": "Separable",
    "small_pool_2d": "Pool",
    "space_to_batch_nd": "BATCH_ND or SPACE_ND or Blocked",
    "transform_landmarks": "MovePoints",
    "transform_tensor": "Transform",
    "transform_tensor_bilinear": "Transform",
    "unidirectional_sequence_lstm": "Lstm",
    "weights": "Conv or Dense or Depthwise",
    "window": "Conv or Pool",
    "work": "Conv or Pool or Reduce",
}
"""Cases of the op table that concern a module, template or folder of a kernel, where neither a file
of cases nor the names of the cases say so."""

TOO_LONG = "no end within"

QUANTIZED = "Quantized or Stored or Hybrid or Rows or Ties or FromZero or Same"
"""Cases that concern a module of exact results that has none of its own."""


@dataclass(frozen=True)
class Mutant:
    """A file of src/litegpu with one fault."""

    file: str
    line: int
    kind: str
    difference: str


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that caught it, or none."""

    mutant: Mutant
    caught_by: str
    seconds: float


def stages(path: Path, tests: Path = TESTS) -> list[list[str]]:
    """Return arguments of pytest for what concerns a file, the cheapest first."""
    room, name = path.relative_to(SOURCE).parts[0], name_of(path)
    own = [[str(each)] for each in sorted(tests.rglob(f"test_{name}.py"))]
    others = [str(each) for each in importing_it(path, tests) if [str(each)] not in own]
    importing = [others] if others else []
    work = [str(tests / "engine" / "test_work.py"), str(tests / "delegation" / "test_node_work.py")]
    words, kernels, ops = cases_of(name, tests), tests / "kernels", tests / "ops"
    table, checks = str(ops / "test_ops.py"), str(kernels / "test_cuda_checks.py")
    emulated = str(kernels / "test_cuda_emulated.py")
    if name.startswith("peak_"):
        return [[str(tests / "engine" / "test_peaks.py")]]
    if "cuda" in path.parts:
        kernel = (path.parent / f"{name}.jinja").exists()
        examples = [str(kernels / "test_examples.py"), *(["-k", f"cuda/{name}"] if kernel else [])]
        cases = ["-k", words] if name in CASES else []
        ranges = [str(kernels / "test_half_range.py"), str(kernels / "test_magnitudes.py")]
        chosen = [str(kernels / f"test_{each}.py") for each in ("selector", "conv_tiles", "tiles")]
        python = [[*chosen, *work]] if path.suffix == ".py" else []
        return [*python, examples, *own, [emulated, *cases], *importing, [checks], ranges]
    first = [[table, "-k", f"opencl and ({words})"], *own, work]
    last = [*importing, [table, "-k", f"not opencl and ({words})"]]
    graphs = [str(tests / "fuzzing" / "test_random_graphs.py")]
    rooms = {
        "kernels": [*first, [checks, "-k", "portable"], *last, [emulated, "-k", words]],
        "ops": [*first, [str(ops), "--ignore", table], *last, [str(tests / "engine")]],
        "passes": [*own, [str(tests / "passes")], graphs, *importing],
    }
    return rooms.get(room, [*own, [str(tests / room)], *importing])


def name_of(path: Path) -> str:
    """Return what tests and cases call a file: a kernel's folder stands for the files in it."""
    folder = path.parent
    if folder.parent.name in ("cuda", "portable") and folder.name != "include":
        return folder.name
    exact = folder.name == "exact" and path.stem != "hybrid"
    return f"quantized_{path.stem}" if exact else path.stem.lstrip("_")


def importing_it(path: Path, tests: Path = TESTS) -> list[Path]:
    """Return the tests that import a module."""
    if path.suffix != ".py" or path == SOURCE / "__init__.py":
        return []
    parts = ("litegpu", *path.relative_to(SOURCE).with_suffix("").parts)
    *folder, name = parts[:-1] if parts[-1] == "__init__" else parts
    dotted = re.escape(".".join(folder))
    names = rf"{dotted}\.{name}\b|from {dotted} import [^\n]*\b{name}\b"
    every = sorted(tests.rglob("test_*.py"))
    return [each for each in every if re.search(names, each.read_text(encoding="utf-8"))]


def cases_of(name: str, tests: Path = TESTS) -> str:
    """Return an expression for pytest's -k that picks the cases which concern a file."""
    if name in CASES:
        return CASES[name]
    module = tests / "support" / "cases" / f"{name}.py"
    if not module.exists():
        return QUANTIZED if name.startswith("quantized_") else name
    text = module.read_text(encoding="utf-8")
    return " or ".join(re.findall(r"^class (\w+)\(", text, re.M)) or name


def run(path: Path, mutation: Mutation, limit: float) -> Outcome:
    """Run the tests on a copy of the source with one fault."""
    text = path.read_text(encoding="utf-8")
    changed = mutation.apply(text)
    name = path.relative_to(SOURCE).as_posix()
    lines = difflib.unified_diff(text.splitlines(), changed.splitlines(), name, name, "", "", 0, "")
    line = text.count("\n", 0, mutation.start) + 1
    mutant = Mutant(name, line, mutation.kind, "\n".join(list(lines)[3:]))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(
            SOURCE, Path(folder, "litegpu"), ignore=shutil.ignore_patterns("__pycache__")
        )
        Path(folder, "litegpu", name).write_text(changed, encoding="utf-8")
        caught = next(filter(None, (_caught(each, folder, limit) for each in stages(path))), "")
    return Outcome(mutant, caught, round(time.monotonic() - begin, 1))


def _caught(arguments: Sequence[str], source: str, limit: float) -> str:
    """Return the first test that fails for the fault alone, or an empty text."""
    left_out: list[str] = []
    while "::" in (test := _failed([*arguments, *left_out], source, limit)) and _always_fails(test):
        left_out.append(f"--deselect={test}")
    return test


@functools.cache
def _always_fails(test: str) -> bool:
    """Return whether a test fails without any fault, too; say so."""
    if found := _failed([test], str(SOURCE.parent), 600):
        print(f"fails without a fault, too: {test}", flush=True)
    return bool(found)


def _failed(arguments: Sequence[str], source: str, limit: float) -> str:
    """Return the first test that fails, or an empty text."""
    # The path comes first, so that this litegpu hides the one that is installed.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    command += ["--override-ini", f"pythonpath={source} {TESTS / 'support'}", "--no-header"]
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("LITEGPU_TEST_LIBRARIES", _libraries())
    environment.setdefault("LITEGPU_TEST_ALL", "1")  # at any commit, all tests look for the fault
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{TOO_LONG} {limit:.0f} s"
    if done.returncode in (0, 5):  # 5: no test was picked
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.M)
    return named[1] if named else f"exit status {done.returncode}"


@functools.cache
def _libraries() -> str:
    """Return a folder for what the emulator compiles: most kernels are the same in all mutants."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


def table(outcomes: Iterable[Outcome]) -> str:
    """Return what was caught, by folder, and the faults that were not, or by a time-out alone."""
    counts: dict[str, list[int]] = {}
    for each in outcomes:
        folder = each.mutant.file.split("/")[0]
        count = counts.setdefault(folder, [0, 0])
        count[0] += 1
        count[1] += bool(each.caught_by)
    whole = [sum(column) for column in zip(*counts.values(), strict=True)] if counts else [0, 0]
    rows = [*sorted(counts.items()), ("all", whole)]
    lines = [f"{'folder':<10} {'mutants':>7} {'caught':>7}"]
    lines += [f"{name:<10} {total:>7} {caught:>7}" for name, (total, caught) in rows]
    for each in outcomes:
        if not each.caught_by or each.caught_by.startswith(TOO_LONG):
            what = "took too long" if each.caught_by else "survived"
            lines += ["", f"{what}: {each.mutant.file}:{each.mutant.line}, {each.mutant.kind}"]
            lines.append(each.mutant.difference)
    return "\n".join(lines)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the Python files, templates and headers that paths name."""
    found = {
        file
        for path in paths
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.suffix in SUFFIXES
    }
    return sorted(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Make mutants and run them; return the exit status: 1 if one has survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add(
        "files", nargs="*", type=Path, help="what to change (default: ops, passes, engine, kernels)"
    )
    add("--sample", type=int, metavar="N", help="so many at random, instead of all")
    add("--seed", type=int, default=0, help="of the sample")
    add("--jobs", type=int, default=1, help="how many at a time")
    add("--limit", type=float, default=600, help="seconds that the tests of a stage may take")
    add("--json", type=Path, help="a file for the outcomes")
    given = parser.parse_args(argv)
    files = files_of([path.resolve() for path in given.files] or [SOURCE / f for f in FOLDERS])
    found = [(file, mutation) for file in files for mutation in mutations_of(file)]
    if given.sample is not None:
        found = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    outcomes = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed(pool.submit(run, *pair, given.limit) for pair in found):
            outcomes.append(each := done.result())
            about = f"{each.mutant.file}:{each.mutant.line} {each.mutant.kind}"
            print(f"{about}: {each.caught_by or 'SURVIVED'} ({each.seconds} s)", flush=True)
    print(table(outcomes))
    if given.json:
        text = json.dumps([asdict(each) for each in outcomes], indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return int(not all(each.caught_by for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
