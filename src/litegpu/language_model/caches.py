"""The caches of a session, in the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.tensor_buffer import TensorBuffer

Buffers = Mapping[str, TensorBuffer]


@dataclass
class Caches:
    """One buffer for each cache, which runs update, or two.

    A run that fails leaves the tokens before it as they were: it writes only positions after them
    or, where positions are overwritten, the other buffer.
    """

    present: Buffers
    """What the next run reads, by the names in the signatures."""
    following: Buffers
    """What the next run writes: the same buffers, or others."""

    def turn(self) -> None:
        """Let what a run has written be what the next one reads."""
        self.present, self.following = self.following, self.present

    def fill(self, value: int) -> None:
        """Give each element a value."""
        for each in self.present.values():
            each.write(np.full(each.shape, value, each.dtype))

    def copy_from(self, other: Caches) -> None:
        """Take the content of other caches of the same model, on the device if they are there."""
        for name, source in other.present.items():
            self.present[name].memory.copy_from(source.memory)

    def destroy(self) -> None:
        """Release the memory."""
        for each in self._buffers():
            each.destroy()

    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return sum(each.nbytes for each in self._buffers())

    def _buffers(self) -> Iterable[TensorBuffer]:
        both = (*self.present.values(), *self.following.values())
        return {id(each): each for each in both}.values()
