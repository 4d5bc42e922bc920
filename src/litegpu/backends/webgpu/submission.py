"""A run on a WebGPU device: host writes, launches, submission, mapping and copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Bindings, DeviceBuffer, HostBuffer
from litegpu.backends.direct_updates import DirectUpdates
from litegpu.backends.execution import Submission
from litegpu.backends.program import BufferRange
from litegpu.backends.webgpu.buffers import WORD_BYTES, check_words, words
from litegpu.backends.webgpu.library import TITLE, Copy, Reader
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.webgpu.context import WebGPUContext


class WebGPUSubmission(Submission):
    """A run with a single submission; the host reads the results from a mapped buffer."""

    def __init__(
        self, context: WebGPUContext, bindings: Bindings, direct: DirectUpdates | None = None
    ) -> None:
        """Prepare for checked buffers. Raises BindingError for ranges that are not whole words."""
        super().__init__(context)
        self._on = context
        self._bindings = bindings  # keeps the memory alive
        direct = direct or DirectUpdates()
        self._groups: list[Any] = []
        self._commands = context.commands
        if direct.uses:
            keep_in_children(self)
            self._commands = context.commands_on(direct, self._groups)
        program, memory, results = context.program, context.memory, context.results
        ends = (*bindings.inputs, *bindings.outputs)
        self._on_device = [each for each in ends if isinstance(each, DeviceBuffer)]
        self._writes: list[tuple[BufferRange, HostBuffer, Any, int]] = []
        """Writes from the host: a source, a target buffer and a byte offset in that buffer."""
        self._reads: list[tuple[HostBuffer, int, int]] = []
        """Copies to the host: the target, the offset in the results, and the number of bytes."""
        self._before: list[Copy] = []
        self._after: list[Copy] = []
        inputs = enumerate(zip(program.inputs, bindings.inputs, strict=True))
        for number, (part, buffer) in inputs:
            sink, at = memory, part.offset
            if number in direct.inputs:
                lent = direct.inputs[number]
                if lent is None:
                    continue
                sink, at = lent.handle, lent.offset
            if isinstance(buffer, HostBuffer):
                self._writes.append((part, buffer, sink, at))
            elif isinstance(buffer, DeviceBuffer):
                self._before.append((*_outside(buffer), sink._internal, at, words(part.size)))
        outputs = zip(program.outputs, bindings.outputs, context.result_starts, strict=True)
        for number, (part, buffer, start) in enumerate(outputs):
            if number in direct.outputs:
                continue
            if isinstance(buffer, HostBuffer):
                target = (results._internal, start)
                self._reads.append((buffer, start, part.size))
            else:
                assert isinstance(buffer, DeviceBuffer)
                target = _outside(buffer)
            self._after.append((memory._internal, part.offset, *target, words(part.size)))

    @property
    def run(self) -> Callable[[], None]:
        return self._run

    def _run(self) -> None:
        context = self._on
        if context.in_flight is not None:
            context.synchronize()
        with context.running, context.typed:
            reader = self._submit()
            self._deliver(reader)

    def _submit(self) -> Reader:
        context = self._on
        with context.device.lock:
            reader = context.open_reader()
            reader.release_mapping()
            for buffer in self._on_device:  # the library aborts the process for a destroyed buffer
                buffer.check_open()
            self._write()
            self._commands.submit(self._before, self._after)
            reader.map()
        return reader

    def _deliver(self, reader: Reader) -> None:
        results = self._on.wait_for(reader)
        for buffer, start, size in self._reads:
            ctypes.memmove(buffer.pointer, results + start, size)
        reader.unmap()

    def _write(self) -> None:
        queue, calls = self._on.device.device.queue, self._on.device.calls
        for part, buffer, sink, at in self._writes:
            address, whole = buffer.address, part.size // WORD_BYTES * WORD_BYTES
            calls.write(queue, sink, at, address, whole)
            if whole < part.size:
                # The tensor ends inside a word, and the bytes after it do not belong to litegpu.
                rest = ctypes.string_at(address + whole, part.size - whole)
                queue.write_buffer(sink, at + whole, rest.ljust(WORD_BYTES, b"\0"))

    def start(self) -> None:
        """Write host data, encode and submit."""
        with self._on.running, self._on.typed:
            self._submit()

    def is_done(self) -> bool:
        context = self._on
        with context.typed:
            reader = context.open_reader()
            context.device.calls.is_idle(context.device.device)
            return reader.is_mapped

    def finish(self) -> None:
        """Wait, and copy outputs to the host. Raises InvokeTimeoutError."""
        with self._on.running, self._on.typed:
            reader = self._on.open_reader()
            if reader.busy:  # false if it was interrupted after the end
                self._deliver(reader)

    @finalizer
    def __del__(self) -> None:
        """Make the worker delete the submission's bind groups; runs in flight reference it."""
        if self._groups and not is_inherited(TITLE):
            self._on.device.worker.post(self._groups.clear)


def _outside(buffer: DeviceBuffer) -> tuple[Any, int]:
    check_words(buffer.offset)
    return buffer.handle._internal, buffer.offset
