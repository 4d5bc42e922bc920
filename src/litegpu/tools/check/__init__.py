"""`litegpu check MODEL`: which nodes would run on the GPU, reasons for others, memory, advice."""

from __future__ import annotations

import argparse
from typing import Any

from litegpu import ModelCheck
from litegpu.errors import ModelError
from litegpu.files import MODEL, Container, Member
from litegpu.runtime_abi.file import ModelFile
from litegpu.tools.console import note, print_table, terminal_width
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.model_explorer import EXPORT, export_places, prepare_export
from litegpu.tools.models import find_container, find_model
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page
from litegpu.wording import printable, shown_size

ARGUMENTS = {"model": "a model file, a known name, or zoo:NAME"}
FLAGS = (*DELEGATE_FLAGS, JSON, REPORT, EXPORT)
EXAMPLES = (
    "litegpu check model.tflite",
    "litegpu check --graph=zoo:mobilenet_v1_1.0_224 --precision=fp16 --json",
    "litegpu check face_landmarker.task",
    "litegpu check model.tflite --report=report.html",
)


def main(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 if nothing would run on the GPU.

    For a bundle, the tool lists the members and checks each model. `--report` and `--export` need a
    single model.
    """
    try_to_write("json", args.json)
    prepare_export(args.export)
    prepare_report(args.report)
    container = None if args.report or args.export else find_container(args.model)
    if container is not None:
        return _check_all(container, args)
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


def _check_all(container: Container, args: argparse.Namespace) -> int:
    """Print the members of a bundle and the report of each model.

    The exit status is 1 if a model is damaged or does not run on the GPU.

    Raises ModelError, after printing the list, if the bundle contains no model.
    """
    if not prints_json(args):
        note(f"bundle: {container.path}")
        rows = [
            (each.name, each.kind, shown_size(each.size), _keys(each)) for each in container.members
        ]
        print_table(("member", "kind", ">size", "signatures"), rows)
    results: list[dict[str, Any]] = []
    for member in container.models:
        name = f"{container.path}:{member.name}"
        if not prints_json(args):
            note(f"\nmodel: {printable(name)}")
        try:
            found = ModelCheck.of(bytes(member.view()), make_delegate(args), name)
        except ModelError as error:
            results.append({"model": name, "error": str(error)})
            note(f"ERROR: {error}")
            continue
        results.append(found.to_dict())
        if not prints_json(args):
            print(found.text(terminal_width()))
    members = [
        {"name": each.name, "kind": each.kind, "bytes": each.size} for each in container.members
    ]
    content = {"bundle": container.path, "members": members, "models": results}
    write_json("json", args.json, content)
    if not results:
        container.model()
    runs = [bool(each.get("report") and each["report"]["delegated_nodes"]) for each in results]
    return 0 if all(runs) else 1


def _keys(member: Member) -> str:
    """Return the signature keys of a member that is a model."""
    if member.kind != MODEL:
        return ""
    try:
        return ", ".join(ModelFile(member.view()).signature_keys())
    except ModelError:
        return "damaged"
