"""The interface that each GPU API implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from litegpu.backends.buffers import Adopted, Buffer, Bytes, MemoryKind
from litegpu.backends.execution import Executable
from litegpu.backends.failures import Failures
from litegpu.backends.program import Program
from litegpu.backends.shared_blocks import SharedBlocks, Uploader
from litegpu.codegen import Dialect, KernelText
from litegpu.device_model import Capability, DeviceModel, model_of
from litegpu.errors import CompilationError, DeviceLostError, KernelError
from litegpu.host.private_files import Folder


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The properties of one device; sizes are in bytes."""

    backend: str
    index: int
    name: str
    platform: str
    driver: str
    software: bool
    """Whether the device is a software device, which runs on the CPU."""
    compute_units: int
    memory_bytes: int
    """The size of the device's memory; 0 if the API does not report it."""
    max_allocation_bytes: int
    max_work_group_size: int
    local_memory_bytes: int
    half_arithmetic: bool
    buffer_alignment: int
    """Alignment in bytes of bound buffer ranges, and of values in memory."""
    max_arguments: int
    """Maximum number of buffers that one kernel may use."""
    compute_capability: Capability | None = None
    """The compute capability of an NVIDIA GPU, if the API reports it."""
    max_binding_bytes: int | None = None
    """The largest buffer range in bytes that a kernel may use; None for no limit."""
    half_lanes: bool = True
    """Whether a kernel may store a single float16; if False, it must store four at a time."""
    offset_alignment: int | None = None
    """Alignment in bytes of bound ranges within a value; None if equal to `buffer_alignment`."""
    fast_local_memory: bool = True
    """Whether the GPU has dedicated local memory; some GPUs use device memory for it."""
    pci_address: str = ""
    """The PCI address of the device, such as `00000000:3B:00.0`; empty if unknown.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the device's properties as JSON-able data."""
        return asdict(self)

    @property
    def model(self) -> DeviceModel:
        """The device's architecture, which determines the features that kernels may use."""
        return model_of(self.compute_capability)

    @property
    def title(self) -> str:
        """The device's name in messages: ``opencl:0 NVIDIA H200``."""
        return f"{self.backend}:{self.index} {self.name}"


_WITHOUT_LOCAL_MEMORY = ("mali", "immortalis", "v3d", "videocore")
"""Parts of the names of GPUs whose local memory is part of device memory."""


def has_local_memory(name: str) -> bool:
    """Return, by its name, whether a GPU has dedicated local memory for work groups."""
    return not any(word in name.lower() for word in _WITHOUT_LOCAL_MEMORY)


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return a PCI address in the format of `nvidia-smi`."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"


class Compilation:
    """An incremental compilation: kernels are added as they are lowered.

    The end of its `with` block cancels unfinished work.
    """

    def __init__(self, device: Device, cache_dir: Folder | None) -> None:
        """Compile for a device; for `cache_dir` see Device.compile."""
        self.device = device
        self.cache_dir = cache_dir

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, kernels: int) -> None:
        """Prepare to compile about `kernels` kernels; most backends do nothing."""

    def add(self, kernel: KernelText) -> None:
        """Add a kernel of the program; most backends compile only once all kernels are added."""

    def flush(self) -> None:
        """Start compiling the added kernels; callers call it before a pause in adding kernels."""

    def finish(self, program: Program) -> Executable:
        """Return the executable of the complete program. Raises the errors of Device.compile.

        After a KernelError, callers may add more kernels, and call `finish` with another program.
        """
        return self.device.compile(program, self.cache_dir)

    def close(self) -> None:
        """Cancel work that has not started."""


class Device(ABC):
    """An opened device."""

    info: DeviceInfo
    dialect: Dialect
    lost: bool = False
    """Whether the device is lost: no kernel can run on it, and the next request reopens it."""

    @property
    def failures(self) -> Failures:
        """The failures on this device in this process; all threads share the object."""
        found: Failures = vars(self).setdefault("failures", Failures())
        return found

    @failures.setter
    def failures(self, failures: Failures) -> None:
        vars(self)["failures"] = failures

    @property
    def blocks(self) -> SharedBlocks:
        """The blocks of constants that the device's programs share."""
        found: SharedBlocks = vars(self).setdefault("blocks", SharedBlocks())
        return found

    def loss(self, cause: str = "it failed before") -> DeviceLostError:
        """Return the error for a device that failed permanently; `cause` says why."""
        return DeviceLostError(
            f"Device {self.info.title} is lost: {cause.rstrip('.')}.",
            "Create a new GpuDelegate and interpreter, which reopen the device. If the error "
            "occurs again, use another device or no delegate.",
        )

    def rejects(self, logs: Mapping[str, str]) -> KernelError:
        """Return the error for rejected kernels; `logs` has the reason for each, by kernel name."""
        return KernelError(f"Device {self.info.title}", logs)

    @abstractmethod
    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Compile a program and upload its constants.

        A backend may cache single kernels in `cache_dir`, in addition to `Executable.binaries`; the
        CUDA and OpenGL backends do so.

        If compilation fails, raises KernelError with the rejected kernels, or CompilationError if
        these are unknown. Raises DeviceMemoryError if memory is insufficient.
        """

    def compilation(
        self, cache_dir: Folder | None = None, fast_compile: bool = False
    ) -> Compilation:
        """Return a compilation that accepts kernels before the program is complete.

        With `fast_compile`, the compiler may optimize less to save compile time, if it supports
        that. The executable's `fast_compiled` is then true, and `recompile` returns optimized code.
        """
        return Compilation(self, cache_dir)

    def can_compile_fast(self) -> bool:
        """Return whether `compilation` supports `fast_compile`."""
        return False

    def recompile(self, program: Program, cache_dir: Folder | None = None) -> Mapping[str, bytes]:
        """Return optimized binaries, for `Executable.exchange` after a fast compilation.

        Callers use a background thread: other threads have priority on the CPU cores, and the
        process does not wait for the compilation at exit. Raises CompilationError.
        """
        raise CompilationError(f"{self.info.title} has only one kind of binaries.")

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Create an executable from the `binaries` of an earlier executable.

        The binaries must be of the same program, `origin` and driver. If `binaries` is empty, the
        method compiles the program. Raises CompilationError if the driver rejects the binaries, and
        DeviceMemoryError if memory is insufficient.
        """
        return self.compile(program)

    @property
    def origin(self) -> tuple[str, ...]:
        """Properties other than the program on which binaries depend, such as compiler versions."""
        return ()

    def upload(self, data: Bytes) -> Buffer:
        """Return memory of this device with these bytes, which only programs read.

        Raises DeviceMemoryError if memory is insufficient, and ExecutionError if the device fails.
        """
        buffer = self.allocate(data.nbytes)
        buffer.write(data)
        return buffer

    def uploader(self) -> Uploader | None:
        """Return an object with which the calling thread uploads while other threads do the same.

        Returns None if the API does not permit that, or if it takes as long as with one thread.
        """
        return None

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return memory for inputs and outputs of programs on this device.

        The memory is uninitialized. The buffer releases its memory when it is closed or
        garbage-collected. Raises DeviceMemoryError if memory is insufficient.
        """


class Backend(ABC):
    """A GPU API, whose Python package is imported when its devices are first listed."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The backend's name as its vendor writes it."""
    package: ClassVar[str]
    """The name of the backend's Python package for pip."""

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """Return the usable devices. Raises a LitegpuError with the reason if there are none."""

    @abstractmethod
    def open(self, index: int) -> Device:
        """Return the opened device with this index (one object per device and process)."""

    def start_ahead(self) -> bool:
        """Start the driver in a thread, if that does not block this one; return whether it started.

        No caller waits for the thread; an error in the thread occurs again in `devices` or `open`.
        """
        return False

    def adopt(self, source: Any) -> Adopted | None:
        """Wrap the memory of another library that uses this API; return None for other objects.

        Work that the library has enqueued on the memory runs before litegpu's work. Raises
        BindingError for memory that programs cannot use, such as a non-contiguous array or memory
        of another context.
        """
        return None
