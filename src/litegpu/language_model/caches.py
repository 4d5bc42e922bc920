"""The key-value caches of a session, in device memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.tensor_buffer import TensorBuffer

Buffers = Mapping[str, TensorBuffer]


@dataclass
class Caches:
    """The buffers of a session's KV caches: one per cache that runs update in place, else two.

    A failed run leaves the cached tokens unchanged. An in-place run writes only later positions; a
    run that overwrites positions writes the second buffer.
    """

    present: Buffers
    """The buffers that the next run reads, by their names in the signatures."""
    following: Buffers
    """The buffers that the next run writes: the same as `present`, or the second buffers."""

    def turn(self) -> None:
        """Swap the buffers after a run, so that the next run reads the written buffers."""
        self.present, self.following = self.following, self.present

    def fill(self, value: int) -> None:
        """Set all elements to a value."""
        for each in self.present.values():
            each.write(np.full(each.shape, value, each.dtype))

    def copy_from(self, other: Caches) -> None:
        """Copy other caches of the same model; device buffers are copied on the device."""
        for name, source in other.present.items():
            self.present[name].memory.copy_from(source.memory)

    def destroy(self) -> None:
        """Release the memory."""
        for each in self._buffers():
            each.destroy()

    def nbytes(self) -> int:
        """Return the total size of all buffers in bytes."""
        return sum(each.nbytes for each in self._buffers())

    def _buffers(self) -> Iterable[TensorBuffer]:
        both = (*self.present.values(), *self.following.values())
        return {id(each): each for each in both}.values()
