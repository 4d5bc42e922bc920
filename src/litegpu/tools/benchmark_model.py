"""`litegpu benchmark_model`: latency and memory of a model, in TensorFlow Lite's own words."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu import config
from litegpu.errors import LitegpuError, ModelError
from litegpu.tools.benchmark_flags import PARAMETERS, print_parameters, warn_of_unused
from litegpu.tools.benchmark_inputs import Layer, input_values, parse_layers, resize_inputs
from litegpu.tools.benchmark_plan import delegate_nodes, say_what_runs_where
from litegpu.tools.benchmark_profile import check_mode, take_blocks, write_profile
from litegpu.tools.files import try_to_write, write_bytes
from litegpu.tools.flags import Flag
from litegpu.tools.lines import error, info
from litegpu.tools.memory import PeakMonitor, peak_kb, resident_kb
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.op_tables import Block, Row
from litegpu.tools.registrar import REGISTRAR_FLAGS, Delegates, make_delegates
from litegpu.tools.runtime import set_inputs
from litegpu.tools.stats import Pace, Stats, figure, timed_runs
from litegpu.tools.wire import Value, message

ARGUMENTS: dict[str, str] = {}
FLAGS = (
    *(flag for flag, _ in PARAMETERS if flag),
    Flag("verbose", bool, False, "print the value of every flag"),
    *REGISTRAR_FLAGS,
)
EXAMPLES = (
    "litegpu benchmark_model --graph=model.tflite --use_gpu=true",
    "litegpu benchmark --graph=zoo:mobilenet_v1_1.0_224 --use_gpu=true",
    "litegpu benchmark --graph=model.tflite --result_file_path=result.pb",
)
NOTES = (
    "Flags and lines are those of TensorFlow Lite's benchmark_model; percentiles, throughput and "
    "the GPU's memory come last.",
)

_FILES = ("op_profiling_output_file", "output_filepath", "result_file_path")
_PERCENTILES = (50, 90, 95, 99)


def main(args: argparse.Namespace) -> int:
    """Measure the model and print everything; files are written last."""
    try:
        return _benchmark(args)
    except LitegpuError as failure:
        error(str(failure))
        error("Benchmarking failed.")
        if config.debug_level():
            raise
        return 1


@dataclass(frozen=True)
class _Session:
    """An interpreter that is ready to run, and how it came to be."""

    target: Any
    delegates: Delegates
    values: list[NDArray[Any]]
    init_us: int
    init: Block


@dataclass(frozen=True)
class _Memory:
    """Memory of the host in KB since the start of the tool, None where nobody can tell."""

    init: int | None
    overall: int | None
    peak_mb: float


def _benchmark(args: argparse.Namespace) -> int:
    info("STARTING!")
    print_parameters(args)
    if args.profiling_output_csv_file:
        args.op_profiling_output_mode = "csv"
        args.op_profiling_output_file = args.profiling_output_csv_file
    check_mode(args.op_profiling_output_mode, args.op_profiling_output_file)
    layers = parse_layers(
        *(args.input_layer, args.input_layer_shape),
        *(args.input_layer_value_range, args.input_layer_value_files),
    )
    for flag in _FILES:
        try_to_write(flag, getattr(args, flag) or None)
    warn_of_unused(args)
    before = peak_kb()
    watched = args.report_peak_memory_footprint
    interval = args.memory_footprint_check_interval_ms
    with PeakMonitor(interval) if watched else contextlib.nullcontext() as monitor:
        start = time.perf_counter()
        model = _load(args)
        session = _open(args, model, layers, start)
        created = peak_kb()
        warm_up, runs = _run(args, session)
    memory = _Memory(
        _difference(created, before),
        _difference(peak_kb(), before),
        monitor.peak_mb if monitor else 0.0,
    )
    _print_timings(session, warm_up, runs)
    _print_memory(memory, watched)
    _write_results(args, model, session, warm_up, runs, memory)
    _print_more(session, runs)
    return 0


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _load(args: argparse.Namespace) -> FoundModel:
    if not args.graph:
        raise ModelError("Please specify the name of your TF Lite input file with --graph")
    try:
        model = find_model(args.graph)
    except LitegpuError:
        error(f"Failed to load model {args.graph}")
        raise
    info(f"Loaded model {args.graph}")
    return model


def _open(
    args: argparse.Namespace, model: FoundModel, layers: list[Layer], start: float
) -> _Session:
    """Return the interpreter with its delegates and inputs; `start` is when the work began."""
    delegates = make_delegates(args, model.content)
    if len(delegates.applied) > 1:
        info(f"Going to apply {len(delegates.applied)} delegates one after another.")
    applying = time.perf_counter()
    target = _apply(delegates, model)
    applied = time.perf_counter()
    if args.list_signatures:
        raise _signatures(target)
    nodes = delegate_nodes(target)
    with _explained("Failed to allocate tensors!"):
        resize_inputs(target, layers)
        target.allocate_tensors()
    allocated = time.perf_counter()
    say_what_runs_where(delegates, nodes, target, args.require_full_delegation)
    info(f"The input model file size (MB): {figure(len(model.content) / 1e6)}")
    values = input_values(target.get_input_details(), layers)
    init_us = int((time.perf_counter() - start) * 1e6)
    info(f"Initialized session in {figure(init_us / 1000)}ms.")
    rows = (
        Row("ModifyGraphWithDelegate", "ModifyGraphWithDelegate/0", (applied - applying) * 1e3),
        Row("AllocateTensors", "AllocateTensors/0", (allocated - applied) * 1e3),
    )
    return _Session(target, delegates, values, init_us, Block(rows, Stats((init_us,))))


def _apply(delegates: Delegates, model: FoundModel) -> Any:
    try:
        return delegates.interpreter(model.content, allocate=False)
    except LitegpuError as failure:
        if delegates.items and not isinstance(failure, ModelError):
            names = [each.name for each in delegates.applied if each.delegate is not None]
            error(f"Failed to apply {' or '.join(names)} delegate.")
        raise


def _signatures(target: Any) -> ModelError:
    """Print the signatures; return what ends the tool then."""
    keys = list(target.get_signature_list())
    info(f"The Model contains {len(keys)} signature key(s).")
    if keys:
        info("They are listed below: ")
    for key in keys:
        info(f"-> Signature Key: {key}")
    return ModelError("--list_signatures only lists them. Leave it out to run the model.")


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the runtime's own errors into ours."""
    try:
        yield
    except LitegpuError:
        raise
    except (RuntimeError, ValueError) as failure:
        raise ModelError(f"{what} {' '.join(str(failure).split())}") from failure


# Runs


def _run(args: argparse.Namespace, session: _Session) -> tuple[Stats, Stats]:
    """Return the statistics of the warm-up and of the regular runs; both are printed."""
    target = session.target
    least = (
        (args.warmup_runs, args.warmup_min_secs),
        (args.num_runs, args.min_secs),
    )
    found = []
    for runs, min_secs in ((0, -1.0),) * 2 if args.dry_run else least:
        pace = Pace(runs, min_secs, args.max_secs, args.run_delay, args.run_frequency)
        info(
            f"Running benchmark for at least {pace.runs} iterations and at least "
            f"{figure(pace.min_secs)} seconds but terminate if exceeding "
            f"{figure(pace.max_secs)} seconds."
        )
        with _explained("Failed to invoke!"):
            stats = timed_runs(pace, lambda: set_inputs(target, session.values), target.invoke)
        info(f"{stats.line()}\n")
        found.append(stats)
    return found[0], found[1]


def _print_timings(session: _Session, warm_up: Stats, runs: Stats) -> None:
    info(
        f"Inference timings in us: Init: {session.init_us}, First inference: {warm_up.first}, "
        f"Warmup (avg): {figure(warm_up.average)}, Inference (avg): {figure(runs.average)}"
    )


def _print_memory(memory: _Memory, monitored: bool) -> None:
    if memory.init is not None and memory.overall is not None:
        info(
            "Note: as the benchmark tool itself affects memory footprint, the following is only "
            "APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
            "information at your discretion."
        )
        info(
            "Memory footprint delta from the start of the tool (MB): "
            f"init={figure(memory.init / 1024)} overall={figure(memory.overall / 1024)}"
        )
    if not monitored:
        return
    info(f"Overall peak memory footprint (MB) via periodic monitoring: {figure(memory.peak_mb)}")
    if now := resident_kb():
        info("Memory status at the end of exeution:")  # the original's spelling
        for name, kb in (
            ("- VmRSS              ", now["VmRSS"]),
            ("+ RssAnnon           ", now["RssAnon"]),
            ("+ RssFile + RssShmem ", now["RssFile"] + now["RssShmem"]),
        ):
            info(f"{name}: {figure(kb / 1024)} MB")


def _write_results(
    args: argparse.Namespace,
    model: FoundModel,
    session: _Session,
    warm_up: Stats,
    runs: Stats,
    memory: _Memory,
) -> None:
    """Write what files are asked for, and print or write the profile."""
    if args.output_filepath:
        outputs = session.target.get_output_details()
        values = (session.target.get_tensor(detail["index"]) for detail in outputs)
        write_bytes("output_filepath", args.output_filepath, b"".join(v.tobytes() for v in values))
    if args.enable_op_profiling:
        mode, path = args.op_profiling_output_mode, args.op_profiling_output_file
        blocks = take_blocks(session.delegates.gpu, session.target, runs) if runs.values else []
        write_profile(mode, path, model.name, session.init, blocks)
    if args.result_file_path:
        info(f"Saving benchmark result to: {args.result_file_path}")
        size = sum(value.nbytes for value in session.values)
        content = _result(args.benchmark_name, model, size, session, warm_up, runs, memory)
        write_bytes("result_file_path", args.result_file_path, content)
        info(f"Saved benchmark result to: {args.result_file_path}")


def _result(
    name: str,
    model: FoundModel,
    input_bytes: int,
    session: _Session,
    warm_up: Stats,
    runs: Stats,
    memory: _Memory,
) -> bytes:
    """Return a BenchmarkResult; what this system cannot tell of memory is left out."""
    times = (
        *(runs.average, *((min(runs.values), max(runs.values)) if runs.values else (0, 0))),
        *(runs.deviation, *(runs.percentile(percent) for percent in (50, 5, 95))),
        *(session.init_us, warm_up.first, warm_up.average),
    )
    latency = message(*enumerate((np.float32(us / 1e3) for us in times), start=1))
    footprints: list[tuple[int, Value]] = [
        (number, kb) for number, kb in ((1, memory.init), (2, memory.overall)) if kb is not None
    ]
    peak: list[tuple[int, Value]] = [(3, np.float32(memory.peak_mb))] if memory.peak_mb else []
    rate = input_bytes / runs.average * 1e6 / 2**20 if runs.average else 0.0
    misc = message(
        (1, np.float32(len(model.content) / 1e6)),
        (2, len(runs.values)),
        (3, len(warm_up.values)),
        (4, np.float32(rate)),
    )
    return message((1, name), (2, latency), (3, message(*footprints, *peak)), (4, misc))


def _print_more(session: _Session, runs: Stats) -> None:
    """Print what the original does not: percentiles, throughput, and the GPU's memory."""
    info(f"Computed by: {session.delegates.describe()}")
    if runs.values:
        figures = (f"p{percent}={runs.percentile(percent)}" for percent in _PERCENTILES)
        info(f"Latency percentiles in us: {' '.join(figures)}")
    if runs.average:
        info(f"Throughput (inferences/s): {figure(1e6 / runs.average)}")
    report = session.delegates.gpu.report if session.delegates.gpu else None
    if report and report.partitions:
        arena, constants = (
            sum(getattr(part, name) for part in report.partitions) / 2**20
            for name in ("arena_bytes", "constant_bytes")
        )
        info(
            f"GPU memory of the delegate (MB): tensors={figure(arena)} weights={figure(constants)}"
        )
