"""The flags of benchmark_model, and the functions that print their values."""

from __future__ import annotations

import argparse

from litegpu.tools.benchmark_model.energy_use import ENERGY_PARAMETERS
from litegpu.tools.benchmark_model.state import INFO_PARAMETERS, LENGTH_PARAMETERS
from litegpu.tools.flags import Flag, at_least, number, positive_int, whole
from litegpu.tools.lines import info, warn
from litegpu.tools.registrar import parameter_lines
from litegpu.tools.stats import shown_value

PARAMETERS = (
    (
        Flag("num_runs", at_least(0), 50, "minimum number of measured runs"),
        "Min num runs",
    ),
    (
        Flag("min_secs", number, 1.0, "minimum seconds of the measured runs"),
        "Min runs duration (seconds)",
    ),
    (
        Flag("max_secs", number, 150.0, "no run starts after this many seconds"),
        "Max runs duration (seconds)",
    ),
    (
        Flag("run_delay", number, -1.0, "pause after each run, in seconds"),
        "Inter-run delay (seconds)",
    ),
    (
        Flag("run_frequency", number, -1.0, "start this many runs per second; overrides run_delay"),
        "Number of prorated runs per second",
    ),
    (None, "Num threads"),
    (
        Flag("use_caching", bool, False, "ignored: the cache of the CPU's packed weights"),
        "Use caching",
    ),
    (Flag("benchmark_name", str, "", "name in the result file"), "Benchmark name"),
    (
        Flag("output_prefix", str, "", "text that is only printed, as by TensorFlow Lite's tool"),
        "Output prefix",
    ),
    (Flag("warmup_runs", at_least(0), 1, "minimum number of warm-up runs"), "Min warmup runs"),
    (
        Flag("warmup_min_secs", number, 0.5, "minimum seconds of the warm-up runs"),
        "Min warmup runs duration (seconds)",
    ),
    (Flag("dry_run", bool, False, "load the model, run nothing"), "Run w/o invoking kernels"),
    (
        Flag(
            "report_peak_memory_footprint",
            bool,
            False,
            "monitor the memory footprint during all runs",
        ),
        "Report the peak memory footprint",
    ),
    (
        Flag(
            "memory_footprint_check_interval_ms",
            positive_int,
            50,
            "milliseconds between two samples of the memory",
        ),
        "Memory footprint check interval (ms)",
    ),
    (
        Flag("graph", str, "", "a model file, a known name, or zoo:NAME", metavar="MODEL"),
        "Graph",
    ),
    (
        Flag("signature_to_run_for", str, "", "run the graph of this signature", metavar="KEY"),
        "Signature to run",
    ),
    (
        Flag("list_signatures", bool, False, "print the model's signatures, run nothing"),
        "List signatures from the provided model",
    ),
    (Flag("input_layer", str, "", "names of all inputs: a,b"), "Input layers"),
    (
        Flag(
            "input_layer_shape", str, "", "shapes of the inputs of --input_layer: 1,224,224,3:1,20"
        ),
        "Input shapes",
    ),
    (
        Flag(
            "input_layer_value_range",
            str,
            "",
            "range of the inputs' random integers: name,low,high:name2,low,high",
        ),
        "Input value ranges",
    ),
    (
        Flag(
            "input_layer_value_files",
            str,
            "",
            "files with the inputs' raw bytes: name:path,name2:path2",
        ),
        "Input value files",
    ),
    (Flag("allow_fp16", bool, False, "ignored: half precision on the CPU"), "Allow fp16"),
    (
        Flag("require_full_delegation", bool, False, "fail if a node stays on the CPU"),
        "Require full delegation",
    ),
    (
        Flag("enable_op_profiling", bool, False, "measure the time of each kernel"),
        "Enable op profiling",
    ),
    (
        Flag(
            "op_profiling_output_mode",
            str,
            "stdout",
            "format of the op profile: stdout, csv or proto",
            metavar="MODE",
        ),
        "Op profiling output mode.",
    ),
    (
        Flag("op_profiling_output_file", str, "", "file of the op profile", metavar="FILE"),
        "Op profiling output file.",
    ),
    (
        Flag(
            "max_profiling_buffer_entries", whole, 1024, "no effect here: the profile has no limit"
        ),
        "Max initial profiling buffer entries",
    ),
    (
        Flag(
            "allow_dynamic_profiling_buffer_increase",
            bool,
            False,
            "no effect here: the profile has no limit",
        ),
        "Allow dynamic increase on profiling buffer entries",
    ),
    (
        Flag(
            "profiling_output_csv_file",
            str,
            "",
            "deprecated: write the op profile to this CSV file",
        ),
        "CSV File to export profiling data to",
    ),
    *INFO_PARAMETERS,
    (
        Flag("release_dynamic_tensors", bool, False, "no effect on the GPU (CPU memory only)"),
        "Release dynamic tensor memory",
    ),
    (
        Flag("optimize_memory_for_large_tensors", whole, 0, "no effect on the GPU (CPU memory)"),
        "Optimize memory usage for large tensors",
    ),
    (
        Flag("disable_delegate_clustering", bool, False, "keep the order of operations"),
        "Disable delegate clustering",
    ),
    (
        Flag(
            "enable_builtin_cast_constant_cache",
            bool,
            False,
            "ignored: a cache of the CPU's CAST operation",
        ),
        "Constant CAST output cache",
    ),
    (
        Flag(
            "output_filepath", str, "", "write the outputs' raw bytes to this file", metavar="FILE"
        ),
        "File path to export outputs layer to",
    ),
    (
        Flag("output_proto_filepath", str, "", "write the outputs to this file as a tf.Example"),
        "File path to export outputs layer as tf example to",
    ),
    (
        Flag(
            "result_file_path",
            str,
            "",
            "write the result to this file as a BenchmarkResult",
            metavar="FILE",
        ),
        "File path to save the benchmark result in binary proto format",
    ),
    *LENGTH_PARAMETERS,
    (
        Flag("batch", at_least(0), 0, "first dimension of every input; 0: the model's own"),
        "Batch",
    ),
    *ENERGY_PARAMETERS,
)
"""The flags of this tool in print order, with TensorFlow Lite's names."""

_ALWAYS = ("graph", "signature_to_run_for")
"""Flags whose values are always printed."""
_NOT_IN_PYTHON = (
    *("use_caching", "allow_fp16", "release_dynamic_tensors", "optimize_memory_for_large_tensors"),
    "enable_builtin_cast_constant_cache",
)
"""Settings that the runtime's Python API does not support."""
_NO_BUFFER = ("max_profiling_buffer_entries", "allow_dynamic_profiling_buffer_increase")
_NEEDS = {
    "memory_footprint_check_interval_ms": "report_peak_memory_footprint",
    "op_profiling_output_mode": "enable_op_profiling",
    "op_profiling_output_file": "enable_op_profiling",
    "profiling_output_csv_file": "enable_op_profiling",
    "model_runtime_info_output_file": "export_model_runtime_info",
    "csv": "sweep",
    **dict.fromkeys(("sweep_backends", "sweep_precisions", "sweep_batches", "sweep_goal"), "sweep"),
    **dict.fromkeys(("sweep_tolerance", "sweep_timeout_secs"), "sweep"),
    "energy_min_secs": "measure_energy",
    "energy_idle_secs": "measure_energy",
}
"""Flags that have an effect only together with another flag, and that flag."""


def print_parameters(args: argparse.Namespace) -> None:
    """Print the specified flags, or with --verbose all flags, in TensorFlow Lite's order."""
    info(f"Log parameter values verbosely: [{int(args.verbose)}]")
    for flag, text in PARAMETERS:
        name = flag.name if flag else "num_threads"
        if args.verbose or name in args.given or name in _ALWAYS:
            info(f"{text}: [{shown_value(getattr(args, name))}]")
    for line in parameter_lines(args, args.verbose):
        info(line)


def warn_of_unused(args: argparse.Namespace) -> None:
    """Warn about specified flags without effect."""
    for name in args.given:
        if name in _NOT_IN_PYTHON and getattr(args, name):
            warn(f"--{name} has no effect: the runtime's Python interface has no such setting.")
        if name in _NEEDS and not getattr(args, _NEEDS[name]):
            warn(
                f"`--{_NEEDS[name]}=true` must be set for the provided {name} "
                f"({shown_value(getattr(args, name))}) to be used."
            )
        if name in _NO_BUFFER:
            warn(f"--{name} has no effect: the profile is not limited.")
