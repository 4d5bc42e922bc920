"""The one small interface that every GPU API is put behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from litegpu.backends.buffers import Adopted, Buffer, MemoryKind
from litegpu.backends.execution import Executable
from litegpu.backends.failures import Failures
from litegpu.backends.program import Program
from litegpu.codegen import Dialect, KernelText
from litegpu.device_model import Capability, DeviceModel, model_of
from litegpu.errors import CompilationError, DeviceLostError, KernelError
from litegpu.host.private_files import Folder


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts about one device; sizes are in bytes."""

    backend: str
    index: int
    name: str
    platform: str
    driver: str
    software: bool
    """Whether it is a CPU behind a GPU API."""
    compute_units: int
    memory_bytes: int
    """0 if the API does not report it."""
    max_allocation_bytes: int
    max_work_group_size: int
    local_memory_bytes: int
    half_arithmetic: bool
    buffer_alignment: int
    """Where a bound range of a buffer may begin, and where values begin."""
    max_arguments: int
    """Buffers that one kernel may use."""
    compute_capability: Capability | None = None
    """The compute capability of an NVIDIA GPU, if the API reports it."""
    max_binding_bytes: int | None = None
    """The largest range of a buffer that a kernel may use; None: all of it."""
    half_lanes: bool = True
    """Whether a kernel may store a single half; otherwise it must store four at a time."""
    offset_alignment: int | None = None
    """Where a bound range may begin within a value; None: where values begin."""
    fast_local_memory: bool = True
    """Whether a GPU has memory of its own for a work group; on some it is part of the device's."""
    pci_address: str = ""
    """Domain, bus, device and function, as `00000000:3B:00.0`; empty if unknown.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON-able data."""
        return asdict(self)

    @property
    def model(self) -> DeviceModel:
        """Its architecture: what kernels may use beyond the portable dialect."""
        return model_of(self.compute_capability)

    @property
    def title(self) -> str:
        """Name it in a line: ``opencl:0 NVIDIA H200``."""
        return f"{self.backend}:{self.index} {self.name}"


_WITHOUT_LOCAL_MEMORY = ("mali", "immortalis", "v3d", "videocore")
"""Words in the names of GPUs that keep the memory of a work group in the device's memory."""


def has_local_memory(name: str) -> bool:
    """Return whether a GPU has memory of its own for a work group, by its name."""
    return not any(word in name.lower() for word in _WITHOUT_LOCAL_MEMORY)


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return an address as `nvidia-smi` writes it."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"


class Compilation:
    """Incremental compile: kernels are added as they are lowered.

    Use it in a `with` block, which cancels unfinished work at its end.
    """

    def __init__(self, device: Device, cache_dir: Folder | None) -> None:
        """Compile for a device; `cache_dir` see Device.compile."""
        self.device = device
        self.cache_dir = cache_dir

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, kernels: int) -> None:
        """Prepare for about `kernels` kernels. Most devices do nothing."""

    def add(self, kernel: KernelText) -> None:
        """Take a kernel of the program. Most devices wait for all of them."""

    def flush(self) -> None:
        """Begin what waits for further kernels: there will be none for a while."""

    def finish(self, program: Program) -> Executable:
        """Return the executable of the whole program. Raises what Device.compile does.

        After a KernelError further kernels may be added, and another program finished.
        """
        return self.device.compile(program, self.cache_dir)

    def close(self) -> None:
        """Begin nothing more."""


class Device(ABC):
    """An opened device."""

    info: DeviceInfo
    dialect: Dialect
    lost: bool = False
    """Whether it is lost: nothing runs on it; the next request reopens it."""

    @property
    def failures(self) -> Failures:
        """The failures on it in this process; one object for all threads."""
        found: Failures = vars(self).setdefault("failures", Failures())
        return found

    @failures.setter
    def failures(self, failures: Failures) -> None:
        vars(self)["failures"] = failures

    def loss(self, cause: str = "it failed before") -> DeviceLostError:
        """Return the error for a device that failed for good, and why."""
        return DeviceLostError(
            f"Device {self.info.title} is lost: {cause.rstrip('.')}.",
            "Create a new GpuDelegate and interpreter, which reopen it; if it happens again, use "
            "another device or no delegate.",
        )

    def rejects(self, logs: Mapping[str, str]) -> KernelError:
        """Return the error for kernels that it cannot have, by their names, and why not."""
        return KernelError(f"Device {self.info.title}", logs)

    @abstractmethod
    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Compile, and upload the constants.

        A backend may cache single kernels in `cache_dir`, in addition to `Executable.binaries`;
        CUDA and OpenGL do.

        Raises KernelError with the rejected kernels if these are known, CompilationError
        otherwise, and DeviceMemoryError if memory is insufficient.
        """

    def compilation(
        self, cache_dir: Folder | None = None, fast_compile: bool = False
    ) -> Compilation:
        """Return a compilation that accepts kernels before the program is complete.

        With `fast_compile` it may compile faster to slower code, if the compiler supports it. Then
        `fast_compiled` of the executable is true, and `recompile` optimizes it.
        """
        return Compilation(self, cache_dir)

    def can_compile_fast(self) -> bool:
        """Return whether `compilation` supports `fast_compile`."""
        return False

    def recompile(self, program: Program, cache_dir: Folder | None = None) -> Mapping[str, bytes]:
        """Return optimized binaries for `Executable.exchange` after a fast compilation.

        For a background thread: the program has priority on the cores, and does not wait for this
        when it exits. Raises CompilationError.
        """
        raise CompilationError(f"{self.info.title} has no other binaries.")

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Create the executable from the `binaries` of an earlier one.

        They must be of the same program, `origin` and driver. Without any, the program is compiled.
        Raises CompilationError if the driver rejects them, DeviceMemoryError if memory is
        insufficient.
        """
        return self.compile(program)

    @property
    def origin(self) -> tuple[str, ...]:
        """What else determines whether binaries are valid, such as compiler versions."""
        return ()

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return memory for inputs and outputs of this device's programs.

        It is released when it is closed or no longer referenced. The bytes are not initialized.
        Raises DeviceMemoryError if memory is insufficient.
        """


class Backend(ABC):
    """A GPU API. Its package is imported when devices are listed."""

    name: ClassVar[str]
    title: ClassVar[str]
    """How people write its name."""
    package: ClassVar[str]
    """Its Python package, by the name for pip."""

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """Return the usable devices. Raises LitegpuError that says why there are none."""

    @abstractmethod
    def open(self, index: int) -> Device:
        """Return the opened device of that index (one object per device and process)."""

    def start_ahead(self) -> bool:
        """Start the driver in a thread, if that leaves this thread free; return whether it does.

        Nothing waits for the thread; what fails there fails again in `devices` or `open`.
        """
        return False

    def adopt(self, source: Any) -> Adopted | None:
        """Return the memory of another library that uses this API, None for other objects.

        Work that the library has enqueued on it precedes ours. Raises BindingError for memory that
        programs cannot use, such as with gaps or of another context.
        """
        return None
