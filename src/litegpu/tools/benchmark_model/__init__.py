"""`litegpu benchmark_model`: latency and memory of a model, in TensorFlow Lite's output format."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from dataclasses import replace

from litegpu import config
from litegpu.errors import LitegpuError, OptionsError
from litegpu.tools.benchmark_model.energy_use import energy_of
from litegpu.tools.benchmark_model.examples import example
from litegpu.tools.benchmark_model.flags import PARAMETERS, print_parameters, warn_of_unused
from litegpu.tools.benchmark_model.inputs import parse_layers
from litegpu.tools.benchmark_model.memory import PeakMonitor, peak_kb
from litegpu.tools.benchmark_model.memory_gpu import GpuPeak
from litegpu.tools.benchmark_model.page import benchmark_page
from litegpu.tools.benchmark_model.profile import check_mode, take_blocks, write_profile
from litegpu.tools.benchmark_model.results import (
    Memory,
    Results,
    print_memory,
    print_more,
    print_timings,
    result_json,
    result_message,
)
from litegpu.tools.benchmark_model.session import Session, explained, load, open_session
from litegpu.tools.benchmark_model.state import print_after, print_before
from litegpu.tools.console import note
from litegpu.tools.files import JSON, prints_json, try_to_write, write_bytes, write_json
from litegpu.tools.flags import Flag
from litegpu.tools.lines import error, info, warn, warn_of_unconsumed
from litegpu.tools.registrar import REGISTRAR_FLAGS, ask_for_gpu
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.stats import Pace, Stats, figure, timed_runs
from litegpu.tools.sweep import SWEEP_FLAGS, sweep

ARGUMENTS = {"model": "the same as --graph"}
OPTIONAL = ("model",)
FLAGS = (
    *(flag for flag, _ in PARAMETERS if flag),
    Flag("verbose", bool, False, "print the value of every flag"),
    *REGISTRAR_FLAGS,
    *SWEEP_FLAGS,
    JSON,
    REPORT,
)
EXAMPLES = (
    "litegpu benchmark_model --graph=model.tflite --use_gpu=true",
    "litegpu benchmark model.tflite --backend=opencl --precision=fp16",
    "litegpu benchmark --graph=zoo:mobilenet_v1_1.0_224 --use_gpu=true",
    "litegpu benchmark --graph=model.tflite --result_file_path=result.pb",
    "litegpu benchmark --graph=model.tflite --sweep --sweep_batches=1,8",
    "litegpu benchmark --graph=model.tflite --use_gpu=true --report=report.html",
)
NOTES = (
    "Flags and output lines are those of TensorFlow Lite's benchmark_model. Percentiles, "
    "throughput and the GPU's memory are printed at the end.",
)

FAILED = "Benchmarking failed."
_FILES = (
    *("op_profiling_output_file", "output_filepath", "output_proto_filepath"),
    *("result_file_path", "model_runtime_info_output_file"),
)


def main(args: argparse.Namespace) -> int:
    """Measure the model, print the results, and write the files last."""
    lines_to = sys.stderr if prints_json(args) else sys.stdout
    with contextlib.redirect_stdout(lines_to):
        _take_model(args)
        if not args.sweep:
            ask_for_gpu(args)
    if args.sweep:
        return sweep(args)
    try:
        try_to_write("json", args.json)
        prepare_report(args.report)
        with contextlib.redirect_stdout(lines_to):
            found = _benchmark(args)
        write_json("json", args.json, result_json(args.benchmark_name, found))
        if args.report:
            write_report(args.report, benchmark_page(found))
        return 0
    except LitegpuError as failure:
        error(str(failure))
        error(FAILED)
        if not args.graph:
            note(f"For example: {EXAMPLES[0]}")
        if config.debug_level():
            raise
        return 2 if isinstance(failure, OptionsError) else 1


def _take_model(args: argparse.Namespace) -> None:
    """Use the positional model as --graph, and report the remaining arguments.

    Raises:
        OptionsError: the command line has two models.
    """
    if args.model and args.graph:
        raise OptionsError(
            f"Two models are given: {args.model} and --graph={args.graph}. Leave one of them out."
        )
    args.graph = args.model or args.graph
    warn_of_unconsumed(args)


def _benchmark(args: argparse.Namespace) -> Results:
    """Measure the model, print the results, and write all files except JSON."""
    info("STARTING!")
    print_parameters(args)
    if args.profiling_output_csv_file:
        args.op_profiling_output_mode = "csv"
        args.op_profiling_output_file = args.profiling_output_csv_file
    check_mode(args.op_profiling_output_mode)
    layers = parse_layers(
        *(args.input_layer, args.input_layer_shape),
        *(args.input_layer_value_range, args.input_layer_value_files),
    )
    if args.batch and layers:
        raise OptionsError(
            f"--batch={args.batch} and --input_layer_shape={args.input_layer_shape} both set the "
            "shapes of the inputs. Give one of them."
        )
    for flag in _FILES:
        try_to_write(flag, getattr(args, flag) or None)
    warn_of_unused(args)
    before = peak_kb()
    watched = args.report_peak_memory_footprint
    interval = args.memory_footprint_check_interval_ms
    with contextlib.ExitStack() as stack:
        monitor = stack.enter_context(PeakMonitor(interval)) if watched else None
        gpu = stack.enter_context(GpuPeak(interval)) if watched and args.use_gpu else None
        start = time.perf_counter()
        model = load(args)
        session = open_session(args, model, layers, start)
        created = peak_kb()
        print_before(args, session)
        warm_up, runs = _run(args, session)
    memory = Memory(
        _difference(created, before),
        _difference(peak_kb(), before),
        monitor.peak_mb if monitor else 0.0,
        None if _is_software(session) else gpu,
    )
    found = Results(session, warm_up, runs, memory)
    print_timings(found)
    print_memory(memory, watched)
    print_after(args, session)
    _write_files(args, found)
    if args.measure_energy and args.dry_run:
        warn("--measure_energy has no effect: a dry run runs nothing.")
    elif args.measure_energy:
        found = replace(found, energy=energy_of(args, session))
    print_more(found)
    return found


def _is_software(session: Session) -> bool:
    """Return whether no hardware GPU runs the model; software devices use host memory."""
    gpu = session.delegates.gpu
    return gpu is None or gpu.device.software


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


# Runs


def _run(args: argparse.Namespace, session: Session) -> tuple[Stats, Stats]:
    """Print and return the statistics of the warm-up runs and of the regular runs."""
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
        with explained("Failed to invoke!"):
            stats = timed_runs(pace, session.set_inputs, session.target.invoke)
        info(f"{stats.line()}\n")
        found.append(stats)
    return found[0], found[1]


def _write_files(args: argparse.Namespace, found: Results) -> None:
    """Write the requested files, and print or write the profile."""
    session, runs = found.session, found.runs
    if args.output_filepath or args.output_proto_filepath:
        _write_outputs(args, session)
    if args.enable_op_profiling:
        mode, path = args.op_profiling_output_mode, args.op_profiling_output_file
        blocks = take_blocks(session, runs) if runs.values else []
        write_profile(mode, path, session.model.name, session.init, blocks)
    if args.result_file_path:
        info(f"Saving benchmark result to: {args.result_file_path}")
        content = result_message(args.benchmark_name, found)
        write_bytes("result_file_path", args.result_file_path, content)
        info(f"Saved benchmark result to: {args.result_file_path}")


def _write_outputs(args: argparse.Namespace, session: Session) -> None:
    """Write the outputs of the last run."""
    outputs = [
        (detail["name"], session.target.get_tensor(detail["index"]))
        for detail in session.target.get_output_details()
    ]
    if args.output_filepath:
        content = b"".join(values.tobytes() for _, values in outputs)
        write_bytes("output_filepath", args.output_filepath, content)
    if args.output_proto_filepath:
        write_bytes("output_proto_filepath", args.output_proto_filepath, example(dict(outputs)))
