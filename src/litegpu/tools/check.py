"""`litegpu check MODEL`: what would run on the GPU, what not and why, memory, and advice."""

from __future__ import annotations

import argparse
from collections import Counter

from litegpu import DelegationReport
from litegpu.errors import MissingDependencyError
from litegpu.tools.console import note, print_text
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate, print_report, with_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.model_explorer import EXPORT, export_places, prepare_export
from litegpu.tools.models import find_model
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page
from litegpu.wording import counted
from litegpu.zoo import kinds

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
FLAGS = (*DELEGATE_FLAGS, JSON, REPORT, EXPORT)
EXAMPLES = (
    "litegpu check model.tflite",
    "litegpu check --graph=zoo:mobilenet_v1_1.0_224 --precision=fp16 --json",
    "litegpu check model.tflite --report=report.html",
)


def main(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 when nothing would run on the GPU."""
    try_to_write("json", args.json)
    prepare_export(args.export)
    prepare_report(args.report)
    model = find_model(args.model)
    delegate = make_delegate(args)
    delegated = with_delegate(model.content, delegate)
    report = delegate.report
    if not prints_json(args):
        note(f"model: {model.source}")
        print_report(delegate)
        if report:
            print_quantization(model.content, report)
            print_advice(report)
    kind = _kind_of(model.content)
    found = report.to_dict() if report else None
    write_json("json", args.json, {"model": model.source, "type": kind, "report": found})
    export_places(args.export, model.content, report)
    if args.report:
        facts, parts = device_facts(report), delegation_sections(model.content, report)
        verdict = report.summary() if report else ""
        page = Page("check", model.name, verdict, [overview(facts), *parts])
        write_report(args.report, page)
    del delegated
    return 0 if report and report.delegated_nodes else 1


def _kind_of(content: bytes) -> str | None:
    """Return the kind of a model, None where what reads files is not installed."""
    try:
        return kinds.kind_of(content)
    except MissingDependencyError:
        return None


_MODES = {
    "exact": "in their integers, equal to the CPU's kernels in every bit",
    "float": "as real numbers, kept in the range of the stored integers and on their grid",
}
_WEIGHTS_ONLY = {
    "exact": "floats rounded to bytes where weights are, summed up as the CPU's kernels do",
    "float": "weights as real numbers",
}
"""The same where floats are computed, and only weights are quantized."""


def print_quantization(content: bytes, report: DelegationReport) -> None:
    """Print how a model is quantized, and what the GPU could run of it in each way."""
    if not report.quantized:
        return
    how = _kind_of(content) or "(pip install 'litegpu[zoo]' to see how)"
    print(f"\nquantized: {how}")
    modes = _WEIGHTS_ONLY if how == kinds.DYNAMIC else _MODES
    for each in report.quantized:
        start = f'  quantized="{each.mode}": '
        line = f"{each.nodes} of {report.total_nodes} nodes, {modes[each.mode]}"
        print_text(start + line, " " * 4)
        reasons = Counter((node.op, node.reason) for node in each.rejected)
        for (op, reason), count in reasons.most_common(_REASONS):
            print_text(f"    {op} ({counted(count, 'node')}): {reason}", " " * 6)
        if len(reasons) > _REASONS:
            print(f"    {counted(len(reasons) - _REASONS, 'more reason')}: see --json")


_REASONS = 5
"""Reasons that are printed of each way; --json has all."""


def print_advice(report: DelegationReport) -> None:
    """Print what would help each graph of the model, one numbered paragraph each."""
    for number, each in enumerate((report, *report.subgraphs)):
        title = f"advice on subgraph {number}" if number else "advice"
        if not each.advice:
            print(f"\n{title}: none")
            continue
        print(f"\n{title} (times are estimates for a GPU)")
        for index, advice in enumerate(each.advice, start=1):
            start = f"{index:3}. "
            print_text(start + advice.text, " " * len(start))
