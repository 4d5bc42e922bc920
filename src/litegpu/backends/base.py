"""The one small interface that every GPU API is put behind."""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.backends.program import Program
from litegpu.codegen import Dialect
from litegpu.device_model import Capability, DeviceModel, model_of


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


class Recording(ABC):
    """A program on a device, ready to run as often as wanted."""

    timeout: float | None = None
    """The most seconds that a run may wait for the device; None: no limit.

    After that long it raises InvokeTimeoutError, the device is lost, and memory that it may still
    touch is never freed.
    """

    @abstractmethod
    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Copy from the input addresses, run all launches, copy to the output addresses.

        Raises ExecutionError when the device fails, DeviceLostError when it did for good.
        """

    def bind(
        self, inputs: Sequence[ctypes.c_void_p], outputs: Sequence[ctypes.c_void_p]
    ) -> Callable[[], None]:
        """Return a call like `run` on whatever these pointers hold at the time.

        Making it once and calling it often is cheaper than `run`.
        """

        def call() -> None:
            self.run([p.value or 0 for p in inputs], [p.value or 0 for p in outputs])

        return call

    def host_memory(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return addresses of host memory, one per input and output, that need no copying.

        Data that already lies there costs `run` less. It belongs to the recording until `close`.
        None: the device has no such memory.
        """
        return None

    @abstractmethod
    def durations(self) -> list[float]:
        """Run all launches once or more; return the device seconds of each by itself."""

    def chain_seconds(self) -> float | None:
        """Run all launches as `run` does, without copies; return their device seconds.

        None where the device cannot tell.
        """
        return None

    def device_seconds(self, inputs: Sequence[int], outputs: Sequence[int]) -> float | None:
        """Run like `run`; return the device seconds from the first copy to the last, or None."""
        return None

    def phases(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, float]:
        """Run like `run`; return the host's seconds by what it was busy with, in order."""
        start = time.perf_counter()
        self.run(inputs, outputs)
        return {"run": time.perf_counter() - start}

    @abstractmethod
    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Return the partition's memory as it is now (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release everything on the device."""


class Device(ABC):
    """An opened device."""

    info: DeviceInfo
    dialect: Dialect
    lost: bool = False
    """Whether it failed for good: nothing runs on it any more; it is opened anew when asked for."""

    @abstractmethod
    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Compile (keeping the result in `cache_dir` if given), allocate and record a program.

        Raises CompilationError when a kernel is refused, DeviceMemoryError when memory is short.
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
