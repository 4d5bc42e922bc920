"""What the tools share about the delegate: its flags, how it is made, how its report is shown."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from litegpu import GpuDelegate, config
from litegpu.tools.console import note
from litegpu.tools.flags import Flag
from litegpu.tools.runtime import interpreter

DELEGATE_FLAGS = (
    Flag("backend", str, None, "the GPU API to use, such as opencl (default: the best one here)"),
    Flag("device", str, None, "index or part of the name of the device, see `litegpu devices`"),
    Flag("precision", str, None, "fp32 or fp16 (fp16: half stored, float accumulated)"),
    Flag("max_delegated_partitions", int, 0, "most parts to run on the GPU; 0 means the default"),
)


def make_delegate(args: argparse.Namespace) -> GpuDelegate:
    """Return the delegate that the flags ask for.

    Raises:
        OptionsError, UnsupportedDeviceError: the flags cannot be met here.
    """
    device = args.device
    options = {
        "backend": args.backend,
        "device": int(device) if device and device.isdecimal() else device,
        "precision": args.precision,
        "max_delegated_partitions": args.max_delegated_partitions,
    }
    return GpuDelegate(**{name: value for name, value in options.items() if value})


def with_delegate(model: bytes, delegate: GpuDelegate, threads: int = 1) -> Any:
    """Return an interpreter of `model` that `delegate` was applied to.

    What the delegate logs meanwhile is all in its report, so only LITEGPU_DEBUG shows it twice.
    """
    log = logging.getLogger("litegpu")
    level = log.level
    if not config.debug_level():
        log.setLevel(logging.ERROR)
    try:
        return interpreter(model, delegate, threads)
    finally:
        log.setLevel(level)


def print_report(delegate: GpuDelegate) -> bool:
    """Print what runs where; return False, and say so, when nothing runs on the GPU."""
    report = delegate.report
    if report is None:
        note("The delegate was not applied: the whole model runs on the CPU.")
        return False
    print(report)
    return bool(report.delegated_nodes)
