"""Code shared by TensorFlow Lite's evaluation tasks: their flags, delegates and failures."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from litegpu.errors import LitegpuError, OptionsError
from litegpu.tools.flags import Flag, one_of, positive_int
from litegpu.tools.lines import error, info, warn, warn_of_unconsumed
from litegpu.tools.registrar import Delegates, make_delegates

DELEGATES = ("nnapi", "gpu", "hexagon", "xnnpack", "coreml")
"""The values of --delegate."""

DELEGATE = Flag(
    *("delegate", one_of(DELEGATES), None),
    "the delegate to test: gpu, xnnpack, nnapi, hexagon or coreml",
    metavar="TEXT",
)
THREADS = Flag(
    "num_interpreter_threads", positive_int, 1, "number of CPU threads of the tested model"
)
METRICS_FILE = Flag(
    "output_file_path", str, "", "write the metrics to this file as EvaluationStageMetrics"
)


FAILED = "Could not run the task evaluation!"
"""The last line that evaluation tools print after a failure."""


@contextlib.contextmanager
def failing_task(args: argparse.Namespace) -> Iterator[None]:
    """Print TensorFlow Lite's messages if the evaluation fails, and reraise the error.

    On entry, the context manager warns about repeated flags.
    """
    warn_of_unconsumed(args)
    try:
        yield
    except LitegpuError as failure:
        if not isinstance(failure, OptionsError):
            error(FAILED)
        raise


def task_delegates(args: argparse.Namespace, model: bytes) -> Delegates:
    """Return the tested delegates, from --delegate and from the registrar's flags."""
    if "num_threads" in args.given:
        warn("--num_threads is not used here: use --num_interpreter_threads.")
    return make_delegates(task_arguments(args), model)


def task_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """Return the registrar's flags, updated by --delegate and --num_interpreter_threads."""
    enabled = {f"use_{args.delegate}": True} if args.delegate else {}
    return argparse.Namespace(
        **{**vars(args), **enabled, "num_threads": args.num_interpreter_threads}
    )


def print_placement(delegates: Delegates) -> None:
    """Print how many nodes the GPU delegate runs, if one is used."""
    gpu = delegates.gpu
    if gpu is None:
        return
    if gpu.report is not None:
        info(gpu.report.summary())
    if gpu.report is None or not gpu.report.delegated_nodes:
        warn(
            "Though GPU delegate is explicitly applied, the model graph will not be executed by "
            "the delegate."
        )
