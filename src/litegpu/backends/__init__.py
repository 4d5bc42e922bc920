"""GPU APIs behind one interface, and the choice among their devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from litegpu import config
from litegpu.backends.base import Backend, Device, DeviceInfo, Recording
from litegpu.backends.cuda import CUDABackend
from litegpu.backends.opencl import OpenCLBackend
from litegpu.backends.opengl import OpenGLBackend
from litegpu.backends.webgpu import WebGPUBackend
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
    for backend in (
        CUDABackend(),
        OpenCLBackend(),
        WebGPUBackend(),
        OpenGLBackend(),
    )  # in order of preference
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

    Raises OptionsError for unknown names, MissingDependencyError when the package of the
    backend that was asked for is not installed, UnsupportedDeviceError when nothing fits.
    """
    backend = backend or _backend_of_environment()
    if device is None or device == "":
        device = config.text("LITEGPU_DEVICE") or None
    if backend is not None and backend not in BACKENDS:
        raise OptionsError(f"Unknown backend '{backend}'.{did_you_mean(backend, BACKENDS)}")
    candidates = BACKENDS[backend].devices() if backend else _all_candidates()
    if device is not None:
        return _open(_match(candidates, device))
    return _open_best(candidates)


def _backend_of_environment() -> str | None:
    backend = config.text("LITEGPU_BACKEND")
    if backend and backend not in BACKENDS:
        hint = did_you_mean(backend, BACKENDS)
        raise OptionsError(f"LITEGPU_BACKEND names an unknown backend '{backend}'.{hint}")
    return backend or None


def _all_candidates() -> list[DeviceInfo]:
    found = status()
    candidates = [info for each in found for info in each.devices]
    if not candidates:
        raise _nothing_usable(f"{each.name}: {each.reason}" for each in found)
    return candidates


def _open_best(candidates: Sequence[DeviceInfo]) -> Device:
    """Open the first device that can be opened, those that are no CPUs first."""
    refused = []
    for info in sorted(candidates, key=lambda info: info.software):
        try:
            device = _open(info)
        except LitegpuError as error:
            refused.append(f"{info.title}: {error}")
            continue
        for reason in refused:
            _log.warning("%s. %s is used instead.", reason, info.title)
        if info.software:
            _log.warning(
                "%s is a software device: the runtime's own CPU kernels are faster.", info.title
            )
        return device
    raise _nothing_usable(refused)


def _open(info: DeviceInfo) -> Device:
    device = BACKENDS[info.backend].open(info.index)
    if config.debug_level() >= 1:
        _log.info("device %s (%s, driver %s)", info.title, info.platform, info.driver)
    return device


def _nothing_usable(reasons: Iterable[str]) -> UnsupportedDeviceError:
    return UnsupportedDeviceError("\n  ".join(("No usable GPU device:", *reasons)))


def _status_of(backend: Backend) -> BackendStatus:
    try:
        return BackendStatus(backend.name, tuple(backend.devices()))
    except MissingDependencyError as error:
        remedy = f"pip install 'litegpu[{backend.extra}]'"
        return BackendStatus(backend.name, (), str(error), remedy)
    except LitegpuError as error:
        return BackendStatus(backend.name, (), str(error), "")


def _match(candidates: Sequence[DeviceInfo], wanted: int | str) -> DeviceInfo:
    """Return the device of that index, else the first whose name contains the text."""
    text = str(wanted)
    for info in candidates:
        if text.isdecimal() and info.index == int(text):
            return info
    for info in candidates:
        if isinstance(wanted, str) and text.lower() in f"{info.title} {info.platform}".lower():
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
