"""A cache of prepared runs, with the buffers of a run as the key."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from litegpu.tensor_buffer import TensorBuffer

MAX_RUNS = 128
"""Maximum number of cached runs: two for each of 64 sessions that share a language model."""
_FIRST_BUFFER = 3
"""Index of the first buffer in a key."""
_Run = TypeVar("_Run")
Buffers = Sequence[TensorBuffer]
Key = tuple[object, ...]


class CachedRuns(Generic[_Run]):
    """The most recently used runs by their buffers; releasing a buffer removes its runs."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._runs = OrderedDict[Key, _Run]()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, key: Key) -> _Run | None:
        """Return the run for a key; None if it is not cached."""
        run = self._runs.get(key)
        with contextlib.suppress(KeyError):  # not cached, or another thread has released a buffer
            self._runs.move_to_end(key)
        return run

    def add(self, key: Key, run: _Run, buffers: Buffers) -> None:
        """Add a run, which must not reference its buffers; buffers reference this cache weakly."""
        self._runs[key] = run
        for buffer in buffers:
            buffer.notify_on_release(self)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def forget_buffer(self, number: int) -> None:
        """Remove the runs that use the buffer with this id."""
        for key in [*self._runs]:
            if number in key[_FIRST_BUFFER:]:
                self._runs.pop(key, None)

    def clear(self) -> None:
        """Remove all runs."""
        self._runs.clear()


def key_of(index: int, inputs: Buffers, outputs: Buffers, stream: int | None) -> Key:
    """Return the key of a signature's run on certain buffers and a stream."""
    return (index, len(inputs), stream, *map(id, inputs), *map(id, outputs))
