"""Limits the memory of a partition's packed constants, relative to the model's weights."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.errors import DeviceMemoryError
from litegpu.graph import Graph
from litegpu.ops.common.dequantized import address_of

_FREE_BYTES = 3 << 23
_FACTOR = 12
"""Conversion, splitting and padding enlarge a legitimate model's weights at most by this factor."""


@dataclass
class ConstantBudget:
    """The maximum number of bytes of a partition's packed constants.

    Each operation packs its weights in the layout of its kernel. A small model file can therefore
    need much memory: thousands of operations may read the same weights, or rows of one channel may
    be padded.
    """

    left: int = 1 << 62

    @classmethod
    def of(cls, graph: Graph) -> ConstantBudget:
        """Return the budget of a graph."""
        arrays = [value.data for value in graph.values.values() if value.data is not None]
        # A constant may occur twice with the same bytes.
        sizes = {(address_of(array), array.nbytes) for array in arrays}
        return cls(_FREE_BYTES + _FACTOR * sum(nbytes for _, nbytes in sizes))

    def take(self, nbytes: int) -> None:
        """Reserve bytes of the budget.

        Raises DeviceMemoryError if the packed constants exceed the budget.
        """
        self.left -= nbytes
        if self.left < 0:
            raise DeviceMemoryError(
                "The packed constants of this partition would use far more memory than the model's "
                "weights: many operations read the same weights, or padding enlarges them too much."
            )
