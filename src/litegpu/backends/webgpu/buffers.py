"""Buffers of a WebGPU device, and copies between them and the host."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.backends.buffers import Adopted, BorrowedBuffer, Bytes, DeviceBuffer
from litegpu.backends.shaders import too_little_memory
from litegpu.backends.webgpu.library import TITLE, Commands
from litegpu.codegen import round_up
from litegpu.errors import BindingError, DeviceMemoryError, LitegpuError
from litegpu.host.fork_safety import is_inherited, keep_in_children, touch

if TYPE_CHECKING:
    from litegpu.backends.webgpu.device import WebGPUDevice

_CHUNK = 16 << 20
"""Bytes per copy when device memory is filled from the host."""
WORD_BYTES = 4
"""Word size in bytes: WebGPU copies and binds whole words."""


def words(nbytes: int) -> int:
    """Return a number of bytes, rounded up to whole words."""
    return round_up(nbytes, WORD_BYTES)


class Typed:
    """Converts wgpu's errors to DeviceMemoryError, DeviceLostError or ExecutionError."""

    def __init__(self, device: WebGPUDevice, sizes: Sequence[int]) -> None:
        """Store the buffer sizes, for the message of a DeviceMemoryError."""
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


class Buffers:
    """Buffers that are released together."""

    def __init__(self, device: WebGPUDevice) -> None:
        """Create an empty set of buffers."""
        self._device = device
        self.created: list[Any] = []

    def make(self, nbytes: int, usage: int) -> Any:
        """Return a new wgpu-py buffer. Raises wgpu-py's errors."""
        buffer = self._device.device.create_buffer(size=max(nbytes, WORD_BYTES), usage=usage)
        self.created.append(buffer)
        return buffer

    def storage(self, nbytes: int) -> Any:
        """Return a new buffer for kernels and copies. Raises wgpu-py's errors."""
        usage = self._device.wgpu.BufferUsage
        return self.make(nbytes, usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)

    def poison(self, buffer: Any, nbytes: int) -> None:
        """Fill a buffer with NaN, which makes reads of uninitialized memory visible."""
        block = np.full(min(nbytes, _CHUNK), 0xFF, np.uint8)
        self._send(buffer, nbytes, lambda start: block[: nbytes - start], self.wait)

    def upload(self, buffer: Any, data: Bytes) -> None:
        """Copy data to a buffer."""
        submit = self._device.device.queue.submit
        self._send(buffer, data.nbytes, lambda at: data[at : at + _CHUNK], lambda: submit([]))

    def _send(
        self, buffer: Any, nbytes: int, block: Callable[[int], Bytes], after: Callable[[], object]
    ) -> None:
        for start in range(0, nbytes, _CHUNK):
            self._device.device.queue.write_buffer(buffer, start, block(start))
            after()

    def wait(self) -> None:
        """Submit queued work, and wait until the device is idle."""
        self._device.device.queue.submit([])
        self._device.calls.wait(self._device.device)

    def destroy(self) -> list[Any]:
        """Release the memory; return the objects that the device's worker must delete."""
        created, self.created = self.created, []
        for buffer in created:
            with contextlib.suppress(self._device.wgpu.GPUError):
                buffer.destroy()
        return created


class _WebGPUMemory(DeviceBuffer):
    """A buffer of the device; its `handle` is wgpu-py's object.

    A range starts at a whole word. A copy of an output writes whole words, so it also overwrites
    the bytes after the range's end in the last word.
    """

    device: WebGPUDevice

    def _write(self, offset: int, data: Bytes) -> None:
        check_words(offset)
        touch(TITLE)
        device = self.device
        with device.lock, Typed(device, (self.nbytes,)):
            queue, end = device.device.queue, words(data.nbytes)
            if end > data.nbytes:  # keep the rest of the last word
                last = end - WORD_BYTES
                rest = np.frombuffer(queue.read_buffer(self.handle, offset + last, 4), np.uint8)
                data = np.concatenate([data, rest[data.nbytes - last :]])
            queue.write_buffer(self.handle, offset, data)
            Buffers(device).wait()

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        nbytes = source.nbytes
        if nbytes % WORD_BYTES:  # keep the rest of the last word
            return self._write(offset, source.read())
        check_words(offset)
        check_words(source.offset)
        touch(TITLE)
        device = self.device
        ends = (source.handle._internal, source.offset, self.handle._internal, offset)
        with device.lock, Typed(device, (nbytes,)):
            Commands(device.calls, device.device, ()).submit([(*ends, nbytes)], ())
            return Buffers(device).wait()

    def _read(self, offset: int, host: Bytes) -> None:
        check_words(offset)
        touch(TITLE)
        device = self.device
        with device.lock, Typed(device, (self.nbytes,)):
            size = words(host.nbytes)
            data = device.device.queue.read_buffer(self.handle, offset, size)
            host[:] = np.frombuffer(data, np.uint8)[: host.nbytes]


class WebGPUBuffer(_WebGPUMemory):
    """A buffer with a separate allocation."""

    def __init__(self, device: WebGPUDevice, nbytes: int) -> None:
        """Allocate memory, on the worker. Raises DeviceMemoryError or DeviceLostError."""
        self._buffers = Buffers(device)
        keep_in_children(self)
        with Typed(device, (nbytes,)):
            super().__init__(device, self._buffers.storage(words(nbytes)), 0, nbytes)

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            self.closed = True
            with self.device.lock:
                resources = [self._buffers.destroy(), self.handle]
            self.handle = None
            self.device.worker.post(resources.clear)


class WebGPUBorrowedBuffer(BorrowedBuffer, _WebGPUMemory):
    """A buffer of another library that uses wgpu-py, on the same device."""

    def check_open(self) -> None:
        """Raise BindingError after `close`, or if the application mapped or destroyed it."""
        super().check_open()
        state = self.device.calls.unusable(self.handle)
        if state is not None:
            raise BindingError(
                f"A bound WebGPU buffer is {state}. Unmap a buffer before each run, and destroy "
                "it only after the last run; or bind another buffer."
            )


def adopt(source: Any, devices: Iterable[WebGPUDevice]) -> Adopted | None:
    """Wrap a wgpu.GPUBuffer as a buffer; return None for other objects.

    `devices` are the open devices. Raises BindingError. See Backend.adopt.
    """
    wgpu = sys.modules.get("wgpu")
    if wgpu is None or not isinstance(source, wgpu.GPUBuffer):
        return None
    for device in devices:
        if device.device is source._device:
            touch(TITLE)
            _check_usage(source, device)
            return Adopted(WebGPUBorrowedBuffer(device, source, 0, source.size))
    raise BindingError(
        "The buffer belongs to another WebGPU device than litegpu's. Create it on the device of "
        "one of the model's buffers: `buffer.handle._device` of a buffer with memory='device'."
    )


def _check_usage(source: Any, device: WebGPUDevice) -> None:
    usage = device.wgpu.BufferUsage
    needed = usage.COPY_SRC | usage.COPY_DST
    if source.usage & needed != needed:
        raise BindingError(
            f"A WebGPU buffer has the usage {source.usage}, which does not permit copies. Create "
            "the buffer with COPY_SRC and COPY_DST."
        )


def check_words(offset: int) -> None:
    """Raise BindingError for an offset that is not a multiple of the word size."""
    if offset % WORD_BYTES:
        raise BindingError(
            f"A buffer range begins at byte {offset} of its WebGPU buffer. Use a multiple of "
            f"{WORD_BYTES}."
        )
