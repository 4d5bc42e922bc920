"""A partition on a WebGPU device: pipelines and bind groups made once, encoded at each run.

WebGPU's command buffers can be submitted only once.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Recording
from litegpu.backends.folding import fold_launches, groups_of
from litegpu.backends.process import immortal, is_inherited, keep_in_children
from litegpu.backends.program import BufferRange, Program
from litegpu.backends.shaders import refused, sources_of, timed_out, too_little_memory
from litegpu.backends.webgpu_library import TITLE, Commands, Reader, add_launches
from litegpu.codegen import KernelText, round_up
from litegpu.errors import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    InvokeTimeoutError,
    LitegpuError,
)

if TYPE_CHECKING:
    from litegpu.backends.webgpu import WebGPUDevice

_CHUNK = 16 << 20
"""Bytes of the host that fill a device's memory at a time."""
_COMPUTE = 4
"""The compute stage in a bind group layout's visibility."""

_STAMPS = 4096
"""Time stamps that a set may hold."""
_WORD_BYTES = 4
"""WebGPU copies and binds whole words."""


def _words(slot: BufferRange) -> int:
    """Return the bytes of the words that a range takes part of."""
    return round_up(slot.size, _WORD_BYTES)


class _Typed:
    """Turns wgpu's errors into DeviceMemoryError, DeviceLostError or ExecutionError."""

    def __init__(self, device: WebGPUDevice, sizes: Sequence[int]) -> None:
        """Take the sizes of the buffers, for the message about too little memory."""
        self._device, self._sizes = device, sizes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        device = self._device
        if isinstance(error, LitegpuError):
            return
        if isinstance(error, (device.wgpu.GPUError, RuntimeError)):
            if not device.is_shortage(error):
                raise device.failure(error) from error
            cause = " ".join(str(error).split())
            message = too_little_memory(device.info.title, self._sizes, cause)
            raise DeviceMemoryError(message) from error


class WebGPURecording(Recording):
    """A partition's buffers, pipelines and bind groups."""

    def __init__(self, device: WebGPUDevice, program: Program) -> None:
        """Compile and allocate. Raises CompilationError, DeviceMemoryError or ExecutionError."""
        keep_in_children(self)
        self._device = device
        self._wgpu = device.wgpu
        program = self._program = fold_launches(program, (device.group_limit,) * 3)
        self._calls = device.calls
        self._closed = self._given_up = False
        self._running = threading.RLock()
        """Held by a run to its end: what it reads must not be released before."""
        self._typed = _Typed(device, (program.memory_bytes, program.constants.nbytes))
        self._reader: Reader | None = None
        starts = [0, *accumulate(_words(slot) for slot in program.outputs)]
        self._results_bytes = starts.pop()
        self._copies = [
            (slot.offset, start, _words(slot))
            for slot, start in zip(program.outputs, starts, strict=True)
        ]
        """Where each output lies in memory and among the results, and its bytes."""
        self._launches: list[tuple[Any, ...]] = []
        self._groups: list[Any] = []
        self._buffers: list[Any] = []
        self._layouts: dict[tuple[str, ...], Any] = {}
        self._pipelines: dict[str, Any] = {}
        try:
            with self._typed:
                self._make(program)
        except BaseException:
            self.close()
            raise

    def _make(self, program: Program) -> None:
        usage = self._wgpu.BufferUsage
        copies = usage.COPY_SRC | usage.COPY_DST
        self._compile()
        self._memory = self._allocate(program.memory_bytes, usage.STORAGE | copies)
        self._poison()
        self._constants = self._allocate(program.constants.nbytes, usage.STORAGE | copies)
        self._upload(self._constants, program.constants)
        self._results = self._allocate(self._results_bytes, usage.COPY_DST | usage.MAP_READ)
        self._launches = [*self._record()]
        device = self._device.device
        self._commands = Commands(self._calls, device, self._launches)
        self._reader = Reader(self._calls, device, self._results, max(self._results_bytes, 4))
        self._wait()

    def _compile(self) -> None:
        device = self._device
        for text, source in sources_of(self._program, device.dialect):
            device.worker.check()
            try:
                made = device.pipelines.get(source, partial(self._pipeline, text, source))
            except self._wgpu.GPUError as error:
                if device.is_loss(error) or device.is_shortage(error):
                    raise
                message = refused(device.info.title, text.name, str(error))
                raise CompilationError(message) from error
            self._pipelines[text.name] = made

    def _pipeline(self, text: KernelText, source: str) -> Any:
        device = self._device.device
        module = self._calls.shader_module(device, text.name, source)
        return device.create_compute_pipeline(
            label=text.name,
            layout=device.create_pipeline_layout(bind_group_layouts=[self._layout(text)]),
            compute={"module": module, "entry_point": "main"},
        )

    def _layout(self, text: KernelText) -> Any:
        """Return the bind group layout of a kernel; kernels alike share it."""
        kinds = tuple(
            "read-only-storage" if self._device.dialect.fixed(argument) else "storage"
            for argument in text.arguments
        )
        if kinds not in self._layouts:
            self._layouts[kinds] = self._device.device.create_bind_group_layout(
                entries=[
                    {"binding": place, "visibility": _COMPUTE, "buffer": {"type": kind}}
                    for place, kind in enumerate(kinds)
                ]
            )
        return self._layouts[kinds]

    def _allocate(self, nbytes: int, usage: int) -> Any:
        buffer = self._device.device.create_buffer(size=max(nbytes, 4), usage=usage)
        self._buffers.append(buffer)
        return buffer

    def _poison(self) -> None:
        """Fill the memory with NaN: a read of something never written then shows."""
        nbytes = self._program.memory_bytes
        block = np.full(min(nbytes, _CHUNK), 0xFF, np.uint8)
        queue = self._device.device.queue
        for start in range(0, nbytes, _CHUNK):
            queue.write_buffer(self._memory, start, block, size=min(_CHUNK, nbytes - start))
            self._wait()

    def _upload(self, buffer: Any, data: npt.NDArray[np.uint8]) -> None:
        queue = self._device.device.queue
        for start in range(0, data.nbytes, _CHUNK):
            queue.write_buffer(buffer, start, data[start : start + _CHUNK])
            queue.submit([])

    def _wait(self) -> None:
        """Submit what is queued, and wait until the device has done everything."""
        self._device.device.queue.submit([])
        self._calls.wait(self._device.device)

    def _record(self) -> Iterator[tuple[Any, ...]]:
        """Yield what each launch hands to the native library: pipeline, bind group, work groups."""
        texts = {kernel.name: kernel for kernel in self._program.kernels}
        for launch in self._program.launches:
            entries = [
                {"binding": place, "resource": self._range(slot)}
                for place, slot in enumerate(launch.ranges)
            ]
            layout = self._layout(texts[launch.kernel])
            bound = self._device.device.create_bind_group(layout=layout, entries=entries)
            self._groups.append(bound)
            pipeline = self._pipelines[launch.kernel]
            yield (pipeline._internal, bound._internal, *groups_of(launch))

    def _range(self, slot: BufferRange) -> dict[str, Any]:
        buffer = self._constants if slot.constant else self._memory
        return {"buffer": buffer, "offset": slot.offset, "size": _words(slot)}

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Copy in, encode and submit all launches at once, wait, and copy out."""
        with self._running, self._typed:
            with self._device.lock:
                reader = self._open_reader()
                reader.settle()
                self._write(inputs)
                self._commands.submit(self._memory, self._results, self._copies)
                reader.map()
            results = self._wait_for(reader)
            for slot, copy, address in zip(
                self._program.outputs, self._copies, outputs, strict=True
            ):
                ctypes.memmove(address, results + copy[1], slot.size)
            reader.unmap()

    def _open_reader(self) -> Reader:
        """Return what reads the results. Raises ExecutionError after `close`."""
        if self._closed or self._reader is None:
            raise ExecutionError("This partition was released. Make the interpreter anew.")
        return self._reader

    def _wait_for(self, reader: Reader) -> int:
        """Return where the host finds the results. Raises InvokeTimeoutError."""
        try:
            return reader.wait(self.timeout)
        except TimeoutError as error:
            self._device.lost = self._given_up = True
            immortal(self)  # with its buffers, which the device may still use
            raise InvokeTimeoutError(timed_out(self._device.info.title, self.timeout)) from error

    def _write(self, inputs: Sequence[int]) -> None:
        queue = self._device.device.queue
        for slot, address in zip(self._program.inputs, inputs, strict=True):
            whole = slot.size // _WORD_BYTES * _WORD_BYTES
            self._calls.write(queue, self._memory, slot.offset, address, whole)
            if whole < slot.size:
                # The tensor ends inside a word, and what lies behind it is not ours to read.
                rest = ctypes.string_at(address + whole, slot.size - whole)
                padded = rest.ljust(_WORD_BYTES, b"\0")
                queue.write_buffer(self._memory, slot.offset + whole, padded)

    def durations(self) -> list[float]:
        """Run launch by launch, each in a pass of its own; seconds by the device's clock.

        Where the device has none, by the host's, with the time that a submission takes.
        """
        with self._device.lock, self._typed:
            timed = self._by_device if self._device.timed else self._by_host
            return [seconds for part in self._parts() for seconds in timed(part)]

    def _parts(self) -> Iterator[list[Any]]:
        """Yield the launches in as many pieces as sets of time stamps are needed."""
        for start in range(0, len(self._launches), _STAMPS // 2):
            yield self._launches[start : start + _STAMPS // 2]

    def _by_device(self, launches: Sequence[Any]) -> list[float]:
        device, usage = self._device.device, self._wgpu.BufferUsage
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
        period = self._calls.timestamp_period(device.queue)
        found: list[float] = ((ticks[1::2] - ticks[::2]) * period * 1e-9).tolist()
        return found

    def _by_host(self, launches: Sequence[Any]) -> list[float]:
        times = []
        for launch in launches:
            self._wait()
            start = time.perf_counter()
            encoder = self._device.device.create_command_encoder()
            self._alone(encoder.begin_compute_pass(), launch)
            self._device.device.queue.submit([encoder.finish()])
            self._wait()
            times.append(time.perf_counter() - start)
        return times

    def _alone(self, compute: Any, launch: Any) -> None:
        add_launches(self._calls.lib, self._calls.ffi.NULL, compute._internal, [launch])
        compute.end()

    def read_memory(self) -> npt.NDArray[np.uint8]:
        with self._device.lock, self._typed:
            self._open_reader()
            held = self._device.device.queue.read_buffer(self._memory)
        return np.frombuffer(held, np.uint8)[: self._program.memory_bytes]

    def close(self) -> None:
        """Release buffers now instead of at the next collection."""
        if self._given_up or is_inherited(TITLE):
            return
        with self._running, self._device.lock:
            self._closed = True
            if self._reader is not None:
                self._reader.settle()
            for buffer in self._buffers:
                with contextlib.suppress(self._wgpu.GPUError):
                    buffer.destroy()
        # An error may keep this object, through its traceback, but not what wgpu made.
        held = [self._buffers, self._groups, self._layouts, self._pipelines, self._reader]
        self._buffers, self._groups, self._layouts, self._pipelines = [], [], {}, {}
        self._memory = self._constants = self._results = self._reader = None
        self._launches.clear()
        self._device.worker.post(held.clear)
