"""`litegpu check MODEL`: which nodes would run on the GPU, why others not, memory, advice."""

from __future__ import annotations

import argparse

from litegpu import ModelCheck
from litegpu.tools.console import note, terminal_width
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.model_explorer import EXPORT, export_places, prepare_export
from litegpu.tools.models import find_model
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page

ARGUMENTS = {"model": "a .tflite file, a known name, or zoo:NAME"}
FLAGS = (*DELEGATE_FLAGS, JSON, REPORT, EXPORT)
EXAMPLES = (
    "litegpu check model.tflite",
    "litegpu check --graph=zoo:mobilenet_v1_1.0_224 --precision=fp16 --json",
    "litegpu check model.tflite --report=report.html",
)


def main(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 if nothing would run on the GPU."""
    try_to_write("json", args.json)
    prepare_export(args.export)
    prepare_report(args.report)
    model = find_model(args.model)
    found = ModelCheck.of(model.content, make_delegate(args), model.source)
    report = found.report
    if not prints_json(args):
        note(f"model: {model.source}")
        print(found.text(terminal_width()))
    write_json("json", args.json, found.to_dict())
    export_places(args.export, model.content, report)
    if args.report:
        facts, parts = device_facts(report), delegation_sections(model.content, report)
        verdict = report.summary() if report else ""
        page = Page("check", model.name, verdict, [overview(facts), *parts])
        write_report(args.report, page)
    return 0 if report and report.delegated_nodes else 1
