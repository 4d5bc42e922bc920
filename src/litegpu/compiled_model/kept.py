"""Runs that stay prepared for the buffers that they are on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from litegpu.tensor_buffer import TensorBuffer

_MOST = 16
"""Sets of buffers whose runs are kept."""
_FIRST_BUFFER = 3
"""Where the buffers begin in the key of a run."""
_Run = TypeVar("_Run")
Buffers = Sequence[TensorBuffer]
Key = tuple[object, ...]


class KeptRuns(Generic[_Run]):
    """Runs by their buffers, each as long as all of these live; those that were used last."""

    def __init__(self) -> None:
        """Begin without any."""
        self._runs = OrderedDict[Key, _Run]()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, key: Key) -> _Run | None:
        """Return the run of a key, None where there is none."""
        return self._runs.get(key)

    def keep(self, key: Key, run: _Run, buffers: Buffers) -> None:
        """Keep a run that holds none of its buffers; they know these runs weakly."""
        self._runs[key] = run
        for buffer in buffers:
            buffer.when_gone(self)
        if len(self._runs) > _MOST:
            self._runs.popitem(last=False)

    def forget_buffer(self, number: int) -> None:
        """Let go of runs on the buffer of that id."""
        for key in [*self._runs]:
            if number in key[_FIRST_BUFFER:]:
                self._runs.pop(key, None)

    def clear(self) -> None:
        """Let go of all."""
        self._runs.clear()


def key_of(index: int, inputs: Buffers, outputs: Buffers, stream: int | None) -> Key:
    """Return the key of a signature's run on buffers and a stream."""
    return (index, len(inputs), stream, *map(id, inputs), *map(id, outputs))
