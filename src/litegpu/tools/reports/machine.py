"""Collects the facts about this machine for a page."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from litegpu import list_devices
from litegpu.runtime_abi.interpreter import default_threads
from litegpu.tools.reports.sections import Facts
from litegpu.version import __version__
from litegpu.wording import shown_size

_PACKAGES = ("ai-edge-litert", "tflite-runtime", "tensorflow", "numpy")


def machine() -> Facts:
    """Return the facts about this machine: processor, devices, versions."""
    return Facts("Machine", list(_items()))


def _items() -> Iterator[tuple[str, str]]:
    yield "processor", _processor() or platform.machine()
    yield "threads", str(default_threads())
    if memory := _memory():
        yield "memory", shown_size(memory)
    for device in list_devices():
        kind = "software" if device.software else "GPU"
        yield f"{device.backend}:{device.index} ({kind})", device.name
        yield f"driver of {device.backend}:{device.index}", device.driver
    yield "system", platform.platform()
    yield "Python", platform.python_version()
    yield "litegpu", __version__
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _memory() -> int:
    """Return the size of host memory in bytes; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
