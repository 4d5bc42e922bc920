"""Device times of a CUDA recording: graphs between events, long enough for the events' clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litegpu.backends.cuda_driver import Handles, KernelNode, call, driver

BATCH_SECONDS = 200e-6
"""How long a batch of launches should take: events cost microseconds."""
_MOST = 200
"""Launches of a batch at most."""


class Profiler:
    """Times graphs on the stream of a recording, whose context must be current."""

    def __init__(self, stream: Any, owned: Handles) -> None:
        """Make the two events. What is made belongs to `owned`. Raises CudaError."""
        cu = self._cu = driver()
        self._stream = stream
        self._owned = owned
        self._events = [owned.make(cu.cuEventCreate, cu.cuEventDestroy, 0) for _ in range(2)]
        self._batches: list[tuple[Any, int]] = []
        self._chain: Any = None

    def durations(self, launches: Iterable[KernelNode]) -> list[float]:
        """Return the seconds of each launch: batches of it, one launch after the other.

        They must not overlap. Only the first call looks at them.
        """
        if not self._batches:
            self._batches = [self._batch(launch) for launch in launches]
        return [self.seconds(graph) / count for graph, count in self._batches]

    def chain_seconds(self, launches: Iterable[KernelNode]) -> float:
        """Return the seconds of all launches as one graph. Only the first call looks at them."""
        if self._chain is None:
            self._chain = self._owned.capture(self._stream, launches)
        return self.seconds(self._chain)

    def seconds(self, graph: Any) -> float:
        """Run a graph twice and return the seconds of the second time.

        While the first run keeps the device busy, the events and the second run are enqueued: the
        time that this takes is not between the events.
        """
        cu, (start, end) = self._cu, self._events
        call(cu.cuGraphLaunch, graph, self._stream)
        call(cu.cuEventRecord, start, self._stream)
        call(cu.cuGraphLaunch, graph, self._stream)
        call(cu.cuEventRecord, end, self._stream)
        call(cu.cuStreamSynchronize, self._stream)
        (milliseconds,) = call(cu.cuEventElapsedTime, start, end)
        return float(milliseconds) * 1e-3

    def _batch(self, launch: KernelNode) -> tuple[Any, int]:
        """Return a graph with as many launches as fill BATCH_SECONDS, and how many these are."""
        one = self.seconds(self._owned.capture(self._stream, [launch]))
        count = min(max(round(BATCH_SECONDS / max(one, 1e-9)), 1), _MOST)
        return self._owned.capture(self._stream, [launch] * count), count
