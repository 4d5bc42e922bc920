"""Memory of NVIDIA's GPUs that this process takes, by NVML."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from litegpu.errors import missing_dependency
from litegpu.tools.benchmark_model.memory import PeakMonitor

_OF_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)
"""CUDA's and OpenCL's users of a board, and those of OpenGL and Vulkan."""


class GpuPeak:
    """Looks at the memory of the GPUs every so often, in a thread, while the `with` block runs.

    NVML tells how much this process takes, its API's own state included. In a container, whose
    numbers of processes are others, and on Windows it does not: then `grown_mb` must do.
    """

    def __init__(self, interval_ms: int) -> None:
        self.own_mb = 0.0
        """The most that this process took of one board, in MB; 0 where NVML does not tell."""
        self.grown_mb = 0.0
        """The maximum growth of the memory in use on one GPU, by all processes, in MB."""
        self.missing = ""
        """Why nothing is known, empty if something is."""
        self._monitor = PeakMonitor(interval_ms, self._look)
        self._nvml: Any = None
        self._before: list[tuple[Any, float]] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> GpuPeak:
        try:
            self._nvml = nvml = importlib.import_module("pynvml")
        except ImportError:
            error = missing_dependency("nvidia-ml-py", "energy", "Measuring a GPU's memory")
            self.missing = str(error)
            return self
        try:
            nvml.nvmlInit()
            self._open.callback(self._close)
            boards = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            self._before = [(board, self._used(board)) for board in boards]
        except nvml.NVMLError as error:
            self._fail(error)
        self._open.enter_context(self._monitor)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _used(self, board: Any) -> float:
        return float(self._nvml.nvmlDeviceGetMemoryInfo(board).used) / 2**20

    def _look(self) -> float:
        """Return what the fullest board holds more than before, in MB; 0 after a failure."""
        try:
            for board, before in self._before:
                self.grown_mb = max(self.grown_mb, self._used(board) - before)
                self.own_mb = max(self.own_mb, self._own(board))
        except self._nvml.NVMLError as error:
            self._fail(error)
        return self.own_mb or self.grown_mb

    def _own(self, board: Any) -> float:
        """Return what NVML says that this process takes of a board, in MB."""
        users: dict[int, int] = {}
        for function in _OF_PROCESSES:
            with contextlib.suppress(self._nvml.NVMLError):  # a board that does not tell of those
                for user in getattr(self._nvml, function)(board):
                    users[user.pid] = max(users.get(user.pid, 0), user.usedGpuMemory or 0)
        return float(users.get(os.getpid(), 0)) / 2**20

    def _fail(self, error: Exception) -> None:
        self.missing = f"NVML, which tells of NVIDIA's GPUs, failed ({error}). Check `nvidia-smi`."
        self._before = []
