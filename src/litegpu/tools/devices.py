"""`litegpu devices`: lists the devices of every backend, or why a backend has no devices."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from litegpu import DeviceInfo, backends
from litegpu.tools.console import UNBROKEN, print_table, print_text
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page, Section, Table, Text

ARGUMENTS: dict[str, str] = {}
FLAGS = (JSON, REPORT)
EXAMPLES = ("litegpu devices", "litegpu devices --json", "litegpu run model.tflite --device=0")
NOTES = (
    "Use the number in the first column for --device and GpuDelegate(device=...). If a backend is "
    "given, too, use the number after the backend's name.",
)


def main(args: argparse.Namespace) -> int:
    """Print every backend; return 1 if no device is usable, else 0."""
    try_to_write("json", args.json)
    prepare_report(args.report)
    statuses = backends.status()
    if not prints_json(args):
        _print_text(statuses)
    write_json("json", args.json, as_list(statuses))
    if args.report:
        write_report(args.report, _page(statuses))
    return 0 if any(status.devices for status in statuses) else 1


def as_list(statuses: list[backends.BackendStatus]) -> list[dict[str, Any]]:
    """Return the state of all backends, including device numbers, as plain data for JSON."""
    numbers = {device.title: index for index, device in enumerate(backends.ranked(statuses))}
    found = [dataclasses.asdict(status) for status in statuses]
    for status, entry in zip(statuses, found, strict=True):
        for device, facts in zip(status.devices, entry["devices"], strict=True):
            facts["number"] = numbers[device.title]
    return found


def _page(statuses: list[backends.BackendStatus]) -> Page:
    devices = backends.ranked(statuses)
    rows = [_device_row(number, device) for number, device in enumerate(devices)]
    reasons = [f"{each.name}: {each.reason}" for each in statuses if not each.devices]
    sections: list[Section] = [Table("Devices", _COLUMNS, rows)]
    sections += [Text("Backends without a usable device", reasons)] if reasons else []
    verdict = f"{devices[0].title} is the default." if devices else "No device."
    return Page("devices", "this machine", verdict, sections)


_COLUMNS = (">number", "backend", "device", "kind", "?driver", "?>memory")


def _print_text(statuses: list[backends.BackendStatus]) -> None:
    devices = backends.ranked(statuses)
    if devices:
        print_table(
            _COLUMNS,
            [_device_row(number, device) for number, device in enumerate(devices)],
        )
    for index, status in enumerate(each for each in statuses if not each.devices):
        if devices and not index:
            print()
        # A command on one line can be copied.
        reason = status.reason.replace(status.remedy, _in_one_piece(status.remedy))
        print_text(f"{status.name}: no usable device. {reason}", "  ")


def _in_one_piece(command: str) -> str:
    return command.replace(" ", UNBROKEN)


def _device_row(number: int, device: DeviceInfo) -> tuple[str, ...]:
    return (
        str(number),
        f"{device.backend}:{device.index}",
        device.name,
        "software" if device.software else "GPU",
        device.driver.split(" (")[0],
        f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else "unknown",
    )
