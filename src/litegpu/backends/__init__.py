"""GPU APIs behind one interface, and the choice among their devices."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from litegpu import config
from litegpu.backends.base import Backend, Device, DeviceInfo, Recording
from litegpu.backends.cuda import CUDABackend
from litegpu.backends.opencl import OpenCLBackend
from litegpu.backends.opengl import OpenGLBackend
from litegpu.backends.process import refuse_if_forked
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
    for backend in (CUDABackend(), OpenCLBackend(), WebGPUBackend(), OpenGLBackend())
}
"""In order of preference."""
ALIASES: Mapping[str, str] = {"metal": "Metal", "vulkan": "Vulkan", "d3d12": "Direct3D 12"}
"""What else may be asked for as a backend: WebGPU on the system's API of that name."""
TITLES: Mapping[str, str] = {backend.name: backend.title for backend in BACKENDS.values()}
"""How people write their names."""


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
    backend that was asked for is not installed, UnsupportedDeviceError when nothing fits,
    ForkedProcessError in a child of a process that had opened what is asked for.
    """
    backend = backend or config.text("LITEGPU_BACKEND")
    device = config.text("LITEGPU_DEVICE") if device is None or device == "" else device
    candidates = _devices_of(backend) if backend else _all_candidates()
    return _open_best(candidates) if device == "" else _open(_match(candidates, device))


def is_free(backend: str | None, device: int | str | None) -> bool:
    """Return whether neither options nor environment ask for a backend or a device."""
    asked = (backend, device, config.text("LITEGPU_BACKEND"), config.text("LITEGPU_DEVICE"))
    return all(each is None or each == "" for each in asked)


def next_after(current: DeviceInfo) -> Device | None:
    """Return a device of the next API that may take what `current` refuses, None if there is none.

    A software device is no help to a GPU: the runtime's own CPU kernels are faster.
    """
    order = _in_order(_all_candidates())
    place = [info.title for info in order].index(current.title)
    for info in order[place + 1 :]:
        if info.backend != current.backend and info.software == current.software:
            with contextlib.suppress(LitegpuError):
                return _open(info)
    return None


def _devices_of(backend: str) -> list[DeviceInfo]:
    """Return the devices of a backend, or of the part of WebGPU that an alias names."""
    if backend in BACKENDS:
        return BACKENDS[backend].devices()
    if backend not in ALIASES:
        hint = did_you_mean(backend, (*BACKENDS, *ALIASES))
        variable = backend == config.text("LITEGPU_BACKEND")
        found = "LITEGPU_BACKEND names an unknown" if variable else "Unknown"
        raise OptionsError(f"{found} backend '{backend}'.{hint}")
    infos = BACKENDS["webgpu"].devices()
    devices = [info for info in infos if info.platform == f"WebGPU on {ALIASES[backend]}"]
    if not devices:
        others = "; ".join(f"{info.title} ({info.platform})" for info in infos)
        raise UnsupportedDeviceError(
            f"WebGPU has no device on {ALIASES[backend]} here. It has: {others}."
        )
    return devices


def _in_order(candidates: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Return devices in order of preference: those that are no CPUs first."""
    return sorted(candidates, key=lambda info: info.software)


def _all_candidates() -> list[DeviceInfo]:
    found = status()
    candidates = [info for each in found for info in each.devices]
    if not candidates:
        refuse_if_forked()
        raise _nothing_usable(f"{each.name}: {each.reason}" for each in found)
    return candidates


def _open_best(candidates: Sequence[DeviceInfo]) -> Device:
    """Open the first device that can be opened, those that are no CPUs first."""
    refused = []
    for info in _in_order(candidates):
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
    _announce(info.backend)
    if config.debug_level() >= 1:
        _log.info("device %s (%s, driver %s)", info.title, info.platform, info.driver)
    return device


@cache
def _announce(backend: str) -> None:
    """Say once, as users of TensorFlow Lite know it, which API is used."""
    _log.info("Initialized %s-based API.", TITLES.get(backend, backend))


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
    "ALIASES",
    "BACKENDS",
    "TITLES",
    "Backend",
    "BackendStatus",
    "Device",
    "DeviceInfo",
    "Recording",
    "is_free",
    "list_devices",
    "next_after",
    "select",
    "status",
]
