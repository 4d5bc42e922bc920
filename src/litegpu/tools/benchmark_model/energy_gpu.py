"""Measures the energy of NVIDIA GPUs with NVML's energy counter or, without it, their power."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from litegpu import DeviceInfo
from litegpu.errors import missing_dependency
from litegpu.tools.benchmark_model.energy import Meter, MeterError

_PERIOD_SECS = 0.02
"""Seconds between two samples of the power, for GPUs without an energy counter."""


def gpu_meter(device: DeviceInfo) -> Meter:
    """Return the meter of the GPU board that contains a device.

    The function identifies the board by its PCI address: NVML numbers GPUs in another order than
    CUDA, and also lists GPUs that CUDA_VISIBLE_DEVICES hides. If the GPU's API reports no PCI
    address, the function uses the name.

    Raises:
        MeterError: the device is not an NVIDIA GPU, or NVML is missing or does not support the GPU.
    """
    if "nvidia" not in f"{device.name} {device.platform} {device.driver}".lower():
        raise MeterError(
            f"The energy of {device.title} is not measured: litegpu supports only the energy "
            "counters of NVIDIA GPUs."
        )
    nvml = _nvml()
    with _opened(nvml, device) as handle:
        name = _name(nvml, handle)
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except nvml.NVMLError:
            nvml.nvmlDeviceGetPowerUsage(handle)
            return PowerMeter(nvml, device, f"{name}, by its power, which is sampled")
        return CounterMeter(nvml, device, f"{name}, by its energy counter")


@contextlib.contextmanager
def _opened(nvml: Any, device: DeviceInfo) -> Iterator[Any]:
    """Open NVML, yield its device handle, and convert NVML errors to MeterError."""
    failed = f"The energy of {device.title} is not measured: NVML"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise MeterError(
            f"{failed} cannot be initialized ({error}). Check that `nvidia-smi` works."
        ) from error
    try:
        yield _handle(nvml, device)
    except nvml.NVMLError as error:
        raise MeterError(f"{failed} does not report energy ({error}).") from error
    finally:
        nvml.nvmlShutdown()


def _nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MeterError(
            str(missing_dependency("nvidia-ml-py", "energy", "Measuring a GPU's energy"))
        ) from error


def _handle(nvml: Any, device: DeviceInfo) -> Any:
    if device.pci_address:
        return nvml.nvmlDeviceGetHandleByPciBusId(device.pci_address.encode())
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    alike = [each for each in every if _name(nvml, each) in device.name]
    if len(alike) != 1:
        raise MeterError(
            f"The energy of {device.title} is not measured: {len(alike)} of NVML's GPUs have this "
            "name, and the API does not report which of them runs the model. Use CUDA "
            "(--backend=cuda)."
        )
    return alike[0]


def _name(nvml: Any, handle: Any) -> str:
    found = nvml.nvmlDeviceGetName(handle)
    return found.decode() if isinstance(found, bytes) else str(found)


class _NvmlMeter(Meter):
    """Measures a GPU board with NVML inside a `with` block."""

    kind = "GPU"

    def __init__(self, nvml: Any, device: DeviceInfo, name: str) -> None:
        self._nvml, self._device, self.name = nvml, device, name
        self._open = contextlib.ExitStack()
        self._handle: Any = None

    def __enter__(self) -> _NvmlMeter:
        self._handle = self._open.enter_context(_opened(self._nvml, self._device))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _ask(self, function: str) -> float:
        """Return the result of an NVML function of the board, converted to joules or watts."""
        try:
            return int(getattr(self._nvml, function)(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise MeterError(
                f"The energy of {self.name} is not measured: NVML failed ({error})."
            ) from error


class CounterMeter(_NvmlMeter):
    """Reads the energy counter of GPUs since Volta: millijoules since the driver was loaded."""

    def read(self) -> float:
        """Return the counter in joules. Raises MeterError if the counter cannot be read."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption")


class PowerMeter(_NvmlMeter):
    """Integrates the power of older GPUs over time; a thread samples it in milliwatts."""

    def __init__(self, nvml: Any, device: DeviceInfo, name: str) -> None:
        super().__init__(nvml, device, name)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._joules, self._last = 0.0, (0.0, 0.0)

    def __enter__(self) -> PowerMeter:
        super().__enter__()
        try:
            self._last = (time.perf_counter(), self._watts())
        except MeterError:
            self._open.close()
            raise
        self._thread.start()
        self._open.callback(self._end)
        return self

    def read(self) -> float:
        """Return the joules since the start of the `with` block. Raises MeterError."""
        watts = self._watts()
        with self._lock:
            now, (then, before) = time.perf_counter(), self._last
            self._joules += (now - then) * (watts + before) / 2
            self._last = (now, watts)
            return self._joules

    def _watts(self) -> float:
        return self._ask("nvmlDeviceGetPowerUsage")

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD_SECS):
            try:
                self.read()
            except MeterError:
                return  # the next reading reports it
