"""Binds the runtime's tensors to a device's pinned memory, to save a copy of their data."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import AllocationType
from litegpu.runtime_abi.reader import tensor_at

_TENSORS = structs.TfLiteContext.tensors.offset  # type: ignore[union-attr]
_DATA = structs.TfLiteTensor.data.offset  # type: ignore[union-attr]
_TENSOR_SIZE = ctypes.sizeof(structs.TfLiteTensor)
_read_size = ctypes.c_size_t.from_address


class ZeroCopyBinding:
    """The tensors of one interpreter whose data are in memory that the runtime does not own.

    A binding changes only a tensor's address: for the runtime, the tensor remains in its arena.
    When the runtime plans the arena again, it assigns arena addresses to all tensors. A new plan
    can occur during a run, when a CPU op resizes a dynamic tensor. Therefore only a partition that
    is its graph's only node can use zero-copy binding.
    """

    def __init__(self) -> None:
        """Create a binding without tensors."""
        self._bound: list[tuple[int, int, int, int]] = []
        self._tensors = 0

    def bind(
        self, context: int, indices: Sequence[int], memory: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Move tensors, with their current data, to `memory`, which has an address per tensor."""
        self._tensors = _read_size(context + _TENSORS).value
        for index, ours, size in zip(indices, memory, sizes, strict=True):
            tensor = tensor_at(self._tensors, index)
            theirs = tensor.data or 0
            fits = tensor.allocation_type == AllocationType.ARENA_RW and tensor.bytes == size
            if theirs and theirs != ours and fits:
                ctypes.memmove(ours, theirs, size)
                tensor.data = ours
                self._bound.append((index, theirs, ours, size))

    def unbind(self, context: int, keep: bool = False) -> None:
        """Restore the old addresses of tensors that are still in the device's memory.

        With `keep`, the method moves the tensors' data back, too.
        """
        bound, self._bound = self._bound, []
        # If the runtime has reallocated its table, it has assigned a new address to every tensor.
        if bound and _read_size(context + _TENSORS).value == self._tensors:
            for index, theirs, ours, size in reversed(bound):
                data = _read_size(self._tensors + index * _TENSOR_SIZE + _DATA)
                if data.value == ours:
                    if keep:
                        ctypes.memmove(theirs, ours, size)
                    data.value = theirs
