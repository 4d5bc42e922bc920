"""Measures the start and end of each command of an OpenCL device with the device's clock."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Bindings
from litegpu.backends.execution import Profiler
from litegpu.backends.opencl.library import Call
from litegpu.host.native_calls import together

if TYPE_CHECKING:
    from litegpu.backends.opencl.context import OpenCLContext

_Command = Callable[[int, Any], int]
"""Enqueues a command on a queue, and stores its event; returns 0 or an error code."""


class OpenCLProfiler(Profiler):
    """Runs a context's kernels on an in-order queue that records the times of its commands."""

    def __init__(self, context: OpenCLContext) -> None:
        """Create a profiler; the first measurement creates the queue."""
        super().__init__(context)
        self._context = context
        self._queue: Any = None

    def durations(self) -> list[float]:
        """Run all launches on a profiling queue; return the device time of each in seconds."""
        return [end - start for start, end in self._spans(self._launches())]

    def chain_seconds(self) -> float:
        """Return the seconds from the start of the first launch to the end of the last."""
        return _extent(self._spans(self._launches()))

    def device_seconds(self, bindings: Bindings) -> float:
        """Return the seconds from the start of the first input copy to the end of the last copy."""
        copies = self._context.bind(bindings)
        commands = [
            *map(_on_queue, copies.copies_in()),
            *self._launches(),
            *map(_on_queue, copies.copies_out()),
        ]
        return _extent(self._spans(commands))

    def phases(self, bindings: Bindings) -> dict[str, float]:
        """Run with the clock read between the steps, and with a wait before outputs are copied."""
        context = self._context
        copies = context.bind(bindings)
        steps: dict[str, Sequence[Call]] = {
            "copy in": copies.copies_in(),
            "submit": context.launches,
            "wait": (context.finish,),
            "copy out": copies.copies_out(wait=True),
        }
        found = {}
        context.ready = False
        for name, calls in steps.items():
            start = time.perf_counter()
            statuses = together(calls)
            found[name] = time.perf_counter() - start
            if any(statuses):
                context.finish_all()
                raise context.device.failed(next(filter(None, statuses)))
        context.ready = True
        return found

    def _launches(self) -> list[_Command]:
        self._context.check_alive()
        return [kernel.enqueue for kernel in self._context.kernels]

    def _spans(self, commands: Sequence[_Command]) -> list[tuple[float, float]]:
        """Run commands; return the start and end of each."""
        from pyopencl import Event

        if self._queue is None:
            cl, device = self._context.cl, self._context.device
            timed = cl.command_queue_properties.PROFILING_ENABLE
            self._queue = cl.CommandQueue(device.context, properties=timed)
        handles = [c_void_p() for _ in commands]
        try:
            for command, event in zip(commands, handles, strict=True):
                status = command(self._queue.int_ptr, ctypes.byref(event))
                if status:
                    raise self._context.device.failed(status)
        finally:
            self._queue.finish()
            events = [Event.from_int_ptr(each.value, retain=False) for each in handles if each]
        return [(event.profile.start * 1e-9, event.profile.end * 1e-9) for event in events]


def _on_queue(call: Call) -> _Command:
    """Convert a copy call to a command: the first argument is a queue, the last an event."""

    def command(queue: int, event: Any) -> int:
        status: int = call.func(queue, *call.args[1:-1], event)
        return status

    return command


def _extent(spans: Sequence[tuple[float, float]]) -> float:
    return spans[-1][1] - spans[0][0] if spans else 0.0
