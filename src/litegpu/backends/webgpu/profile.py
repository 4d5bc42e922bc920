"""Measures the time of each launch on a WebGPU device, with the device's clock if possible."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.backends.execution import Profiler
from litegpu.backends.webgpu.library import add_launches

if TYPE_CHECKING:
    from litegpu.backends.webgpu.context import WebGPUContext

_STAMPS = 4096
"""Maximum number of time stamps per query set."""


class WebGPUProfiler(Profiler):
    """Measures the launches of a context one by one."""

    def __init__(self, context: WebGPUContext) -> None:
        """Measure the times of a context."""
        super().__init__(context)
        self._context, self._device = context, context.device

    def durations(self) -> list[float]:
        """Run each launch in a separate pass; return the device time of each in seconds.

        Without a device clock, the method uses the host's clock, so each time includes a
        submission.
        """
        self._context.synchronize()
        with self._device.lock, self._context.typed:
            timed = self._by_device if self._device.timed else self._by_host
            return [seconds for part in self._parts() for seconds in timed(part)]

    def _parts(self) -> Iterator[list[Any]]:
        """Yield the launches in groups, one group for each query set of time stamps."""
        launches = self._context.launches
        for start in range(0, len(launches), _STAMPS // 2):
            yield launches[start : start + _STAMPS // 2]

    def _by_device(self, launches: Sequence[Any]) -> list[float]:
        device, usage = self._device.device, self._device.wgpu.BufferUsage
        count = 2 * len(launches)
        stamps = device.create_query_set(type="timestamp", count=count)
        resolved = device.create_buffer(size=8 * count, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
        encoder = device.create_command_encoder()
        for number, launch in enumerate(launches):
            writes = {
                "query_set": stamps,
                "beginning_of_pass_write_index": 2 * number,
                "end_of_pass_write_index": 2 * number + 1,
            }
            self._alone(encoder.begin_compute_pass(timestamp_writes=writes), launch)
        encoder.resolve_query_set(stamps, 0, count, resolved, 0)
        device.queue.submit([encoder.finish()])
        ticks = np.frombuffer(device.queue.read_buffer(resolved), np.uint64).astype(np.float64)
        resolved.destroy()
        stamps.destroy()
        period = self._device.calls.timestamp_period(device.queue)
        found: list[float] = ((ticks[1::2] - ticks[::2]) * period * 1e-9).tolist()
        return found

    def _by_host(self, launches: Sequence[Any]) -> list[float]:
        device, calls = self._device.device, self._device.calls
        times = []
        for launch in launches:
            calls.wait(device)
            start = time.perf_counter()
            encoder = device.create_command_encoder()
            self._alone(encoder.begin_compute_pass(), launch)
            device.queue.submit([encoder.finish()])
            calls.wait(device)
            times.append(time.perf_counter() - start)
        return times

    def _alone(self, compute: Any, launch: Any) -> None:
        calls = self._device.calls
        add_launches(calls.lib, calls.ffi.NULL, compute._internal, [launch])
        compute.end()
