"""How much memory the constants of a partition may take, by what the model file has of them."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.errors import DeviceMemoryError
from litegpu.graph import Graph

_FREE_BYTES = 3 << 23
_FACTOR = 12
"""What converting, splitting and padding make of the weights of a model that is no trick."""


@dataclass
class ConstantBudget:
    """Bytes that packed constants may take.

    Each operation packs the weights that it reads, in the order of its own kernel. A file that lets
    thousands of operations read the same weights, or pads rows of one channel, is small; what is
    packed of it need not be.
    """

    left: int = 1 << 62

    @classmethod
    def of(cls, graph: Graph) -> ConstantBudget:
        """Return the budget of a graph."""
        arrays = [value.data for value in graph.values.values() if value.data is not None]
        # The same bytes may be a constant twice.
        sizes = {(array.ctypes.data, array.nbytes) for array in arrays}
        return cls(_FREE_BYTES + _FACTOR * sum(nbytes for _, nbytes in sizes))

    def take(self, nbytes: int) -> None:
        """Spend some of it. Raises DeviceMemoryError when it is used up."""
        self.left -= nbytes
        if self.left < 0:
            raise DeviceMemoryError(
                "The constants of this partition would take far more memory than the model has of "
                "them: many operations read the same ones, or they are padded too much."
            )
