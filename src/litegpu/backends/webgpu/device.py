"""The WebGPU device, which uses wgpu-py on Vulkan, Metal or Direct3D 12."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from litegpu import config
from litegpu.backends.base import Backend, Device, DeviceInfo, has_local_memory
from litegpu.backends.buffers import Adopted, Buffer, HostBuffer, MemoryKind
from litegpu.backends.execution import Executable
from litegpu.backends.limits import check_sizes
from litegpu.backends.opened import OpenDevices
from litegpu.backends.program import Program
from litegpu.backends.shaders import Recent
from litegpu.backends.webgpu import buffers as webgpu_buffers
from litegpu.backends.webgpu.buffers import WebGPUBuffer
from litegpu.backends.webgpu.executable import WebGPUExecutable
from litegpu.backends.webgpu.library import TITLE, NativeCalls
from litegpu.backends.webgpu.type_names import parse_types
from litegpu.codegen.wgsl import WGSLDialect
from litegpu.errors import (
    ExecutionError,
    UnsupportedDeviceError,
    missing_dependency,
)
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import keep_in_children, touch
from litegpu.host.optional_packages import load
from litegpu.host.private_files import Folder
from litegpu.host.thread_worker import Worker, WorkerEndedError
from litegpu.progress import carried

_Result = TypeVar("_Result")
_log = logging.getLogger("litegpu")

_APIS = {"Vulkan": "Vulkan", "Metal": "Metal", "D3D12": "Direct3D 12"}
"""The system APIs of WebGPU, by wgpu's names; OpenGL has a separate backend."""
_INSTANCE = ("Vulkan", "Metal", "DX12")
"""The system APIs of WebGPU, by their names in the options of wgpu's instance."""
_HALF, _TIMER = "shader-f16", "timestamp-query"
_USUAL_UNITS = {"DiscreteGPU": 64, "IntegratedGPU": 16}
"""Assumed compute units of a GPU, because WebGPU does not report them."""
_LIMITS = (
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "min-storage-buffer-offset-alignment",
)
"""Limits that kernels need; litegpu requests the adapter's maximum of each."""


class WebGPUBackend(Backend):
    """The backend for Vulkan, Metal or Direct3D 12 adapters: GPUs first, then software."""

    name = "webgpu"
    title = TITLE
    package = "wgpu"

    def devices(self) -> list[DeviceInfo]:
        """Return all adapters, GPUs first."""
        _wgpu()
        touch(self.title)
        return [_describe(index, adapter) for index, adapter in enumerate(_adapters())]

    def open(self, index: int) -> Device:
        """Return the device with this index, which all delegates share."""
        return _opened.get(index)

    def adopt(self, source: Any) -> Adopted | None:
        """Wrap objects of wgpu-py. See Backend.adopt."""
        return webgpu_buffers.adopt(source, _opened.devices.values())


def _open(index: int) -> WebGPUDevice:
    adapter = _adapters()[index]
    return WebGPUDevice(_describe(index, adapter), adapter)


BACKEND = WebGPUBackend()
_opened = OpenDevices(WebGPUBackend.title, _open)


def _wgpu() -> Any:
    return load("wgpu", "wgpu", partial(missing_dependency, "wgpu", "webgpu", "The WebGPU backend"))


@cache
def _adapters() -> list[Any]:
    """Return the adapters, GPUs first."""
    wgpu = _wgpu()
    # wgpu may try OpenGL, too; it then leaves no context current on the thread.
    worker = Worker("litegpu-webgpu-adapters")
    try:
        found = worker.call(partial(_enumerate, wgpu))
    except (RuntimeError, OSError) as error:
        raise UnsupportedDeviceError(f"WebGPU is not usable: {error}. {_REMEDY}") from error
    finally:
        worker.stop()
    usable = [each for each in found if each.info["backend_type"] in _APIS]
    if not usable:
        others = {f"{each.info['device']} ({each.info['backend_type']})" for each in found}
        seen = f" (found: {', '.join(sorted(others))})" if others else ""
        raise UnsupportedDeviceError(
            f"WebGPU has no adapter for Vulkan, Metal or Direct3D 12{seen}. {_REMEDY}"
        )
    return sorted(usable, key=_is_software)


def _enumerate(wgpu: Any) -> list[Any]:
    """Return all adapters, and suppress the errors that display libraries print.

    wgpu before 0.32 prints errors about missing displays, too.
    """
    level = wgpu.logger.level
    wgpu.logger.setLevel(logging.ERROR)
    # Without OpenGL, because Mesa's driver crashes when a forked child exits. An application may
    # have chosen the APIs before, and older versions of wgpu cannot choose.
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):
        extras: Any = importlib.import_module("wgpu.backends.wgpu_native.extras")
        parse_types(wgpu.backends.wgpu_native.ffi)
        extras.set_instance_extras(backends=_INSTANCE)
    try:
        with config.placeholder("XDG_RUNTIME_DIR", os.devnull):
            found: list[Any] = wgpu.gpu.enumerate_adapters_sync()
            for adapter in found:
                keep_in_children(adapter)
            return found
    finally:
        wgpu.logger.setLevel(level)


_REMEDY = (
    "Install your GPU's driver; on Linux with its Vulkan part and the loader (apt-get install "
    "libvulkan1), to run on the CPU: apt-get install mesa-vulkan-drivers"
)


def _is_software(adapter: Any) -> bool:
    return bool(adapter.info["adapter_type"] == "CPU")


def _describe(index: int, adapter: Any) -> DeviceInfo:
    info, limits, features = adapter.info, adapter.limits, adapter.features
    units = _USUAL_UNITS.get(info["adapter_type"], _USUAL_UNITS["IntegratedGPU"])
    return DeviceInfo(
        backend="webgpu",
        index=index,
        name=info["device"] or info["vendor"] or "unnamed adapter",
        platform=f"WebGPU on {_APIS[info['backend_type']]}",
        driver=info["description"] or "unknown",
        software=_is_software(adapter),
        compute_units=(os.cpu_count() or 1) if _is_software(adapter) else units,
        memory_bytes=0,
        max_allocation_bytes=limits["max-buffer-size"],
        max_work_group_size=min(
            limits["max-compute-invocations-per-workgroup"],
            limits["max-compute-workgroup-size-x"],
            limits["max-compute-workgroup-size-y"],
        ),
        local_memory_bytes=limits["max-compute-workgroup-storage-size"],
        half_arithmetic=_HALF in features,
        buffer_alignment=max(limits["min-storage-buffer-offset-alignment"], 16),
        max_arguments=limits["max-storage-buffers-per-shader-stage"],
        max_binding_bytes=limits["max-storage-buffer-binding-size"],
        half_lanes=_HALF in features,
        fast_local_memory=has_local_memory(info["device"]),
    )


class WebGPUDevice(Device):
    """One WebGPU device."""

    dialect: WGSLDialect

    def __init__(self, info: DeviceInfo, adapter: Any) -> None:
        """Request the device. Raises UnsupportedDeviceError if the driver fails."""
        self.info = info
        self.wgpu = _wgpu()
        self.calls = NativeCalls(self.wgpu)
        wanted = [each for each in (_HALF, _TIMER) if each in adapter.features]
        limits = {name: adapter.limits[name] for name in _LIMITS}
        try:
            self.device = adapter.request_device_sync(
                label=f"litegpu {info.title}", required_features=wanted, required_limits=limits
            )
        except RuntimeError as error:
            raise UnsupportedDeviceError(
                f"Device {info.title} cannot be opened: {error}. `litegpu devices` lists "
                "the others."
            ) from error
        keep_in_children(self)
        self.dialect = WGSLDialect(info.half_lanes)
        self.timed = _TIMER in wanted
        """Whether the device's clock can measure kernels."""
        self.group_limit: int = limits["max-compute-workgroups-per-dimension"]
        """Maximum work groups of a launch on each axis."""
        self.lock = threading.RLock()
        """The lock for encoding commands: wgpu-py's objects are not thread-safe."""
        self.worker = Worker(f"litegpu-webgpu-{info.index}")
        """Creates and deletes wgpu-py's objects, whose `__del__` would discard an interrupt."""
        self.pipelines: Recent[Any] = Recent()
        """Pipelines that partitions with equal kernels share."""

    @finalizer
    def __del__(self) -> None:
        """End the worker's thread."""
        self.worker.stop()

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Create pipelines and upload the constants. See Device.compile."""
        check_sizes(program, self.info)
        return self.make(carried(lambda: WebGPUExecutable(self, program)))

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate memory. See Device.allocate."""
        if kind is not MemoryKind.DEVICE:
            return HostBuffer.allocate(nbytes, kind)
        return self.make(lambda: WebGPUBuffer(self, nbytes))

    def make(self, function: Callable[[], _Result]) -> _Result:
        """Call `function`, which creates wgpu-py objects, on the worker. Raises DeviceLostError."""
        try:
            return self.worker.call(partial(self._locked, function))
        except WorkerEndedError as error:
            raise self.loss(str(error)) from error

    def _locked(self, function: Callable[[], _Result]) -> _Result:
        with self.lock:
            return function()

    def failure(self, error: Exception) -> ExecutionError:
        """Return the typed error for an error of wgpu; mark the device as lost if it is."""
        text = " ".join(str(error).split())
        self.lost = self.lost or self.is_loss(error)
        if self.lost:
            return self.loss(text)
        return ExecutionError(
            f"Device {self.info.title} failed with a partition: {text}. Create a new "
            "delegate and interpreter; if it happens again, use another device or no delegate."
        )

    @staticmethod
    def is_loss(error: Exception) -> bool:
        """Return whether an error of wgpu means that the device is lost."""
        return "device is lost" in str(error).lower()

    def is_shortage(self, error: Exception) -> bool:
        """Return whether wgpu reports insufficient memory, by the error's type or text."""
        text = str(error).lower()
        return isinstance(error, self.wgpu.GPUOutOfMemoryError) or "not enough memory" in text
