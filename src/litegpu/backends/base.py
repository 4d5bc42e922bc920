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
    """0 where the API does not tell."""
    max_allocation_bytes: int
    max_work_group_size: int
    local_memory_bytes: int
    half_arithmetic: bool
    buffer_alignment: int
    """Where a bound range of a buffer may begin."""
    max_arguments: int
    """Buffers that one kernel may use."""
    compute_capability: Capability | None = None
    """Of NVIDIA GPUs, where the API tells."""
    max_binding_bytes: int | None = None
    """The largest range of a buffer that a kernel may use; None: all of it."""
    half_lanes: bool = True
    """Whether a kernel may store a single half; otherwise it must store four at a time."""
    max_shared_items: int | None = None
    """Work items that may share memory and wait for each other; None: any work group."""
    pci_address: str = ""
    """Domain, bus, device and function, as `00000000:3B:00.0`; empty where the API does not tell.
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


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return an address as `nvidia-smi` writes it."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"


class Compilation:
    """What `Device.compile` does, for a program whose kernels are told one by one before.

    Use it in a `with` block: what was begun and never finished ends with it.
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
        """Get ready for about so many kernels. Most devices need not."""

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
    """Whether it failed for good: nothing runs on it any more; it is opened anew when asked for."""

    @property
    def failures(self) -> Failures:
        """What has failed on it, in this process: one object, whichever thread asks first."""
        found: Failures = vars(self).setdefault("failures", Failures())
        return found

    @failures.setter
    def failures(self, failures: Failures) -> None:
        vars(self)["failures"] = failures

    def loss(self, cause: str = "it failed before") -> DeviceLostError:
        """Return the error for a device that failed for good, and why."""
        return DeviceLostError(
            f"Device {self.info.title} is lost: {cause.rstrip('.')}.",
            "Make a new GpuDelegate and interpreter, which open it anew; if it happens again, use "
            "another device or no delegate.",
        )

    def rejects(self, logs: Mapping[str, str]) -> KernelError:
        """Return the error for kernels that it cannot have, by their names, and why not."""
        return KernelError(f"Device {self.info.title}", logs)

    @abstractmethod
    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Compile, and upload the constants.

        A backend may keep kernels by themselves in `cache_dir`, beside what `Executable.binaries`
        gives; CUDA and OpenGL do.

        Raises KernelError that names the kernels which are rejected, if single ones are,
        CompilationError otherwise, and DeviceMemoryError when memory is short.
        """

    def compilation(
        self, cache_dir: Folder | None = None, fast_compile: bool = False
    ) -> Compilation:
        """Return what compiles a program of which kernels are known before all of it is.

        With `fast_compile` it may take less time for slower code, where a compiler knows how: the
        executable tells, and `recompile` makes up for it.
        """
        return Compilation(self, cache_dir)

    def can_compile_fast(self) -> bool:
        """Return whether `compilation` knows how to be quick."""
        return False

    def recompile(self, program: Program, cache_dir: Folder | None = None) -> Mapping[str, bytes]:
        """Return better binaries for `Executable.exchange` than those of a quick compilation.

        Meant for a thread beside a program that runs: it has the cores first, and its end waits for
        nothing here. Raises CompilationError.
        """
        raise CompilationError(f"{self.info.title} has no other binaries.")

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Make what `compile` does of the `binaries` that its executable gave.

        They must be of the same program, `origin` and driver. Without any, the program is compiled.
        Raises CompilationError when the driver refuses them, DeviceMemoryError when memory is
        short.
        """
        return self.compile(program)

    @property
    def origin(self) -> tuple[str, ...]:
        """What decides, beside `info`, whether binaries fit: versions of compilers above all."""
        return ()

    @abstractmethod
    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Return memory to bind to inputs and outputs of this device's programs.

        It is released when it is closed or nobody holds it any more. The bytes are not initialized.
        Raises DeviceMemoryError when memory is short.
        """


class Backend(ABC):
    """A GPU API. Nothing of it is imported before it is asked for devices."""

    name: ClassVar[str]
    title: ClassVar[str]
    """How people write its name."""
    package: ClassVar[str]
    """The Python package that it stands on, by its name for pip."""

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """Return the usable devices. Raises LitegpuError that says why there are none."""

    @abstractmethod
    def open(self, index: int) -> Device:
        """Return the opened device of that index (one object per device and process)."""

    def adopt(self, source: Any) -> Adopted | None:
        """Return memory of this API that another library has made, None for anything else.

        What that library does there at present comes first. Raises BindingError for memory that
        programs cannot use, such as with gaps or of another context.
        """
        return None
