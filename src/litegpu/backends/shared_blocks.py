"""Blocks of large constants on a device, which programs share by their content.

The signatures of a language model read the same weights. The device has each packed weight once,
however many programs read it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from litegpu.backends.buffers import Buffer, Bytes
from litegpu.backends.constant_blocks import BLOCK_THREADS, LOAD_THREADS, ConstantBlock


class SharedBlock:
    """A block on a device, which is released with the last program that uses it."""

    def __init__(self, buffer: Buffer) -> None:
        """Own a buffer."""
        self._buffer = buffer

    @property
    def handle(self) -> Any:
        """The handle of the buffer, or its address, as in DeviceBuffer."""
        return self._buffer.handle  # type: ignore[attr-defined]


class Uploader(Protocol):
    """Copies bytes to new memory of a device."""

    def upload(self, data: Bytes) -> Buffer:
        """Return memory with these bytes. Raises the errors of Device.upload."""


class _Uploads(Uploader, Protocol):
    def uploader(self) -> Uploader | None: ...


class SharedBlocks:
    """The blocks on a device by the digests of their bytes; the device does not own them."""

    def __init__(self) -> None:
        """Know no blocks."""
        self._known: dict[str, weakref.ref[SharedBlock]] = {}
        self._changing = threading.RLock()

    def upload(self, blocks: Sequence[ConstantBlock], device: _Uploads) -> list[SharedBlock]:
        """Return blocks on the device; upload those that no program on the device has yet.

        Raises DeviceMemoryError if memory is insufficient, and ExecutionError if the device fails.
        """
        if not blocks:
            return []
        with self._changing:
            self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
            threads = _Threads(self._found, device)
            brought = threads.in_order(blocks)
            return [self._shared(*each, device) for each in zip(blocks, brought, strict=True)]

    def _found(self, block: ConstantBlock) -> SharedBlock | None:
        ref = self._known.get(block.digest)
        return None if ref is None else ref()

    def _shared(
        self, block: ConstantBlock, brought: Bytes | SharedBlock, device: Uploader
    ) -> SharedBlock:
        found = self._found(block)
        if found is None:
            if isinstance(brought, SharedBlock):
                found = brought
            else:
                found = SharedBlock(device.upload(brought))
            self._known[block.digest] = weakref.ref(found)
        return found


class _Threads:
    """Threads that read a few blocks ahead, and upload them if the API permits it."""

    def __init__(
        self, find: Callable[[ConstantBlock], SharedBlock | None], device: _Uploads
    ) -> None:
        """Use blocks that `find` finds instead of reading them."""
        self._find, self._device = find, device
        self._own = threading.local()

    def in_order(self, blocks: Sequence[ConstantBlock]) -> Iterator[Bytes | SharedBlock]:
        """Yield each block on the device, or its bytes if the calling thread has to upload them."""
        most = LOAD_THREADS if all(block.digest for block in blocks) else BLOCK_THREADS
        waiting: deque[Future[Bytes | SharedBlock]] = deque()
        with ThreadPoolExecutor(min(most, len(blocks)), "litegpu-upload") as pool:
            for block in blocks:
                waiting.append(pool.submit(self._bring, block))
                if len(waiting) > most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _bring(self, block: ConstantBlock) -> Bytes | SharedBlock:
        found = self._find(block) if block.digest else None
        if found is not None:
            return found
        data = block.read()
        if not hasattr(self._own, "uploader"):
            self._own.uploader = self._device.uploader()
        uploader: Uploader | None = self._own.uploader
        found = self._find(block)  # its digest may only be known now
        return found or (data if uploader is None else SharedBlock(uploader.upload(data)))
