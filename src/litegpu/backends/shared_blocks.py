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
from litegpu.backends.constant_blocks import BLOCK_THREADS, ConstantBlock


class SharedBlock:
    """A block on a device, which is released with the last program that uses it."""

    def __init__(self, buffer: Buffer) -> None:
        """Own a buffer."""
        self._buffer = buffer

    @property
    def handle(self) -> Any:
        """The handle of the buffer, or its address, as in DeviceBuffer."""
        return self._buffer.handle  # type: ignore[attr-defined]


class _Uploader(Protocol):
    def upload(self, data: Bytes) -> Buffer: ...


class SharedBlocks:
    """The blocks on a device by the digests of their bytes; the device does not own them."""

    def __init__(self) -> None:
        """Know no blocks."""
        self._known: dict[str, weakref.ref[SharedBlock]] = {}
        self._changing = threading.RLock()

    def upload(self, blocks: Sequence[ConstantBlock], device: _Uploader) -> list[SharedBlock]:
        """Return blocks on the device; upload those that no program on the device has yet.

        Raises DeviceMemoryError if memory is insufficient, and ExecutionError if the device fails.
        """
        if not blocks:
            return []
        with self._changing:
            self._known = {key: ref for key, ref in self._known.items() if ref() is not None}
            reading = _in_order(self._read, blocks)
            return [self._shared(*each, device) for each in zip(blocks, reading, strict=True)]

    def _found(self, block: ConstantBlock) -> SharedBlock | None:
        ref = self._known.get(block.digest)
        return None if ref is None else ref()

    def _read(self, block: ConstantBlock) -> Bytes | None:
        """Return the bytes of a block; None if the device has the block."""
        return None if block.digest and self._found(block) else block.read()

    def _shared(self, block: ConstantBlock, data: Bytes | None, device: _Uploader) -> SharedBlock:
        found = self._found(block)
        if found is None:
            found = SharedBlock(device.upload(block.read() if data is None else data))
            self._known[block.digest] = weakref.ref(found)
        return found


def _in_order(
    read: Callable[[ConstantBlock], Bytes | None], blocks: Sequence[ConstantBlock]
) -> Iterator[Bytes | None]:
    """Yield the result of `read` for each block; threads read a few blocks ahead."""
    waiting: deque[Future[Bytes | None]] = deque()
    with ThreadPoolExecutor(min(BLOCK_THREADS, len(blocks)), "litegpu-upload") as pool:
        for block in blocks:
            waiting.append(pool.submit(read, block))
            if len(waiting) > BLOCK_THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
