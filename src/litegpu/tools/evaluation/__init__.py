"""What the evaluation tasks of TensorFlow Lite share: their flags, delegates and ways to fail."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from litegpu.errors import LitegpuError, OptionsError
from litegpu.tools.flags import Flag, one_of, positive_int
from litegpu.tools.lines import error, info, warn, warn_of_unconsumed
from litegpu.tools.registrar import Delegates, make_delegates

DELEGATES = ("nnapi", "gpu", "hexagon", "xnnpack", "coreml")
"""What --delegate may be."""

DELEGATE = Flag(
    *("delegate", one_of(DELEGATES), None),
    "what to test: gpu, xnnpack, nnapi, hexagon or coreml",
    metavar="TEXT",
)
THREADS = Flag("num_interpreter_threads", positive_int, 1, "CPU threads of what is tested")
METRICS_FILE = Flag(
    "output_file_path", str, "", "write the metrics there, as EvaluationStageMetrics"
)


FAILED = "Could not run the task evaluation!"
"""The last words of these tools."""


@contextlib.contextmanager
def failing_task(args: argparse.Namespace) -> Iterator[None]:
    """Say the original's words where the evaluation fails, and let the reason go on.

    It begins with those about words of the command line that nothing was made of.
    """
    warn_of_unconsumed(args)
    try:
        yield
    except LitegpuError as failure:
        if not isinstance(failure, OptionsError):
            error(FAILED)
        raise


def task_delegates(args: argparse.Namespace, model: bytes) -> Delegates:
    """Return what is tested: what --delegate names, and what the registrar's flags ask for."""
    if "num_threads" in args.given:
        warn("--num_threads is not used here: --num_interpreter_threads is what counts.")
    return make_delegates(task_arguments(args), model)


def task_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """Return the registrar's flags as --delegate and --num_interpreter_threads set them."""
    enabled = {f"use_{args.delegate}": True} if args.delegate else {}
    return argparse.Namespace(
        **{**vars(args), **enabled, "num_threads": args.num_interpreter_threads}
    )


def say_what_runs_where(delegates: Delegates) -> None:
    """Print how much of the model the GPU delegate has taken, where there is one."""
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
