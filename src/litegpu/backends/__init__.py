"""GPU APIs behind one interface, and the choice among their devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu import config
from litegpu.backends.base import Backend, Device, DeviceInfo, Recording
from litegpu.backends.cuda import CUDABackend
from litegpu.backends.opencl import OpenCLBackend
from litegpu.errors import (
    LitegpuError,
    MissingDependencyError,
    OptionsError,
    UnsupportedDeviceError,
    did_you_mean,
)

_log = logging.getLogger("litegpu")

BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (CUDABackend(), OpenCLBackend())  # in order of preference
}


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """What a backend offers here: its devices, or why there are none and what would help.

    `reason` says both; `remedy` is the command to type, where one is known.
    """

    name: str
    devices: tuple[DeviceInfo, ...]
    reason: str = ""
    remedy: str = ""


def status() -> list[BackendStatus]:
    """Return the state of every backend, in order of preference."""
    return [_status_of(backend) for backend in BACKENDS.values()]


def list_devices() -> list[DeviceInfo]:
    """Return every usable device of every backend; software devices are marked."""
    return [device for backend in status() for device in backend.devices]


def select(backend: str | None, device: int | str | None) -> Device:
    """Open the device that the options (then the environment) ask for, else the best one.

    Raises OptionsError for unknown names, UnsupportedDeviceError when nothing fits.
    """
    backend = backend or config.text("LITEGPU_BACKEND") or None
    if device is None:
        device = config.text("LITEGPU_DEVICE") or None
    if backend is not None and backend not in BACKENDS:
        raise OptionsError(f"Unknown backend '{backend}'.{did_you_mean(backend, BACKENDS)}")
    found = [_status_of(BACKENDS[backend])] if backend else status()
    candidates = [info for each in found for info in each.devices]
    if not candidates:
        reasons = "\n".join(f"  {each.name}: {each.reason}" for each in found)
        raise UnsupportedDeviceError(f"No usable GPU device:\n{reasons}")
    if device is not None:
        chosen = _match(candidates, device)
    else:
        chosen = min(candidates, key=lambda info: info.software)
        if chosen.software:
            _log.warning(
                "%s is a software device: the runtime's own CPU kernels are faster.", chosen.title
            )
    return BACKENDS[chosen.backend].open(chosen.index)


def _status_of(backend: Backend) -> BackendStatus:
    try:
        return BackendStatus(backend.name, tuple(backend.devices()))
    except MissingDependencyError as error:
        remedy = f"pip install 'litegpu[{backend.extra}]'"
        return BackendStatus(backend.name, (), str(error), remedy)
    except LitegpuError as error:
        return BackendStatus(backend.name, (), str(error), "")


def _match(candidates: list[DeviceInfo], wanted: int | str) -> DeviceInfo:
    """Return the device of that index, or the first whose name contains the text."""
    text = str(wanted)
    for info in candidates:
        if text.isdigit() and info.index == int(text):
            return info
        if not text.isdigit() and text.lower() in f"{info.name} {info.platform}".lower():
            return info
    names = "; ".join(f"{info.title} ({info.platform})" for info in candidates)
    raise UnsupportedDeviceError(
        f"No device matches '{wanted}'. Usable devices: {names}. Give an index or part of a name."
    )


__all__ = [
    "BACKENDS",
    "Backend",
    "BackendStatus",
    "Device",
    "DeviceInfo",
    "Recording",
    "list_devices",
    "select",
    "status",
]
