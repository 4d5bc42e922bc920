"""Test devices that are the host itself: a run is complete when it returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, Buffer, Bytes, HostBuffer, MemoryKind
from litegpu.backends.execution import (
    Executable,
    ExecutionContext,
    Profiler,
    Submission,
)


class HostDevice(Device):
    """All memory is the host's."""

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        return HostBuffer.allocate(nbytes, MemoryKind.PINNED)


class _NoBlocks:
    """Uploads nothing: contexts read the program's blocks."""

    blocks = property(lambda self: self)

    def upload(self, *_: object) -> list[object]:
        return []


class HostExecutable(Executable):
    """Contexts that somebody else makes."""

    def __init__(self, program: object, make: Callable[[HostExecutable], ExecutionContext]) -> None:
        super().__init__(program, _NoBlocks())  # type: ignore[arg-type]
        self._make = make

    def _make_context(self) -> ExecutionContext:
        return self._make(self)

    def _release(self) -> None:
        """Nothing is on a device."""


class HostContext(ExecutionContext):
    """Runs at once. By itself it does nothing: outputs stay as they are."""

    def execute(self, bindings: Bindings) -> None:
        """Run from and to memory of the host."""

    def bind(self, bindings: Bindings) -> Submission:
        bindings.check(self.program, None)
        return _HostSubmission(self, bindings)

    def profiler(self) -> Profiler:
        return _HostProfiler(self)

    def read_memory(self) -> Bytes:
        raise NotImplementedError("nothing is there to read")

    def close(self) -> None:
        """Nothing is on a device."""


class _HostSubmission(Submission):
    def __init__(self, context: HostContext, bindings: Bindings) -> None:
        super().__init__(context)
        self._execute = partial(context.execute, bindings)

    @property
    def run(self) -> Callable[[], None]:
        return self._execute

    def start(self) -> None:
        self._execute()

    def is_done(self) -> bool:
        return True

    def finish(self) -> None:
        """All is done."""


class _HostProfiler(Profiler):
    def __init__(self, context: HostContext) -> None:
        super().__init__(context)
        self._launches = context.program.launches

    def durations(self) -> list[float]:
        return [0.0 for _ in self._launches]
