"""Measures device times of a CUDA context with events before and after batches of launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Bindings
from litegpu.backends.cuda.driver import KernelNode, call, driver
from litegpu.backends.execution import Profiler

if TYPE_CHECKING:
    from litegpu.backends.cuda.context import CUDAContext

BATCH_SECONDS = 200e-6
"""The minimum duration of a batch of launches, because events take microseconds."""
_MOST = 200
"""Maximum launches per batch."""


class CUDAProfiler(Profiler):
    """Times graphs on a context's stream; the context owns the profiler's handles."""

    def __init__(self, context: CUDAContext) -> None:
        """Create a profiler, without events or graphs yet."""
        super().__init__(context)
        self._cu = driver()
        self._context = context
        self._events: list[Any] = []
        self._batches: list[tuple[Any, int]] = []
        self._chain: Any = None
        self._inputs: Any = None

    def durations(self) -> list[float]:
        """Time each launch in a separate batch, with a warm cache and without overlap, in seconds.

        Launches run in order, on the results of earlier launches, because some kernels take longer
        for unusual values.
        """
        return self._context.synchronized(self._durations)

    def _durations(self) -> list[float]:
        context = self._context
        if not self._batches:
            direct = context.host_graph().direct
            nodes = context.kernel_nodes(direct, overlap=False)
            self._batches = [self._batch(node) for node in nodes]
        self._bring_inputs()
        return [self._of_graph(graph) / count for graph, count in self._batches]

    def chain_seconds(self) -> float:
        """Return the device seconds of all launches in one graph, overlapping as in a run.

        The result includes the time in which kernels write outputs directly to host memory.
        """
        context, before = self._context, self._bring_inputs
        return context.synchronized(lambda: self.of_nodes(context.host_graph().kernels, before))

    def _bring_inputs(self) -> None:
        """Copy the staged inputs again, because kernels have overwritten their memory."""
        nodes = self._context.host_graph().copies_in
        if nodes:
            self._inputs = self._inputs or self._captured(nodes)
            call(self._cu.cuGraphLaunch, self._inputs, self._context.stream)

    def of_nodes(
        self, nodes: Sequence[KernelNode], before: Callable[[], object] = lambda: None
    ) -> float:
        """Return the seconds of some launches as one graph, which the first call captures.

        Two events are microseconds apart even without launches between them. For `before` see
        `_seconds`.
        """
        if not nodes:
            return 0.0
        if self._chain is None:
            self._chain = self._captured(nodes)
        return self._of_graph(self._chain, before)

    def device_seconds(self, bindings: Bindings) -> float:
        """Return the device seconds of the whole run, with its copies."""
        submission = self._context.bind(bindings)
        submission.stage()
        seconds = self._context.synchronized(partial(self._seconds, submission.launch))
        submission.deliver()
        return seconds

    def phases(self, bindings: Bindings) -> dict[str, float]:
        """Run once with the clock read between the steps."""
        submission, context = self._context.bind(bindings), self._context
        steps: dict[str, Callable[[], object]] = {
            "copy in": submission.stage,
            "submit": submission.launch,
            "wait": partial(call, self._cu.cuStreamSynchronize, context.stream),
            "copy out": submission.deliver,
        }
        found = {}

        def measure() -> None:
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                found[name] = time.perf_counter() - start

        context.synchronized(measure)
        return found

    def _of_graph(self, graph: Any, before: Callable[[], object] = lambda: None) -> float:
        launch = partial(call, self._cu.cuGraphLaunch, graph, self._context.stream)
        return self._seconds(launch, before)

    def _seconds(
        self, launch: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> float:
        """Call `launch` twice and return the device time of the second call in seconds.

        The method calls `before` ahead of each `launch`, and does not include the work of `before`.

        The first run keeps the device busy while the events and the second run are enqueued, so the
        time for enqueueing is not measured.
        """
        cu, stream, make = self._cu, self._context.stream, self._context.owned.make
        if not self._events:
            self._events = [make(cu.cuEventCreate, cu.cuEventDestroy, 0) for _ in range(2)]
        start, end = self._events
        before()
        launch()
        before()
        call(cu.cuEventRecord, start, stream)
        launch()
        call(cu.cuEventRecord, end, stream)
        call(cu.cuStreamSynchronize, stream)
        (milliseconds,) = call(cu.cuEventElapsedTime, start, end)
        return float(milliseconds) * 1e-3

    def _batch(self, launch: KernelNode) -> tuple[Any, int]:
        """Return a graph of copies of a launch that takes BATCH_SECONDS, and their number."""
        one = self._of_graph(self._captured([launch]))
        count = min(max(round(BATCH_SECONDS / max(one, 1e-9)), 1), _MOST)
        return self._captured([launch] * count), count

    def _captured(self, nodes: Sequence[KernelNode]) -> Any:
        return self._context.owned.capture(self._context.stream, nodes)
