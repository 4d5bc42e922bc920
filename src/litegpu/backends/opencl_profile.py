"""When an OpenCL device began and ended each command, by its own clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from functools import partial
from typing import Any

from litegpu.backends.calls import bound
from litegpu.backends.opencl_library import Kernel, library
from litegpu.backends.program import BufferRange, Program

_Command = Callable[[int, Any], int]
"""Enqueues something on a queue handle, with a place for its event; returns 0 or an error code."""


class Profiler:
    """An in-order queue that keeps the times of its commands, for the kernels of a partition."""

    def __init__(
        self,
        queue: Any,
        kernels: Sequence[Kernel],
        memory: Any,
        failed: Callable[[int], Exception],
    ) -> None:
        """Take a profiling queue; `failed` makes an error of an OpenCL error code."""
        self._queue = queue
        self._launches: list[_Command] = [kernel.enqueue for kernel in kernels]
        self._memory = memory
        self._failed = failed

    def durations(self) -> list[float]:
        """Return the seconds of each launch."""
        return [end - start for start, end in self._spans(self._launches)]

    def chain_seconds(self) -> float:
        """Return the seconds from the begin of the first launch to the end of the last."""
        return _extent(self._spans(self._launches))

    def device_seconds(
        self, program: Program, inputs: Sequence[int], outputs: Sequence[int]
    ) -> float:
        """Return the seconds from the begin of the first copy in to the end of the last one out."""
        lib = library()
        commands = [
            *self._copies(lib.clEnqueueWriteBuffer, program.inputs, inputs),
            *self._launches,
            *self._copies(lib.clEnqueueReadBuffer, program.outputs, outputs),
        ]
        return _extent(self._spans(commands))

    def _copies(
        self, copy: Any, slots: Sequence[BufferRange], addresses: Sequence[int]
    ) -> list[_Command]:
        return [partial(self._copy, copy, *each) for each in zip(slots, addresses, strict=True)]

    def _copy(self, copy: Any, slot: BufferRange, address: int, queue: int, event: Any) -> int:
        buffers = (queue, self._memory.int_ptr)
        call = bound(copy, *buffers, 0, slot.offset, slot.size, address, 0, None, event)
        status: int = call()
        return status

    def _spans(self, commands: Sequence[_Command]) -> list[tuple[float, float]]:
        """Run commands; return begin and end of each."""
        from pyopencl import Event

        made = [c_void_p() for _ in commands]
        try:
            for command, event in zip(commands, made, strict=True):
                status = command(self._queue.int_ptr, ctypes.byref(event))
                if status:
                    raise self._failed(status)
        finally:
            self._queue.finish()
            events = [Event.from_int_ptr(each.value, retain=False) for each in made if each]
        return [(event.profile.start * 1e-9, event.profile.end * 1e-9) for event in events]


def _extent(spans: Sequence[tuple[float, float]]) -> float:
    return spans[-1][1] - spans[0][0] if spans else 0.0
