"""Measures the memory of NVIDIA GPUs that this process uses, with NVML."""

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
"""NVML's functions that list a board's processes, for compute APIs and for graphics APIs."""


class GpuPeak:
    """Samples the memory of the GPUs periodically, in a thread, while the `with` block runs.

    NVML reports the memory of this process, including the internal memory of the GPU API. In a
    container (where process ids differ) and on Windows, only `grown_mb` is known.
    """

    def __init__(self, interval_ms: int) -> None:
        self.own_mb = 0.0
        """Peak memory of this process on one board, in MB; 0 if NVML does not report processes."""
        self.grown_mb = 0.0
        """The maximum growth of one GPU's used memory, by all processes, in MB."""
        self.missing = ""
        """The reason why no memory figures are available; empty if there are figures."""
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
        """Return the maximum growth of a board's used memory, in MB; 0 after a failure."""
        try:
            for board, before in self._before:
                self.grown_mb = max(self.grown_mb, self._used(board) - before)
                self.own_mb = max(self.own_mb, self._own(board))
        except self._nvml.NVMLError as error:
            self._fail(error)
        return self.own_mb or self.grown_mb

    def _own(self, board: Any) -> float:
        """Return the memory of this process on a board, as NVML reports it, in MB."""
        users: dict[int, int] = {}
        for function in _OF_PROCESSES:
            with contextlib.suppress(self._nvml.NVMLError):  # a board without that information
                for user in getattr(self._nvml, function)(board):
                    users[user.pid] = max(users.get(user.pid, 0), user.usedGpuMemory or 0)
        return float(users.get(os.getpid(), 0)) / 2**20

    def _fail(self, error: Exception) -> None:
        self.missing = f"NVML, which reports on NVIDIA GPUs, failed ({error}). Check `nvidia-smi`."
        self._before = []
