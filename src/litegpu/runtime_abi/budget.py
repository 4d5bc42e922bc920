"""Limits the amount of data that litegpu reads from a model's graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy.typing as npt

from litegpu.errors import ModelError
from litegpu.runtime_abi.structs import float_array, int_array
from litegpu.wording import printable

_MAX_CUSTOM_BYTES = 1 << 16
_MAX_NAME_BYTES = 1 << 12
_SPREAD_FACTOR = 8
"""A sparse constant is large if its dense size exceeds its stored size by this factor."""
_MAX_OVERLAPPING = 1 << 20
_BYTES_PER_NUMBER = 8
_BYTES_PER_OPERATION = 1 << 16
"""Bytes of constants that permit one more number, and one more operation."""


@dataclass
class ReadBudget:
    """The remaining numbers of operations, operands and bytes that may be read of a model.

    Operations in a file can share lists, names and options, so each additional operation needs only
    a few bytes. A small file could therefore expand to a huge graph, unless the amount is limited.
    A large file may have more: each constant adds to the budget once, even if tensors share it.
    """

    operations: int = 1 << 14
    numbers: int = 1 << 21
    """Remaining count of numbers (operands, dimensions, scales, ...) and of option bytes."""
    spread_bytes: int = 1 << 24
    """Remaining bytes for dense forms of large sparse constants."""
    _counted: set[int] = field(default_factory=set)
    """The addresses of the constants that have added to the budget."""
    arrays: MutableMapping[Hashable, npt.NDArray[Any]] = field(default_factory=WeakValueDictionary)
    """The arrays of large constants that were read, by memory, dtype and shape.

    Tensors of several graphs that share their memory share an array, too.
    """

    def operation(self) -> None:
        """Count an operation. Raises ModelError when there are too many."""
        self.operations -= 1
        if self.operations < 0:
            raise ModelError(
                "The model has more operations than litegpu supports. Split the model, or run it "
                "without the delegate."
            )

    def integers(self, address: int | None) -> tuple[int, ...]:
        """Return a copy of a `TfLiteIntArray`. Raises ModelError if there are too many numbers."""
        self._count(_length(address))
        return int_array(address)

    def floats(self, address: int | None) -> tuple[float, ...]:
        """Return a copy of a `TfLiteFloatArray`. Raises ModelError as `integers` does."""
        self._count(_length(address))
        return float_array(address)

    def custom(self, address: int | None, size: int) -> bytes:
        """Return an op's custom options; b"" if longer than the options of any known op."""
        if not address or not 0 < size <= _MAX_CUSTOM_BYTES:
            return b""
        self._count(size // 4)
        return ctypes.string_at(address, size)

    def name(self, raw: bytes | None) -> str:
        """Return the first characters of a name."""
        found = (raw or b"")[:_MAX_NAME_BYTES]
        self._count(len(found) // 4)
        return found.decode("utf-8", "replace")

    def shown_name(self, raw: bytes | None) -> str:
        """Return the name of a custom op, shortened for reports and messages."""
        return printable(self.name(raw))

    def spread(self, stored: int, dense: int) -> bool:
        """Whether a sparse constant of `stored` bytes may be expanded to `dense` bytes."""
        beyond = max(dense - _SPREAD_FACTOR * stored, 0)
        if beyond > self.spread_bytes:
            return False
        self.spread_bytes -= beyond
        return True

    def constants(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add to the budget what constants permit, such as the scales of their rows.

        `ranges` has the address and the size in bytes of each constant; two constants may share all
        their bytes. Raises ModelError for constants that overlap partly, because the file's size
        would then not limit the total size of constants.
        """
        end = overlapping = 0
        for start, size in sorted(set(ranges)):
            overlapping += max(min(end, start + size) - start, 0)
            end = max(end, start + size)
            if start not in self._counted:
                self._counted.add(start)
                self.numbers += size // _BYTES_PER_NUMBER
                self.operations += size // _BYTES_PER_OPERATION
        if overlapping > _MAX_OVERLAPPING:
            raise ModelError(
                f"Constants of the model share {overlapping} bytes with other constants, so their "
                "total size exceeds the file's. Run the model without the delegate."
            )

    def _count(self, numbers: int) -> None:
        self.numbers -= max(numbers, 0)
        if self.numbers < 0:
            raise ModelError(
                "The operations and tensors of the model have more operands, dimensions and "
                "scales than litegpu supports. Run the model without the delegate."
            )


def _length(address: int | None) -> int:
    return ctypes.c_int32.from_address(address).value if address else 0
