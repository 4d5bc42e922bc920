"""Code shared by the tools: flags, creation and report of the delegate."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from litegpu import (
    ExperimentalFlags,
    GpuDelegate,
    InferencePreference,
    InferencePriority,
    config,
)
from litegpu.backends import BACKENDS
from litegpu.host.disk_cache import LOG
from litegpu.options import PRECISIONS, QUANTIZED_MODES
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.tools.console import note, start_bar, terminal_width
from litegpu.tools.flags import Flag, listed, member, truth_or_text, whole

_PRIORITY = member(InferencePriority)
_PREFERENCE = member(InferencePreference)

DELEGATE_FLAGS = (
    Flag(
        *("backend", str, None),
        "the GPU API: cuda, opencl (cl), webgpu (or vulkan, metal, d3d12), opengl (gl)",
        known=tuple(BACKENDS),
    ),
    Flag(
        "device",
        str,
        None,
        "number of the device or part of its name; `litegpu devices` lists both",
    ),
    Flag(
        *(
            "precision",
            str,
            None,
            "fp32 (default), or fp16 (tensors stored as float16, sums in float32)",
        ),
        known=PRECISIONS,
    ),
    Flag(
        *("quantized", str, None, "quantized tensors: exact (default; as the CPU) or float"),
        known=QUANTIZED_MODES,
    ),
    Flag(
        "inference_preference",
        _PREFERENCE,
        None,
        f"how kernels are selected: {listed(InferencePreference)}",
    ),
    Flag("inference_priority1", _PRIORITY, None, f"first priority: {listed(InferencePriority)}"),
    Flag("inference_priority2", _PRIORITY, None, "second priority"),
    Flag("inference_priority3", _PRIORITY, None, "third priority"),
    Flag("is_precision_loss_allowed", whole, None, "-1: by the priorities, 0: fp32, 1: fp16"),
    Flag("experimental_flags", whole, None, f"sum of: {listed(ExperimentalFlags)} (default: 1)"),
    Flag(
        "max_delegated_partitions",
        whole,
        None,
        "maximum number of partitions on the GPU (default: by estimated time)",
    ),
    Flag(
        "min_nodes_per_partition",
        whole,
        None,
        "minimum nodes of a partition on the GPU (default: by estimated time)",
    ),
    Flag(
        *("invoke_timeout_ms", whole, None),
        "timeout of an invoke in milliseconds (default: no limit)",
    ),
    Flag("first_delegate_node_index", whole, None, "nodes before this one stay on the CPU"),
    Flag("last_delegate_node_index", whole, None, "nodes after this one stay on the CPU"),
    Flag(
        *("cache", truth_or_text, None),
        "cache compiled partitions on disk, in FOLDER (default: on, unless LITEGPU_CACHE=0)",
        bare="true",
        metavar="[FOLDER]",
    ),
    Flag(
        "unsafe_cache",
        bool,
        None,
        "use the cache even if other users may write to it (you trust them)",
    ),
    Flag(
        *("quick_start", bool, None),
        "start with quickly compiled CUDA kernels, and optimize them later (default: with a cache)",
    ),
    Flag("serialization_dir", str, None, "folder of the cache"),
    Flag("model_token", str, None, "name of the model in the cache"),
)
"""One flag for each option of the delegate; an absent flag leaves the option's default."""


def make_delegate(args: argparse.Namespace) -> GpuDelegate:
    """Create the delegate with the options from the flags.

    Raises: OptionsError, UnsupportedDeviceError: this machine cannot satisfy the flags.
    """
    return GpuDelegate(**given_options(args), on_progress=start_bar())


def given_options(
    args: argparse.Namespace, flags: Sequence[Flag] = DELEGATE_FLAGS
) -> dict[str, Any]:
    """Return the delegate's options that flags on the command line set."""
    given = {flag.name: getattr(args, flag.name) for flag in flags}
    return {name: value for name, value in given.items() if value is not None}


def with_delegate(
    model: bytes,
    delegate: GpuDelegate,
    threads: int = 1,
    builtin_kernels: bool = False,
    allocate: bool = True,
) -> Any:
    """Return an interpreter of `model` with `delegate` applied; `allocate`: with its tensors.

    Meanwhile the delegate's log is suppressed, because the report contains the same facts.
    LITEGPU_DEBUG enables the log.
    """
    with quietly():
        return interpreter(model, delegate, threads, builtin_kernels, allocate)


@contextlib.contextmanager
def quietly() -> Iterator[list[str]]:
    """Suppress logs of delegates below errors, unless LITEGPU_DEBUG is set.

    Warnings of the cache are not part of a report, so the context manager prints them as notes. The
    yielded list contains these warnings.
    """
    log = logging.getLogger("litegpu")
    level, propagate, warnings = log.level, LOG.propagate, _Warnings(logging.WARNING)
    LOG.addHandler(warnings)
    if not config.debug_level():
        log.setLevel(logging.ERROR)
        LOG.setLevel(logging.WARNING)
        LOG.propagate = False
    try:
        yield warnings.messages
    finally:
        log.setLevel(level)
        LOG.setLevel(logging.NOTSET)
        LOG.propagate = propagate
        LOG.removeHandler(warnings)


class _Warnings(logging.Handler):
    """A log handler that records cache warnings, and prints those that no other handler prints."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if not LOG.propagate:
            note(self.messages[-1])


def print_report(delegate: GpuDelegate) -> bool:
    """Print which nodes run where; return False, after a message, if none runs on the GPU."""
    report = delegate.report
    if report is None:
        note("The delegate was not applied: the whole model runs on the CPU.")
        return False
    print(report.text(terminal_width()))
    return bool(report.delegated_nodes)
