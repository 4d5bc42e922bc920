"""The CUDA device: one CUDA graph per partition, with kernels compiled by NVRTC."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import starmap
from typing import Any, TypeVar

from litegpu.backends.base import Backend, Compilation, Device, DeviceInfo, pci_address
from litegpu.backends.buffers import Adopted, Buffer, HostBuffer, MemoryKind
from litegpu.backends.cuda import arrays as cuda_arrays
from litegpu.backends.cuda.buffers import UNIT, CUDABuffer, CUDAPinnedBuffer, CUDAUploader
from litegpu.backends.cuda.compiler import KernelCompiler, can_compile_fast, compiler_versions
from litegpu.backends.cuda.driver import (
    FATAL,
    NOT_LOADED,
    TITLE,
    Handles,
    call,
    checked,
    driver,
    failure,
    ready,
)
from litegpu.backends.cuda.executable import CUDAExecutable, numbered, refused, transfers
from litegpu.backends.execution import Executable
from litegpu.backends.folding import fold_launches
from litegpu.backends.opened import OpenDevices
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import GRID_LIMITS, CUDADialect
from litegpu.errors import (
    CudaError,
    DeviceLostError,
    KernelError,
    LitegpuError,
    UnsupportedDeviceError,
)
from litegpu.host.fork_safety import Living, touch
from litegpu.host.private_files import Folder

_log = logging.getLogger("litegpu")
_OLDEST = (6, 0)
_FIRST_CONTEXTS = 3020
"""The CUDA version from which on `cuCtxCreate` has only the parameters flags and device."""
_Result = TypeVar("_Result")


class CUDABackend(Backend):
    """NVIDIA GPUs with compute capability 6.0 or newer."""

    name = "cuda"
    title = TITLE
    package = "cuda-bindings"

    def devices(self) -> list[DeviceInfo]:
        """Return the usable GPUs in the driver's order."""
        found = [_describe(index) for index in range(_device_count())]
        usable = [info for info in found if _capability(info.index) >= _OLDEST]
        if found and not usable:
            raise UnsupportedDeviceError(
                f"{found[0].name} has compute capability {_capability(0)}; CUDA kernels need "
                f"{_OLDEST} or newer. Use backend='opencl'."
            )
        return usable

    def open(self, index: int) -> Device:
        """Return the GPU with this index, in its primary context."""
        if _start_once.cache_info().currsize:
            _start_once().join()  # a program that forks now has no other thread
        return _opened.get(index)

    def start_ahead(self) -> bool:
        """Initialize the driver in a thread, once a process. See Backend.start_ahead."""
        try:
            return not _opened.devices and _start_once().is_alive()
        except (LitegpuError, RuntimeError):  # no driver, or no thread
            return False

    def adopt(self, source: Any) -> Adopted | None:
        """Wrap GPU arrays with DLPack or `__cuda_array_interface__`. See Backend.adopt."""
        return cuda_arrays.adopt(source, _opened.get)


def _open(index: int) -> CUDADevice:
    info, lost = _describe(index), _opened.devices.get(index)
    return CUDADevice(info) if lost is None else CUDADevice(info, _context_after(lost))


def _context_after(lost: CUDADevice) -> Any:
    """Return a new context on the GPU of a lost device. Raises DeviceLostError on failure.

    If the driver permits, the function does not destroy the old context. Tensors of existing
    interpreters may be in that context's memory, and destroying the context would wait for a
    hanging kernel.
    """
    index = lost.info.index
    try:
        return _own_context(index)
    except CudaError as error:
        if lost.holders:
            raise DeviceLostError(
                f"CUDA device '{lost.info.name}' was lost and cannot be reopened while "
                f"interpreters that used it exist: {error}",
                "Delete these interpreters first, or start a new process.",
            ) from error
    cu = driver()
    try:
        call(cu.cuDevicePrimaryCtxReset, index)
        return _primary_context(index)
    except CudaError as error:
        raise DeviceLostError(
            f"CUDA device '{lost.info.name}' was lost and cannot be reopened in this process: "
            f"{error}",
            "Start a new process, or use another backend.",
        ) from error


def _primary_context(index: int) -> Any:
    return call(driver().cuDevicePrimaryCtxRetain, index)[0]


def _own_context(index: int) -> Any:
    """Return a new context."""
    cu, context = driver(), ctypes.c_void_p()
    # The Python binding has different arguments in each version of CUDA, as the function itself.
    status = ready("cuCtxCreate", ctypes.byref(context), 0, index, version=_FIRST_CONTEXTS)()
    if status:
        raise failure(cu.cuCtxCreate, cu.CUresult(status))
    call(cu.cuCtxPopCurrent)  # creating it has made it current
    return cu.CUcontext(context.value)


@cache
def _start_once() -> threading.Thread:
    driver()
    touch(CUDABackend.title)
    # No daemon: the process must not end while the driver starts.
    thread = threading.Thread(target=_start, name="litegpu-cuda-start")
    thread.start()
    return thread


def _start() -> None:
    """Initialize the driver and create the only GPU's primary context, without holding the GIL.

    With several GPUs, the function creates no context, because a context on an unused GPU wastes
    memory.
    """
    cu = driver()
    with suppress(CudaError):
        call(cu.cuInit, 0)
        if call(cu.cuDeviceGetCount)[0] == 1:
            _primary_context(0)


BACKEND = CUDABackend()
_opened = OpenDevices(CUDABackend.title, _open)


def _device_count() -> int:
    cu = driver()
    touch(CUDABackend.title)
    try:
        call(cu.cuInit, 0)
        (count,) = call(cu.cuDeviceGetCount)
    except CudaError as error:
        raise UnsupportedDeviceError(
            f"The NVIDIA driver has no usable GPU: {error} Check that `nvidia-smi` lists one."
        ) from error
    if count == 0:
        raise UnsupportedDeviceError(
            "The NVIDIA driver lists no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES."
        )
    return int(count)


def _attribute(index: int, name: str) -> int:
    cu = driver()
    attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    (value,) = call(cu.cuDeviceGetAttribute, attribute, index)
    return int(value)


def _capability(index: int) -> tuple[int, int]:
    return (
        _attribute(index, "COMPUTE_CAPABILITY_MAJOR"),
        _attribute(index, "COMPUTE_CAPABILITY_MINOR"),
    )


def _describe(index: int) -> DeviceInfo:
    cu = driver()
    (name,) = call(cu.cuDeviceGetName, 256, index)
    (memory,) = call(cu.cuDeviceTotalMem, index)
    (version,) = call(cu.cuDriverGetVersion)
    major, minor = _capability(index)
    return DeviceInfo(
        backend="cuda",
        index=index,
        name=name.split(b"\0")[0].decode(),
        platform=f"NVIDIA CUDA, compute capability {major}.{minor}",
        driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
        software=False,
        compute_units=_attribute(index, "MULTIPROCESSOR_COUNT"),
        memory_bytes=int(memory),
        max_allocation_bytes=int(memory),
        max_work_group_size=_attribute(index, "MAX_THREADS_PER_BLOCK"),
        local_memory_bytes=_attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        half_arithmetic=True,
        buffer_alignment=256,
        offset_alignment=UNIT,
        max_arguments=256,
        compute_capability=(major, minor),
        pci_address=pci_address(
            *(_attribute(index, f"PCI_{part}_ID") for part in ("DOMAIN", "BUS", "DEVICE"))
        ),
    )


class CUDADevice(Device):
    """One NVIDIA GPU; litegpu shares its primary context with other libraries of the process."""

    dialect = CUDADialect()

    def __init__(self, info: DeviceInfo, context: Any = None) -> None:
        """Use a context, or retain the primary context. Raises CudaError if the driver fails."""
        self.info = info
        self.capability = _capability(info.index)
        self.cache_bytes = _attribute(info.index, "L2_CACHE_SIZE")
        """The size of the L2 cache in bytes."""
        self.holders = Living[object]()
        """The objects that have memory or code on the device."""
        self.context = _primary_context(info.index) if context is None else context
        self._own = Handles()
        self._arrivals = 0
        self._arriving = threading.Lock()

    def within(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` with the context current on this thread, and restore the previous context.

        Raises DeviceLostError if a driver call fails, or has failed before, with a permanent error.
        """
        if self.lost:
            raise self.loss()
        cu = driver()
        pushed: list[Any] = []
        # C code only, so that no signal handler runs between a push and its record, or before
        # the pop.
        push, pop = starmap(cu.cuCtxPushCurrent, [(self.context,)]), cu.cuCtxPopCurrent
        try:
            pushed.extend(push)
            if pushed[0][0].value:
                checked(cu.cuCtxPushCurrent, pushed.pop())
            return work()
        except CudaError as error:
            self.note(error)
            raise
        finally:
            if pushed:
                pop()

    def note(self, error: CudaError) -> None:
        """Raise DeviceLostError instead of `error` if the error is permanent."""
        if error.code in FATAL:
            self.lost = True
            raise self.loss(str(error)) from error

    def arrivals(self) -> int:
        """Return the stream that waits for other libraries' work on memory that litegpu wraps."""
        with self._arriving:
            if not self._arrivals:
                cu = driver()
                making = (cu.cuStreamCreate, cu.cuStreamDestroy, 1)
                self._arrivals = int(self.within(partial(self._own.make, *making)))
            return self._arrivals

    def release(
        self, holder: object, owned: Handles, wait: Callable[[], object] | None = None
    ) -> None:
        """Release the handles of `holder` after `wait`, unless the device is lost.

        Raises the first CudaError, after trying to release all handles.
        """
        try:
            if owned and not self.lost:
                self.within(partial(_release, owned, wait))
        except DeviceLostError as error:
            _log.info("Memory of a partition is not released: %s", error)
        if self.lost:
            owned.abandon()
        self.holders.discard(holder)

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Compile and load a program. See Device.compile."""
        with self.compilation(cache_dir) as compilation:
            return compilation.finish(program)

    def compilation(
        self, cache_dir: Folder | None = None, fast_compile: bool = False
    ) -> Compilation:
        """Compile added kernels on all cores. See Device.compilation."""
        return _CUDACompilation(self, cache_dir, fast_compile)

    def can_compile_fast(self) -> bool:
        """Return whether NVRTC has a fast mode, and processes can optimize in the background."""
        return can_compile_fast()

    def recompile(self, program: Program, cache_dir: Folder | None = None) -> Mapping[str, bytes]:
        """Compile in other processes. See Device.recompile."""
        made_by = (self.dialect, self.capability, cache_dir)
        with KernelCompiler(*made_by, aside=True) as compiler:
            return numbered(self.cubins(program, compiler))

    def cubins(self, program: Program, compiler: KernelCompiler) -> list[bytes]:
        """Return the modules of a program. Raises KernelError."""
        kernels = (*program.kernels, *transfers(program))
        try:
            return compiler.cubins(kernels)
        except KernelError as error:
            raise self.rejects(error.logs) from error

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Load the modules in `binaries`. See Device.load."""
        try:
            return CUDAExecutable(self, program, [*binaries.values()])
        except CudaError as error:
            if error.code not in NOT_LOADED:
                raise
            raise refused(self.info.name, error) from error

    @property
    def origin(self) -> tuple[str, ...]:
        """The compiler's versions. See Device.origin."""
        return compiler_versions()

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate memory. See Device.allocate."""
        if kind is MemoryKind.HOST:
            return HostBuffer.allocate(nbytes)
        return (CUDAPinnedBuffer if kind is MemoryKind.PINNED else CUDABuffer)(self, nbytes)

    def uploader(self) -> CUDAUploader:
        """Return an uploader with pinned memory of its own. See Device.uploader."""
        return CUDAUploader(self)


class _CUDACompilation(Compilation):
    """Compiles kernels as they are added. See Compilation."""

    device: CUDADevice

    def __init__(self, device: CUDADevice, cache_dir: Folder | None, fast_compile: bool) -> None:
        super().__init__(device, cache_dir)
        self._compiler = KernelCompiler(
            device.dialect, device.capability, cache_dir, fast_compile=fast_compile
        )

    def expect(self, kernels: int) -> None:
        self._compiler.expect(kernels)

    def add(self, kernel: KernelText) -> None:
        self._compiler.add(kernel)

    def flush(self) -> None:
        self._compiler.flush()

    def finish(self, program: Program) -> Executable:
        program = fold_launches(program, GRID_LIMITS)
        try:
            return self._executable(program, self._compiler)
        except CudaError as error:
            if self.cache_dir is None or error.code not in NOT_LOADED:
                raise
            reason = str(error)
        made_by = (self.device.dialect, self.device.capability, self.cache_dir)
        with KernelCompiler(*made_by, unusable=reason) as compiler:
            return self._executable(program, compiler)

    def _executable(self, program: Program, compiler: KernelCompiler) -> CUDAExecutable:
        cubins = self.device.cubins(program, compiler)
        return CUDAExecutable(self.device, program, cubins, compiler.fast_compiled)

    def close(self) -> None:
        self._compiler.close()


def _release(owned: Handles, wait: Callable[[], object] | None) -> None:
    if wait is not None:
        wait()
    owned.release()
