"""`litegpu check MODEL`: what would run on the GPU, what not and why, memory, and advice."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from litegpu import DelegationReport
from litegpu.tools.console import PIPE_WIDTH, note
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report, with_delegate
from litegpu.tools.flags import Flag
from litegpu.tools.models import find_model

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
FLAGS = (*DELEGATE_FLAGS, Flag("json", bool, False, "print JSON instead of tables"))
EXAMPLES = (
    "litegpu check model.tflite",
    "litegpu check --graph=zoo:mobilenet_v1_1.0_224 --precision=fp16 --json",
)


def main(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 when nothing would run on the GPU."""
    model = find_model(args.model)
    delegate = make_delegate(args)
    kept = with_delegate(model.content, delegate)
    if args.json:
        print(json.dumps({"model": model.source, "report": _as_dict(delegate.report)}, indent=2))
        return 0 if delegate.report and delegate.report.delegated_nodes else 1
    note(f"model: {model.source}")
    applied = print_report(delegate)
    if delegate.report:
        print_advice(delegate.report)
    del kept
    return 0 if applied else 1


def print_advice(report: DelegationReport) -> None:
    """Print what would help each graph of the model, one numbered paragraph each."""
    for number, each in enumerate((report, *report.subgraphs)):
        title = f"advice on subgraph {number}" if number else "advice"
        if not each.advice:
            print(f"\n{title}: none")
            continue
        print(f"\n{title} (times are estimates for a GPU)")
        for place, advice in enumerate(each.advice, start=1):
            start = f"{place:3}. "
            print(
                textwrap.fill(
                    advice.text,
                    PIPE_WIDTH,
                    initial_indent=start,
                    subsequent_indent=" " * len(start),
                )
            )


def _as_dict(report: DelegationReport | None) -> dict[str, Any] | None:
    return report.to_dict() if report else None
