"""`litegpu doctor`: finds out why models do not run on this machine's GPU, with remedies."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from litegpu.tools.console import UNBROKEN, note, print_text
from litegpu.tools.doctor.findings import Finding, Machine, run_checks
from litegpu.tools.doctor.host import cache_folder, environment, packages, system
from litegpu.tools.doctor.libraries import egl_drivers, opencl_drivers, vulkan_drivers
from litegpu.tools.doctor.nodes import gpus, nvidia_in_containers, render_nodes
from litegpu.tools.doctor.nvidia import compiler, hidden_gpus
from litegpu.tools.doctor.outcomes import Examined, devices
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.wording import counted

ARGUMENTS: dict[str, str] = {}
FLAGS = (JSON,)
EXAMPLES = ("litegpu doctor", "litegpu doctor > doctor.txt", "litegpu doctor --json=doctor.json")
NOTES = (
    "The doctor loads the drivers and runs a small model on each device, in separate processes, "
    "because broken drivers crash or hang. The output contains no user names and can be pasted "
    "into an issue. The exit status is 1 if no device computes the CPU's result.",
)
CHECKS = (
    *(system, packages, environment, cache_folder),
    *(gpus, nvidia_in_containers, render_nodes, hidden_gpus, compiler),
    *(opencl_drivers, vulkan_drivers, egl_drivers),
)


_HOMES = r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":;,)]+"
"""A pattern that matches users' home folders."""
_LEVEL, _TOPIC = 9, 13
"""Column widths of the level and the topic."""


def main(args: argparse.Namespace) -> int:
    """Run all checks, and print the findings with remedies."""
    try_to_write("json", args.json)
    note("litegpu doctor: trying every driver and device (up to a minute) ...")
    tried = devices()
    found = [_without_home(each) for each in (*run_checks(Machine(), CHECKS), *tried.findings)]
    verdict = _verdict(found, tried)
    if not prints_json(args):
        _print(found, verdict)
    content = {"usable_devices": tried.usable, "usable_gpus": tried.gpus, "verdict": verdict}
    write_json("json", args.json, {**content, "findings": [each.to_dict() for each in found]})
    return 0 if tried.usable else 1


def _verdict(found: Sequence[Finding], tried: Examined) -> str:
    problems = sum(each.level == "problem" for each in found)
    usable = counted(tried.usable, "device") if tried.usable else "No device"
    kind = " (no GPU: all are software)" if tried.usable and not tried.gpus else ""
    many = counted(problems, "problem") if problems else "no problem"
    return f"{usable} can be used{kind}; {many} found."


def _print(found: Sequence[Finding], verdict: str) -> None:
    indent = " " * (_LEVEL + _TOPIC)
    for each in found:
        print_text(f"{each.level:{_LEVEL}}{each.topic:{_TOPIC}}{each.text}", indent)
    remedies = list(dict.fromkeys((each.topic, each.remedy) for each in found if each.remedy))
    if remedies:
        print("\nSuggestions:")
    for topic, remedy in remedies:
        print_text(f"- {topic}: {remedy.replace(' ', UNBROKEN)}", "  ")
    print(f"\n{verdict}")


def _without_home(finding: Finding) -> Finding:
    """Return a finding without the user names in paths of home folders."""
    try:
        home = str(Path.home())
    except RuntimeError:
        home = ""
    own = rf"{re.escape(home)}(?![\w.-])|" if len(home) > 1 and home != "/root" else ""
    hidden = re.compile(own + _HOMES)
    text, remedy = (hidden.sub("~", each) for each in (finding.text, finding.remedy))
    return Finding(finding.topic, finding.level, text, remedy)
