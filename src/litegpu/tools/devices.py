"""`litegpu devices`: what every backend offers here, or why it offers nothing."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from litegpu import backends
from litegpu.tools.console import print_table
from litegpu.tools.flags import Flag

ARGUMENTS: dict[str, str] = {}
FLAGS = (Flag("json", bool, False, "print JSON instead of a table"),)
EXAMPLES = ("litegpu devices", "litegpu devices --json")


def main(args: argparse.Namespace) -> int:
    """Print every backend; the exit status is 1 when no device is usable at all."""
    statuses = backends.status()
    if args.json:
        print(json.dumps([as_dict(status) for status in statuses], indent=2))
    else:
        _print_text(statuses)
    return 0 if any(status.devices for status in statuses) else 1


def as_dict(status: backends.BackendStatus) -> dict[str, Any]:
    """Return one backend's status as plain data for JSON."""
    return dataclasses.asdict(status)


def _print_text(statuses: list[backends.BackendStatus]) -> None:
    devices = [device for status in statuses for device in status.devices]
    if devices:
        print_table(
            ("backend", ">index", "device", "kind", "driver", ">units", ">memory", "half"),
            [_device_row(device) for device in devices],
        )
    for status in statuses:
        if not status.devices:
            print(f"{status.name}: no usable device. {status.reason} {status.remedy}".rstrip())


def _device_row(device: backends.DeviceInfo) -> tuple[str, ...]:
    return (
        device.backend,
        str(device.index),
        f"{device.name} ({device.platform})",
        "software" if device.software else "GPU",
        device.driver.split(" (")[0],
        str(device.compute_units),
        f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else "unknown",
        "arithmetic" if device.half_arithmetic else "storage",
    )
