"""The GPU backends, which implement one interface, and the selection of a device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from litegpu import config
from litegpu.backends.base import Backend, Device, DeviceInfo
from litegpu.errors import (
    DeviceLostError,
    LitegpuError,
    OptionsError,
    UnsupportedDeviceError,
    did_you_mean,
    lacks_threads,
    without_threads,
)
from litegpu.host.fork_safety import refuse_if_forked
from litegpu.host.optional_packages import damaged

_log = logging.getLogger("litegpu")

TITLES: Mapping[str, str] = {
    "cuda": "CUDA",
    "opencl": "OpenCL",
    "webgpu": "WebGPU",
    "opengl": "OpenGL",
}
"""The full names of the backends, as the vendors write them, in order of preference."""


class _Backends(Mapping[str, Backend]):
    """The backends by name. The module `litegpu.backends.NAME` is imported when first used."""

    def __getitem__(self, name: str) -> Backend:
        if name not in TITLES:
            raise KeyError(name)
        backend: Backend = import_module(f"{__name__}.{name}.device").BACKEND
        return backend

    def __iter__(self) -> Iterator[str]:
        return iter(TITLES)

    def __len__(self) -> int:
        return len(TITLES)


BACKENDS: Mapping[str, Backend] = _Backends()
"""The backends, in order of preference."""
SHORT: Mapping[str, str] = {"cl": "opencl", "gl": "opengl"}
"""Shorter names for some backends."""
ALIASES: Mapping[str, str] = {"metal": "Metal", "vulkan": "Vulkan", "d3d12": "Direct3D 12"}
"""Aliases of backends: each selects WebGPU on the system API of that name."""
ANY = ("auto", "gpu")
"""Names that, like None, select any backend."""
_NO_GPU = ("cpu", "xnnpack", "tpu", "npu")


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """A backend's usable devices, or the reason why there are none and a remedy.

    `reason` contains the reason and the remedy; `remedy` is the command that the user should run,
    if known.
    """

    name: str
    devices: tuple[DeviceInfo, ...]
    reason: str = ""
    remedy: str = ""


def status() -> list[BackendStatus]:
    """Return the state of every backend, in order of preference."""
    return [_status_of(backend) for backend in BACKENDS.values()]


def ranked(found: Iterable[BackendStatus]) -> list[DeviceInfo]:
    """Return all devices in order of preference: GPUs before software devices, then by backend.

    A device's index in this list is the device number for options that name no backend.
    """
    devices = [device for each in found for device in each.devices]
    return sorted(devices, key=lambda info: info.software)


def list_devices() -> list[DeviceInfo]:
    """Return every usable device of every backend, in order of preference.

    `GpuDelegate(device=n)` without a backend opens the device with index n in this list. The field
    `software` marks software devices.
    """
    return ranked(status())


def select(backend: str | None, device: int | str | None) -> Device:
    """Open the device that the options request, else the environment's, else the best device.

    An integer `device` is an index into the devices of the requested backend, or into
    `list_devices()`. A string `device` is a part of a device's name, ``cuda:1``, or ``cuda`` for
    any device of that backend. If several devices match, the function opens the first in order of
    preference.

    Raises OptionsError for unknown names, and UnsupportedDeviceError if no device matches. Raises
    MissingDependencyError if the package of the requested backend is not installed. Raises
    ForkedProcessError in a forked child of a process that has opened the backend.
    """
    backend = named(backend) or named(config.text("LITEGPU_BACKEND"))
    device = config.text("LITEGPU_DEVICE") if device is None or device == "" else device
    if device == "":
        return _open_best(devices_of(backend) if backend else _candidates())
    if backend:
        numbered = {info.index: info for info in devices_of(backend)}
    else:
        numbered = dict(enumerate(_all_candidates()))
    return _open(_match(numbered, device))


def start_ahead(backend: str | None, device: int | str | None) -> bool:
    """Start the driver that `select` opens first, in a thread; return whether a thread started."""
    if is_free(backend, device):
        name = next(iter(BACKENDS))
    else:
        name = (named(backend) or named(config.text("LITEGPU_BACKEND"))).lower()
    return name in BACKENDS and BACKENDS[name].start_ahead()


def is_free(backend: str | None, device: int | str | None) -> bool:
    """Return whether neither the options nor the environment request a backend or a device."""
    if named(backend) or named(config.text("LITEGPU_BACKEND")):
        return False
    return all(each is None or each == "" for each in (device, config.text("LITEGPU_DEVICE")))


def is_gpu_available() -> bool:
    """Return whether a GPU is usable (no software device); stop at the first backend with one."""
    with contextlib.suppress(UnsupportedDeviceError):
        return any(not info.software for info in _candidates())
    return False


def named(backend: str | None) -> str:
    """Return the name of a backend, or an empty string for a name that selects any backend.

    >>> named("cuda"), named("auto"), named(None)
    ('cuda', '', '')
    """
    return "" if backend is None or backend.lower() in ANY else backend


def next_after(current: DeviceInfo) -> Device | None:
    """Return a device of the next API for kernels that `current` rejects; None without one.

    A software device never replaces a GPU, because the runtime's CPU kernels are faster.
    """
    order = _all_candidates()
    position = [info.title for info in order].index(current.title)
    for info in order[position + 1 :]:
        if info.backend != current.backend and info.software == current.software:
            with contextlib.suppress(LitegpuError):
                return _open(info)
    return None


def fall_back(current: DeviceInfo, error: LitegpuError) -> Device:
    """Return a device of the next API that replaces a failed device, and log the replacement.

    Raises `error` if there is no other device.
    """
    other = next_after(current)
    if other is None:
        raise error
    _log.warning("%s", error)
    _log.warning("Falling back to %s", TITLES[other.info.backend])
    return other


def after_loss(lost: Device) -> Device:
    """Return the reopened device, or a device of the next API if reopening fails.

    The device may change even if the user requested the backend, because an interpreter cannot
    return delegated nodes to the CPU. After too many losses, the function raises DeviceLostError if
    no other API has a device. If the device cannot be reopened, the function raises that error.
    """
    info = lost.info
    try:
        if lost.failures.losses >= _MAX_LOSSES:
            raise DeviceLostError(
                f"{info.title} was lost {lost.failures.losses + 1} times in this process, and is "
                "not opened again for interpreters that use it.",
                "Use another device or no delegate, or start a new process.",
            )
        return _open(info)
    except LitegpuError as error:
        return fall_back(info, error)


def devices_of(requested: str) -> list[DeviceInfo]:
    """Return the devices of a backend, or of WebGPU on the API of an alias.

    Raises OptionsError for an unknown name, and an error with the reason if there is no device.
    """
    name = SHORT.get(requested.lower(), requested.lower())
    if name in BACKENDS:
        return _devices(BACKENDS[name])
    if name not in ALIASES:
        hint = did_you_mean(requested, (*BACKENDS, *ALIASES, *SHORT, *ANY))
        if name in _NO_GPU:
            hint = f" litegpu runs on GPUs: without the delegate the model runs on the CPU.{hint}"
        variable = requested == config.text("LITEGPU_BACKEND")
        found = "LITEGPU_BACKEND names an unknown" if variable else "Unknown"
        raise OptionsError(f"{found} backend '{requested}'.{hint}")
    infos = _devices(BACKENDS["webgpu"])
    devices = [info for info in infos if info.platform == f"WebGPU on {ALIASES[name]}"]
    if not devices:
        others = "; ".join(f"{info.title} ({info.platform})" for info in infos)
        raise UnsupportedDeviceError(
            f"WebGPU has no device on {ALIASES[name]} here. It has: {others}."
        )
    return devices


def _devices(backend: Backend) -> list[DeviceInfo]:
    """Return the devices of a backend, in order of preference. Raises only LitegpuError."""
    with _typed_errors(backend):
        return sorted(backend.devices(), key=lambda info: info.software)


@contextlib.contextmanager
def _typed_errors(backend: Backend) -> Iterator[None]:
    """Convert any error of a package or driver to a LitegpuError, which excludes the backend."""
    try:
        yield
    except LitegpuError:
        raise
    except Exception as error:
        if lacks_threads(error):
            raise without_threads(error) from error
        raise damaged(backend.package, "or the driver behind it fails", error) from error


def _all_candidates() -> list[DeviceInfo]:
    return list(_candidates())


def _candidates() -> Iterator[DeviceInfo]:
    """Yield the devices of all backends in the order of `ranked`; query backends lazily.

    Raises UnsupportedDeviceError at the end if no backend has a device.
    """
    software: list[DeviceInfo] = []
    reasons = []
    usable = False
    for backend in BACKENDS.values():
        found = _status_of(backend)
        reasons.append(f"{found.name}: {found.reason}")
        usable = usable or bool(found.devices)
        software += (info for info in found.devices if info.software)
        yield from (info for info in found.devices if not info.software)
    yield from software
    if not usable:
        refuse_if_forked()
        raise _nothing_usable(reasons)


def _open_best(candidates: Iterable[DeviceInfo]) -> Device:
    """Open the first device that can be opened."""
    refused = []
    for info in candidates:
        try:
            device = _open(info)
        except LitegpuError as error:
            refused.append(f"{info.title}: {error}")
            continue
        for reason in refused:
            _log.warning("%s. %s is used instead.", reason.rstrip("."), info.title)
        return device
    raise _nothing_usable(refused)


def _open(info: DeviceInfo) -> Device:
    backend = BACKENDS[info.backend]
    with _typed_errors(backend):
        device = backend.open(info.index)
    if _is_first(info.backend):
        # The wording of TensorFlow Lite.
        _log.info("Initialized %s-based API.", TITLES.get(info.backend, info.backend))
    if info.software and _is_first("software"):
        _log.warning("%s is a software device: the runtime's CPU kernels are faster.", info.title)
    if config.debug_level() >= 1:
        _log.info("device %s (%s, driver %s)", info.title, info.platform, info.driver)
    return device


_MAX_LOSSES = 3
"""Maximum number of times that a process reopens a lost device."""
_said: dict[str, object] = {}
"""Subjects of messages that this process has already logged."""


def _is_first(subject: str) -> bool:
    """Return whether no thread has logged a message about a subject before."""
    asking = object()
    return _said.setdefault(subject, asking) is asking


def _nothing_usable(reasons: Iterable[str]) -> UnsupportedDeviceError:
    lines = ("No usable GPU device (`litegpu doctor` says what helps):", *reasons)
    return UnsupportedDeviceError("\n  ".join(lines))


def _status_of(backend: Backend) -> BackendStatus:
    try:
        return BackendStatus(backend.name, tuple(_devices(backend)))
    except LitegpuError as error:
        return BackendStatus(backend.name, (), str(error), error.remedy)


def _match(numbered: Mapping[int, DeviceInfo], wanted: int | str) -> DeviceInfo:
    """Return the device with a number or backend, else the first whose name contains `wanted`."""
    text = str(wanted).strip().lower()
    if text.isdecimal() and int(text) in numbered:
        return numbered[int(text)]
    name, colon, index = text.partition(":")
    name = SHORT.get(name, name)
    for info in numbered.values() if isinstance(wanted, str) else ():
        titles = (info.backend, f"{info.backend}:{info.index}")
        is_title = text == info.title.lower() or f"{name}{colon}{index}" in titles
        if is_title or text in info.name.lower():
            return info
    known = "; ".join(f"{number} {info.name} ({info.backend})" for number, info in numbered.items())
    absent = _status_of(BACKENDS[name]) if name in BACKENDS else None
    reason = _sentence(absent.reason) if absent else ""
    error = UnsupportedDeviceError(
        f"No device matches '{wanted}'. {reason}Usable devices: {known}. Give a number, part of a "
        "name, or BACKEND:NUMBER."
    )
    error.remedy = absent.remedy if absent else ""
    raise error


def _sentence(reason: str) -> str:
    return f"{reason.rstrip('.')}. " if reason else ""


__all__ = [
    "ALIASES",
    "ANY",
    "BACKENDS",
    "SHORT",
    "TITLES",
    "Backend",
    "BackendStatus",
    "Device",
    "DeviceInfo",
    "after_loss",
    "devices_of",
    "fall_back",
    "is_free",
    "list_devices",
    "named",
    "next_after",
    "ranked",
    "select",
    "start_ahead",
    "status",
]
