"""`benchmark_model --sweep`: finds the best backend, precision and batch."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from litegpu.backends import BACKENDS
from litegpu.errors import ModelError, OptionsError, did_you_mean
from litegpu.host.children import run_module
from litegpu.runtime_abi.interpreter import default_threads
from litegpu.tools.console import note
from litegpu.tools.files import prints_json, try_to_write, write_bytes, write_json
from litegpu.tools.flags import Flag, one_of, positive, positive_int
from litegpu.tools.registrar import OPTION_FLAGS, changed_options
from litegpu.tools.reports.page import prepare_report, write_report
from litegpu.tools.sweep.advice import GOALS, recommend
from litegpu.tools.sweep.page import sweep_page
from litegpu.tools.sweep.runs import CPU, NO_BATCH, Row, combinations, try_out
from litegpu.tools.sweep.text import Sweep, as_csv, as_json, print_sweep, title

PRECISIONS = ("fp32", "fp16")
SWEEP_FLAGS = (
    Flag("sweep", bool, False, "run every backend, precision and batch size, and recommend one"),
    Flag(
        "sweep_backends", str, "", f"backends to run, some of {','.join(BACKENDS)} (default: all)"
    ),
    Flag(
        "sweep_precisions",
        str,
        ",".join(PRECISIONS),
        "precisions to run: fp32, fp16, or both with a comma (default: all)",
    ),
    Flag("sweep_batches", str, "", "batch sizes to run, such as 1,8,64 (default: the model's own)"),
    Flag(
        *("sweep_goal", one_of(GOALS), "throughput"),
        "rank configurations by throughput (items/s), latency or energy",
        metavar="TEXT",
    ),
    Flag(
        *("sweep_tolerance", positive, 0.02),
        "maximum relative error of the recommended setting's outputs",
    ),
    Flag("sweep_timeout_secs", positive, 300.0, "timeout of each configuration in seconds"),
    Flag("csv", str, "", "write the table of --sweep to this CSV file", metavar="FILE"),
)
_OPTIONS = (
    *("max_delegated_partitions", "min_nodes_per_partition", "gpu_experimental_enable_quant"),
    *("gpu_inference_for_sustained_speed", "delegate_serialize_dir", "delegate_serialize_token"),
    *("first_delegate_node_index", "last_delegate_node_index"),
)
"""TensorFlow Lite's flags for delegate options, which apply to every trial."""
_FORWARDED_FLAGS = (
    *_OPTIONS,
    *("num_runs", "min_secs", "max_secs", "run_delay", "warmup_runs", "warmup_min_secs"),
    *("require_full_delegation", "measure_energy", "energy_min_secs", "energy_idle_secs"),
    *("input_layer", "input_layer_shape", "input_layer_value_range", "input_layer_value_files"),
)
"""Flags that apply to every trial."""
_SWEPT = {
    "backend": "sweep_backends",
    "gpu_backend": "sweep_backends",
    "precision": "sweep_precisions",
    "gpu_precision_loss_allowed": "sweep_precisions",
    "is_precision_loss_allowed": "sweep_precisions",
    "batch": "sweep_batches",
}
"""Flags that conflict with a sweep, and the flags that replace them."""
_OF_GPU = tuple(flag.name for flag in OPTION_FLAGS if flag.name not in _SWEPT)
"""Flags that apply to every trial on a GPU."""
_OWN = ("graph", "model", "num_threads", "json", *(flag.name for flag in SWEEP_FLAGS), "report")
_DEVICES_SECS = 120.0


def sweep(args: argparse.Namespace) -> int:
    """Run all trials, and print the ranking and the recommended settings.

    After Ctrl-C, the function prints the results so far.

    Raises:
        OptionsError: a flag has an invalid value, or a required value is missing.
        ModelError: the model does not exist, or no setting can run the model.
    """
    backends, precisions, batches = _wanted(args)
    for flag in ("json", "csv"):
        try_to_write(flag, getattr(args, flag) or None)
    prepare_report(args.report)
    found = Sweep(args.graph, args.num_threads if args.num_threads > 0 else default_threads())
    try:
        with _model_file(args.graph) as path:
            present, found.absent = _present(backends)
            found.left = combinations(present, precisions, batches)
            _try_all(found, path, args)
    except KeyboardInterrupt:
        _tell(args, found)
        raise
    return _tell(args, found)


def _tell(args: argparse.Namespace, found: Sweep) -> int:
    """Print and write the results so far."""
    goal = GOALS[args.sweep_goal]
    options = changed_options(args)
    flags = _flags(args, (*_OPTIONS, *_OF_GPU))
    best = recommend(found.rows, goal, args.sweep_tolerance, found.threads, flags, options)
    if not prints_json(args):
        print_sweep(found, goal, best, args.sweep_tolerance)
    if args.csv:
        write_bytes("csv", args.csv, as_csv(found, goal).encode())
    write_json("json", args.json, as_json(found, goal, best))
    if args.report:
        write_report(args.report, sweep_page(found, goal, best, args.sweep_tolerance))
    if not found.left and all(row.failed for row in found.rows):
        raise ModelError(f"No configuration can run this model: {found.rows[0].reason}")
    return 0


# Requested and available configurations


def _wanted(args: argparse.Namespace) -> tuple[list[str], list[str], list[int]]:
    if not args.graph:
        raise OptionsError("--sweep needs a model: give one with --graph=MODEL.")
    for name in args.given:
        if name in _SWEPT:
            raise OptionsError(
                f"--{name}={getattr(args, name)}: --sweep tries several values. Select them with "
                f"--{_SWEPT[name]}."
            )
        if name not in (*_FORWARDED_FLAGS, *_OF_GPU, *_OWN):
            raise OptionsError(f"--{name} and --sweep exclude each other. Leave one of them out.")
    if args.sweep_goal == "energy" and not args.measure_energy:
        raise OptionsError("--sweep_goal=energy needs --measure_energy=true.")
    backends = _list("sweep_backends", args.sweep_backends, tuple(BACKENDS)) or list(BACKENDS)
    precisions = _list("sweep_precisions", args.sweep_precisions, PRECISIONS)
    texts = [text for text in args.sweep_batches.split(",") if text]
    if texts and args.input_layer_shape:
        raise OptionsError(
            "--sweep_batches and --input_layer_shape both set the shapes of the inputs. Give one "
            "of them."
        )
    try:
        batches = [positive_int(text) for text in texts]
    except argparse.ArgumentTypeError as error:
        raise OptionsError(f"--sweep_batches={args.sweep_batches}: {error}.") from error
    return backends, precisions, list(dict.fromkeys(batches)) or [0]


def _list(flag: str, text: str, known: Sequence[str]) -> list[str]:
    found = [each.strip().lower() for each in text.split(",") if each.strip()]
    for each in found:
        if each not in known:
            raise OptionsError(f"--{flag}={text}: there is no '{each}'.{did_you_mean(each, known)}")
    return list(dict.fromkeys(found))


@contextmanager
def _model_file(name: str) -> Iterator[Path]:
    """Yield the path of the model as a file in a result folder; zoo models are built only once."""
    # Its package imports this one.
    from litegpu.tools.benchmark_model.session import find_graph

    model = find_graph(name)
    with tempfile.TemporaryDirectory(prefix="litegpu-sweep-") as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(model.content)
        yield path


def _present(wanted: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the backends that have a device, and the reasons for other backends.

    A separate process queries the drivers, because drivers may crash.
    """
    ended = run_module("litegpu.tools.cli", ["devices", "--json"], _DEVICES_SECS)
    if ended.status not in (0, 1) or not ended.output.startswith("["):
        why = f"`litegpu devices` {ended.how()}. Run that command for details."
        return [], dict.fromkeys(wanted, why)
    found = {each["name"]: each for each in json.loads(ended.output)}
    absent = {name: found[name]["reason"] for name in wanted if not found[name]["devices"]}
    return [name for name in wanted if name not in absent], absent


def _flags(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the flags that were set on the command line, as words for another command line."""
    passed = {name: getattr(args, name) for name in args.given if name in names}
    spelt = {n: str(v).lower() if isinstance(v, bool) else v for n, v in passed.items()}
    return [f"--{name}={value}" for name, value in spelt.items()]


# Trials


def _try_all(found: Sweep, path: Path, args: argparse.Namespace) -> None:
    """Run the remaining trials one after another.

    The outputs of each batch size are compared with those of the CPU at the same batch size.
    """
    total, start = len(found.left), time.monotonic()
    flags = [f"--num_threads={found.threads}", *_flags(args, _FORWARDED_FLAGS)]
    of_gpu = _flags(args, _OF_GPU)
    references: dict[int, Row] = {}
    while found.left:
        way, done = found.left[0], len(found.rows)
        left = (time.monotonic() - start) / done * (total - done) if done else 0
        note(f"{done + 1} of {total}{f', {left:.0f} s left' if done else ''}: {title(way)}")
        given = [*flags, *(of_gpu if way.on_gpu else ["--use_gpu=false"])]
        row = try_out(way, path, given, args.sweep_timeout_secs, references.get(way.batch))
        if not row.failed and not way.on_gpu:
            references.setdefault(way.batch, row)
        found.rows.append(row)
        found.left.pop(0)
        if way.backend == CPU and way.batch not in references and row.reason.startswith(NO_BATCH):
            # Not even the CPU can run this batch, so the model cannot have it.
            total -= len(found.left)
            found.left = [each for each in found.left if each.batch != way.batch]
            total += len(found.left)
