"""An execution context on a WebGPU device, which encodes its launches again at each run.

A WebGPU command buffer can be submitted only once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.backends.buffers import Bindings, Bytes, DeviceBuffer
from litegpu.backends.direct_updates import DirectUpdates, direct_updates
from litegpu.backends.execution import ExecutionContext, without_streams
from litegpu.backends.folding import groups_of
from litegpu.backends.program import BufferRange
from litegpu.backends.shaders import timed_out
from litegpu.backends.webgpu.buffers import WORD_BYTES, Buffers, Typed, words
from litegpu.backends.webgpu.library import TITLE, Commands, Reader
from litegpu.backends.webgpu.profile import WebGPUProfiler
from litegpu.backends.webgpu.submission import WebGPUSubmission
from litegpu.errors import ExecutionError, InvokeTimeoutError
from litegpu.host.fork_safety import immortal, is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.webgpu.executable import WebGPUExecutable


class WebGPUContext(ExecutionContext):
    """Memory, a mappable buffer for results, and bind groups. The worker creates the context."""

    executable: WebGPUExecutable

    def __init__(self, executable: WebGPUExecutable) -> None:
        """Allocate memory. Raises DeviceMemoryError, ExecutionError or DeviceLostError."""
        super().__init__(executable)
        keep_in_children(self)
        self.device = executable.device
        self.running = threading.RLock()
        """The lock that a run holds until its end, so that its buffers are not released earlier."""
        self.typed = Typed(self.device, (self.program.memory_bytes,))
        self.launches: list[tuple[Any, ...]] = []
        """Each launch's arguments for the native library: pipeline, bind group, work groups."""
        starts = [*accumulate((words(part.size) for part in self.program.outputs), initial=0)]
        self._results_bytes = starts.pop()
        self.result_starts = starts
        """The range of each output in the buffer of results."""
        self._closed = self._given_up = False
        self._reader: Reader | None = None
        self._groups: list[Any] = []
        self._buffers = Buffers(self.device)
        try:
            executable.enter(self)
            with self.typed:
                self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        usage, calls, device = self.device.wgpu.BufferUsage, self.device.calls, self.device.device
        self.memory = self._buffers.storage(self.program.memory_bytes)
        self._buffers.poison(self.memory, self.program.memory_bytes)
        readable = usage.COPY_DST | usage.MAP_READ
        self.results = self._buffers.make(self._results_bytes, readable)
        self.launches = [*self._record(DirectUpdates(), self._groups)]
        self.commands = Commands(calls, device, self.launches)
        self._reader = Reader(calls, device, self.results, max(self._results_bytes, WORD_BYTES))
        self._buffers.wait()

    def _record(self, direct: DirectUpdates, groups: list[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the launches; add bind groups to `groups`, which keeps the bind groups alive."""
        texts = {kernel.name: kernel for kernel in self.program.kernels}
        for number, launch in enumerate(self.program.launches):
            places = (
                self._range(part, *direct.argument(number, argument, part))
                for argument, part in enumerate(launch.ranges)
            )
            entries = [
                {"binding": binding, "resource": place} for binding, place in enumerate(places)
            ]
            layout = self.executable.layout(texts[launch.kernel])
            bound = self.device.device.create_bind_group(layout=layout, entries=entries)
            groups.append(bound)
            pipeline = self.executable.pipelines[launch.kernel]
            yield (pipeline._internal, bound._internal, *groups_of(launch))

    def _range(self, part: BufferRange, lent: DeviceBuffer | None, offset: int) -> dict[str, Any]:
        own = self.executable.constants_of(part) if part.constant else self.memory
        buffer = own if lent is None else lent.handle
        return {"buffer": buffer, "offset": offset, "size": words(part.size)}

    def bind(self, bindings: Bindings) -> WebGPUSubmission:
        """Prepare a run: copy inputs, submit all launches together, wait, and copy outputs."""
        self.open_reader()
        bindings.check(self.program, self.device)
        return WebGPUSubmission(self, bindings)

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> WebGPUSubmission:
        """Prepare a run as `bind` does, but with kernels that update device memory in place."""
        if stream is not None:
            raise without_streams()
        self.open_reader()
        bindings.check(self.program, self.device)
        direct = direct_updates(self.program, bindings, self.device.info.buffer_alignment)
        return WebGPUSubmission(self, bindings, direct)

    def commands_on(self, direct: DirectUpdates, groups: list[Any]) -> Commands:
        """Return the launches, with some arguments bound to other memory; append to `groups`."""

        def record() -> Commands:
            with self.typed:
                self.open_reader()
                launches = [*self._record(direct, groups)]
            return Commands(self.device.calls, self.device.device, launches)

        return self.device.make(record)

    def open_reader(self) -> Reader:
        """Return the reader of results. Raises DeviceLostError; ExecutionError after `close`."""
        if self.device.lost:
            raise self.device.loss()
        if self._closed or self._reader is None:
            raise ExecutionError("This partition was released. Create a new interpreter.")
        return self._reader

    def wait_for(self, reader: Reader) -> int:
        """Return the host address of the results. Raises InvokeTimeoutError."""
        try:
            return reader.wait(self.timeout)
        except TimeoutError as error:
            self.device.lost = self._given_up = True
            immortal(self)  # and its buffers, which the device may still use
            raise InvokeTimeoutError(timed_out(self.device.info.title, self.timeout)) from error

    def profiler(self) -> WebGPUProfiler:
        return WebGPUProfiler(self)

    def read_memory(self) -> Bytes:
        self.synchronize()
        with self.device.lock, self.typed:
            self.open_reader()
            data = self.device.device.queue.read_buffer(self.memory)
        return np.frombuffer(data, np.uint8)[: self.program.memory_bytes]

    def close(self) -> None:
        """Release the buffers immediately, not at the next garbage collection."""
        if is_inherited(TITLE):
            return
        self.synchronize()
        if self._given_up:
            return
        with self.running, self.device.lock:
            self._closed = True
            if self._reader is not None:
                self._reader.release_mapping()
            destroyed = self._buffers.destroy()
        # An error's traceback may reference this object, but must not reference wgpu's objects.
        resources = [destroyed, self._groups, self._reader]
        self._groups = []
        self.memory = self.results = self._reader = None
        self.launches.clear()
        self.device.worker.post(resources.clear)
        self.executable.leave(self)
