"""`litegpu check MODEL`: what would run on the GPU, what not and why, and the memory it takes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from litegpu import DelegationReport
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report
from litegpu.tools.flags import Flag
from litegpu.tools.models import find_model
from litegpu.tools.runtime import interpreter

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
FLAGS = (*DELEGATE_FLAGS, Flag("json", bool, False, "print JSON instead of tables"))
EXAMPLES = (
    "litegpu check model.tflite",
    "litegpu check zoo:mobilenet_v1_1.0_224 --precision=fp16 --json",
)


def main(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 when nothing would run on the GPU."""
    model = find_model(args.model)
    delegate = make_delegate(args)
    kept = interpreter(model.content, delegate)
    if args.json:
        print(json.dumps({"model": model.source, "report": _as_dict(delegate.report)}, indent=2))
        return 0 if delegate.report and delegate.report.delegated_nodes else 1
    note(f"model: {model.source}")
    applied = print_report(delegate)
    if applied and delegate.report:
        _print_memory(delegate.report)
    del kept
    return 0 if applied else 1


def _as_dict(report: DelegationReport | None) -> dict[str, Any] | None:
    return report.to_dict() if report else None


def _print_memory(report: DelegationReport) -> None:
    """Print the device memory of each partition: its arena, the least possible, its constants."""
    print_table(
        (">partition", ">nodes", ">kernels", ">peak memory", ">lower bound", ">over", ">constants"),
        [
            (
                str(number),
                str(len(part.nodes)),
                str(part.kernels),
                _mebibytes(part.arena_bytes),
                _mebibytes(part.lower_bound_bytes),
                f"{_excess(part.arena_bytes, part.lower_bound_bytes):.1%}",
                _mebibytes(part.constant_bytes),
            )
            for number, part in enumerate(report.partitions)
        ],
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"


def _excess(used: int, needed: int) -> float:
    return used / needed - 1 if needed else 0.0
