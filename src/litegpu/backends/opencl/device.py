"""The OpenCL device, which uses pyopencl; an invoke calls the OpenCL library directly."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from litegpu import config, progress
from litegpu.backends.base import Backend, Device, DeviceInfo, pci_address
from litegpu.backends.buffers import Adopted, Buffer, HostBuffer, MemoryKind
from litegpu.backends.execution import Executable
from litegpu.backends.opencl import arrays as opencl_arrays
from litegpu.backends.opencl.buffers import OpenCLBuffer, OpenCLPinnedBuffer
from litegpu.backends.opencl.build import Built, build, from_binaries, origin_of, parts_of
from litegpu.backends.opencl.dot4 import NVIDIA_FACTS, byte_dot
from litegpu.backends.opencl.executable import OpenCLExecutable
from litegpu.backends.opencl.library import LOST, TITLE, load_pocl_isolated, status_name
from litegpu.backends.opened import OpenDevices
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.opencl import OFFSET_UNIT, OpenCLDialect
from litegpu.errors import (
    DeviceMemoryError,
    ExecutionError,
    KernelError,
    LitegpuError,
    UnsupportedDeviceError,
    missing_dependency,
)
from litegpu.host.fork_safety import keep_in_children, touch
from litegpu.host.optional_packages import load
from litegpu.host.private_files import Folder

_GPU, _CPU = 1 << 2, 1 << 1
_LOCAL = 1
"""CL_LOCAL: the device has dedicated local memory."""
"""Bits of CL_DEVICE_TYPE."""

_TOO_LITTLE_MEMORY = (
    "INVALID_BUFFER_SIZE",
    "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)

_NAME = re.compile(r"(-cl-std=CL[0-9.]+) #\d+")
"""Pattern of the names in `binaries`: compiler options of the dialect, and a number."""
_MAX_BUILDS = 8
_ALIGNMENT = 128
"""Alignment in bytes, so that loads of a work group begin at a cache line."""
_POCL = "to run on the CPU: apt-get install pocl-opencl-icd"


def _pyopencl() -> Any:
    missing = partial(missing_dependency, "pyopencl", "opencl", "The OpenCL backend")
    return load("pyopencl", "pyopencl", missing)


class OpenCLBackend(Backend):
    """The backend for OpenCL 1.2 devices: GPUs first, then accelerators, then CPUs."""

    name = "opencl"
    title = TITLE
    package = "pyopencl"

    def devices(self) -> list[DeviceInfo]:
        """Return all devices of all platforms, GPUs first."""
        return [_describe(i, device) for i, device in enumerate(_raw_devices())]

    def open(self, index: int) -> Device:
        """Return the device with this index; all delegates share its context."""
        return _opened.get(index)

    def adopt(self, source: Any) -> Adopted | None:
        """Wrap objects of pyopencl. See Backend.adopt."""
        return opencl_arrays.adopt(source, _opened.devices.values())


def _open(index: int) -> OpenCLDevice:
    device = _raw_devices()[index]
    return OpenCLDevice(_describe(index, device), device)


BACKEND = OpenCLBackend()
_opened = OpenDevices(OpenCLBackend.title, _open)


def _raw_devices() -> list[Any]:
    cl = _pyopencl()
    touch(OpenCLBackend.title)
    load_pocl_isolated()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise UnsupportedDeviceError(
            f"OpenCL finds no platform ({error}). Install your GPU's driver with its OpenCL "
            f"part; {_POCL}"
        ) from error
    found = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform without devices reports an error
            continue
    if not found:
        names = ", ".join(platform.name for platform in platforms) or "none"
        remedy = (
            "PoCL has none if it cannot write its cache: set POCL_CACHE_DIR to a writable folder"
            if "Portable" in names
            else _POCL
        )
        raise UnsupportedDeviceError(
            f"OpenCL has no devices (platforms: {names}). Check that the GPU's driver is loaded; "
            f"{remedy}"
        )
    return sorted(found, key=_rank)


def _rank(device: Any) -> tuple[bool, bool]:
    return bool(device.type & _CPU), not device.type & _GPU


def _describe(index: int, device: Any) -> DeviceInfo:
    extensions = device.extensions.split()
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=device.name.strip(),
        platform=device.platform.name.strip(),
        driver=f"{device.driver_version} ({device.version.strip()})",
        software=bool(device.type & _CPU),
        compute_units=device.max_compute_units,
        memory_bytes=device.global_mem_size,
        max_allocation_bytes=device.max_mem_alloc_size,
        max_work_group_size=device.max_work_group_size,
        local_memory_bytes=device.local_mem_size,
        half_arithmetic="cl_khr_fp16" in extensions,
        buffer_alignment=_ALIGNMENT,
        offset_alignment=OFFSET_UNIT,
        max_arguments=device.max_parameter_size // 16,
        fast_local_memory=device.local_mem_type == _LOCAL,
        pci_address=_pci_address(device) if NVIDIA_FACTS in extensions else "",
    )


def _pci_address(device: Any) -> str:
    """Return the PCI address of an NVIDIA device, whose slot number encodes device and function."""
    facts = _pyopencl().device_info
    names = (facts.PCI_DOMAIN_ID_NV, facts.PCI_BUS_ID_NV, facts.PCI_SLOT_ID_NV)
    domain, bus, slot = (int(device.get_info(name)) for name in names)
    return pci_address(domain, bus, slot >> 3, slot & 7)


class OpenCLDevice(Device):
    """One OpenCL device with its context."""

    dialect = OpenCLDialect()

    def __init__(self, info: DeviceInfo, device: Any) -> None:
        """Create the context. Raises UnsupportedDeviceError if the driver fails."""
        self.info = info
        self.cl = _pyopencl()
        self._device = device
        self.handle = int(device.int_ptr)
        keep_in_children(self)
        try:
            self.context = self.cl.Context([device])
        except self.cl.Error as error:
            raise UnsupportedDeviceError(
                f"OpenCL device '{info.name}' cannot be opened: {error}. "
                "`litegpu devices` lists the others."
            ) from error

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Build a program and upload its constants. See Device.compile."""
        if self.lost:
            raise self.loss()
        dots = any("DOT4_S8" in kernel.body for kernel in program.kernels)
        return self.compile_in(self._dot_dialect if dots else self.dialect, program)

    def compile_in(self, dialect: OpenCLDialect, program: Program) -> Executable:
        """Build a program with a certain dialect and upload its constants."""
        built = self._build(dialect, program.kernels)
        return OpenCLExecutable(self.cl, self, program, built)

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Build a program from its binaries and upload its constants. See Device.load."""
        if self.lost:
            raise self.loss()
        if not program.kernels or not binaries:
            return self.compile(program)
        names = [_NAME.fullmatch(name) for name in binaries]
        (options, *others) = {name[1] if name else None for name in names}
        if options is None or others:
            unknown = ", ".join(binaries)
            raise self._no_binary(program.kernels, f"unknown options of a binary, {unknown}")
        try:
            built = from_binaries(self.cl, self.context, binaries.values(), options)
        except self.cl.Error as error:
            raise self._no_binary(program.kernels, str(error)) from error
        return OpenCLExecutable(self.cl, self, program, built)

    @property
    def builds_at_once(self) -> int:
        """The number of programs to build, because some drivers compile a program on one core.

        A CPU driver compiles each kernel at its first run, so one program suffices.
        """
        whole = self.info.software or not config.are_compilers_wanted()
        return 1 if whole else min(os.cpu_count() or 1, _MAX_BUILDS)

    @property
    def reports_group_sizes(self) -> bool:
        """Whether CL_KERNEL_WORK_GROUP_SIZE is the maximum work-group size of a compiled kernel.

        NVIDIA's driver reports 256 for every kernel, but compiles and runs a kernel for the group
        size in its source.
        """
        return not self.info.platform.startswith("NVIDIA")

    @property
    def origin(self) -> tuple[str, ...]:
        """The driver's versions. See Device.origin."""
        return origin_of(self._device)

    @cached_property
    def _dot_dialect(self) -> OpenCLDialect:
        """The dialect for kernels that multiply bytes, which needs a test of the device."""
        return OpenCLDialect(byte_dot(self))

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate memory. See Device.allocate."""
        if self.lost:
            raise self.loss()
        if kind is MemoryKind.HOST:
            return HostBuffer.allocate(nbytes)
        make = OpenCLPinnedBuffer if kind is MemoryKind.PINNED else OpenCLBuffer
        return make(self, nbytes)

    def _build(self, dialect: OpenCLDialect, kernels: Sequence[KernelText]) -> Built | None:
        """Return the built programs; None if there are no kernels."""
        if not kernels:
            return None
        sources = [dialect.source(part) for part in parts_of(kernels, self.builds_at_once)]
        progress.at("compile")  # a single call compiles all kernels
        try:
            return build(self.cl, self.context, sources, dialect.options)
        except self.cl.Error as error:
            raise self.rejects(self._rejected(dialect, kernels, str(error))) from error

    def _rejected(
        self, dialect: OpenCLDialect, kernels: Sequence[KernelText], log: str
    ) -> Mapping[str, str]:
        """Return the kernels that do not compile, by bisection; all if only the group fails.

        `log` is the compiler's log for all kernels together.
        """
        if len(kernels) == 1:
            return {kernels[0].name: log}
        found: dict[str, str] = {}
        middle = len(kernels) // 2
        for half in (kernels[:middle], kernels[middle:]):
            try:
                build(self.cl, self.context, [dialect.source(half)], dialect.options)
            except self.cl.Error as error:
                found |= self._rejected(dialect, half, str(error))
        return found or {kernel.name: log for kernel in kernels}

    def _no_binary(self, kernels: Sequence[KernelText], why: str) -> KernelError:
        return self.rejects({kernel.name: why for kernel in kernels})

    def typed(
        self, error: Exception, nbytes: int, what: str = "record the partition"
    ) -> LitegpuError:
        """Return the typed error for an error of pyopencl.

        `nbytes` were requested; `what` is the action that failed.
        """
        name, text = self.info.name, str(error)
        if any(code in text for code in _TOO_LITTLE_MEMORY):
            return DeviceMemoryError(
                f"OpenCL device '{name}' cannot provide {nbytes} bytes: {text}. Close other "
                "programs, use precision='fp16' or a smaller batch."
            )
        return ExecutionError(
            f"OpenCL device '{name}' cannot {what}: {text}. "
            "Another backend may work; `litegpu devices` lists them."
        )

    def failed(self, status: int) -> ExecutionError:
        """Return the error for the status of a run; mark the device as lost if it is."""
        what = f"{status_name(status)} while running a partition"
        if status in LOST:
            self.lost = True
            return self.loss(what)
        return ExecutionError(
            f"OpenCL device '{self.info.name}' failed with {what}. Create the interpreter "
            "again; if that fails, too, use another device or no delegate."
        )
