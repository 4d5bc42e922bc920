"""NVML without a GPU: the power of its boards follows a clock that tests control."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest


class Clock:
    """The module `time`, where nothing passes by itself."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Board:
    """A GPU: `watts` are what it takes now, `millijoules` what it has taken."""

    name: str
    address: str = ""
    watts: float = 100.0
    has_counter: bool = True
    has_power: bool = True
    millijoules: float = 5e15
    """More than 32 bits hold."""
    since: float = field(default=1000.0)
    used: int = 0
    """Bytes of its memory, of all processes."""
    users: dict[int, int | None] = field(default_factory=dict)
    """What NVML says that processes take of it, by their numbers."""


class NVMLError(Exception):
    """As pynvml's: its text is the meaning of a code."""


class FakeNvml:
    """The module `pynvml`: a board is its own handle."""

    NVMLError = NVMLError

    def __init__(self, clock: Clock, *boards: Board) -> None:
        self.clock, self.boards = clock, boards
        self.opened = 0
        self.failing: dict[str, str] = {}
        """The text with which functions of that name fail."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in self.failing:
                return _raising(self.failing[name])
            if name != "nvmlInit" and not self.opened:
                return _raising("Uninitialized")
        return super().__getattribute__(name)

    def set_watts(self, watts: float) -> None:
        """Have every board take so much from now on."""
        for board in self.boards:
            self.nvmlDeviceGetTotalEnergy(board)
            board.watts = watts

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:  # noqa: N802
        return self.boards[index]

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> Board:  # noqa: N802
        for board in self.boards:
            if board.address.encode() == address:
                return board
        raise NVMLError("Not Found")

    def nvmlDeviceGetName(self, board: Board) -> str:  # noqa: N802
        return board.name

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=board.used)

    def nvmlDeviceGetComputeRunningProcesses(self, board: Board) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in board.users.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, board: Board) -> list[SimpleNamespace]:  # noqa: N802
        return []

    def nvmlDeviceGetTotalEnergyConsumption(self, board: Board) -> int:  # noqa: N802
        if not board.has_counter:
            raise NVMLError("Not Supported")
        return self.nvmlDeviceGetTotalEnergy(board)

    def nvmlDeviceGetPowerUsage(self, board: Board) -> int:  # noqa: N802
        if not board.has_power:
            raise NVMLError("Not Supported")
        return round(board.watts * 1000)

    def nvmlDeviceGetTotalEnergy(self, board: Board) -> int:  # noqa: N802
        board.millijoules += (self.clock.now - board.since) * board.watts * 1000
        board.since = self.clock.now
        return round(board.millijoules)


def _raising(text: str) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise NVMLError(text)

    return fail


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    """Have `import pynvml` give it."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml
