"""Measures the energy of CPUs with RAPL, which Linux exposes in /sys/class/powercap."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from litegpu.tools.benchmark_model.energy import Meter, MeterError

_POWERCAP = Path("/sys/class/powercap")
_ZONE = re.compile(r"intel-rapl(:\d+)+")
"""Names of RAPL's folders (also on AMD); `intel-rapl-mmio` duplicates the same packages."""


@dataclass
class _Zone:
    """A counter of microjoules that wraps to 0 beyond `range`."""

    file: Path
    range: int
    last: int = 0
    total: int = 0

    def read(self) -> int:
        """Return the microjoules since the first reading."""
        now = _number(self.file)
        self.total += (now - self.last) % (self.range + 1)
        self.last = now
        return self.total


class RaplMeter(Meter):
    """Measures all CPU packages, and memory if RAPL counts it separately."""

    kind = "CPU"

    def __init__(self, zones: list[_Zone], name: str) -> None:
        self._zones, self.name = zones, name

    def __enter__(self) -> RaplMeter:
        for zone in self._zones:
            zone.last, zone.total = _number(zone.file), 0
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> float:
        """Return the joules since the start of the `with` block. Raises MeterError."""
        return sum(zone.read() for zone in self._zones) / 1e6


def cpu_meter() -> RaplMeter:
    """Return the meter of this machine's CPU, which includes all processes.

    Raises:
        MeterError: the system has no RAPL counters, or the user may not read them.
    """
    if not sys.platform.startswith("linux"):
        raise MeterError("The energy of the CPU is not measured: only Linux reports it (RAPL).")
    folders = sorted(each for each in _POWERCAP.glob("*") if _ZONE.fullmatch(each.name))
    zones: list[_Zone] = []
    names = []
    for folder in folders:
        name = _text(folder / "name")
        # Packages include their cores; `psys` includes the packages.
        if name.startswith("package") or (name == "dram" and folder.name.count(":") == 2):
            zone = _Zone(folder / "energy_uj", _number(folder / "max_energy_range_uj"))
            zone.read()
            zones.append(zone)
            names.append(name)
    if not any(name.startswith("package") for name in names):
        raise MeterError(
            f"The energy of the CPU is not measured: {_POWERCAP} has no package of intel-rapl. "
            "Virtual machines and most containers hide this interface; on other machines: sudo "
            "modprobe intel_rapl_msr"
        )
    return RaplMeter(zones, f"{', '.join(names)}, by RAPL")


def _number(file: Path) -> int:
    text = _text(file)
    if not text.isdecimal():
        raise MeterError(f"The energy of the CPU is not measured: {file} holds '{text}'.")
    return int(text)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except PermissionError as error:
        raise MeterError(
            f"The energy of the CPU is not measured: only root may read {file}. Allow reading "
            f"with: sudo chmod -R a+r {_POWERCAP}/intel-rapl/"
        ) from error
    except (OSError, ValueError) as error:
        raise MeterError(
            f"The energy of the CPU is not measured: {file} cannot be read ({error})."
        ) from error
