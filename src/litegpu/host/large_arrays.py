"""Computes facts of large arrays on all cores, and remembers them while the arrays exist."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.host.mapped_files import release

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Array = npt.NDArray[Any]

PIECE = 1 << 20
"""Size in bytes of the pieces that threads process."""
LARGE = 1 << 16
"""Minimum size in bytes of arrays whose facts are worth remembering."""
_MAX_THREADS = 16


class ArrayFact(Generic[_Result]):
    """A fact of arrays, which is remembered for each read-only array object.

    The fact of a large array is computed from its pieces of `PIECE` bytes, which several threads
    process. The elements of a read-only array may still change through other views of its memory;
    the remembered fact is then that of the earlier elements.
    """

    def __init__(
        self, of_piece: Callable[[_Array], Any], combined: Callable[[list[Any]], _Result]
    ) -> None:
        """Compute a fact by `combined` from the results of `of_piece` for all pieces, in order.

        Pieces are one-dimensional parts of the array in row-major order.
        """
        self._of_piece, self._combined = of_piece, combined
        self._known: dict[int, tuple[weakref.ref[_Array], _Result]] = {}

    def knows(self, array: _Array) -> bool:
        """Return whether the fact of an array is remembered."""
        found = self._known.get(id(array))
        return found is not None and found[0]() is array

    def of(self, array: _Array) -> _Result:
        """Return the fact of an array."""
        return self.of_all([array])[0]

    def of_all(self, arrays: Sequence[_Array]) -> list[_Result]:
        """Return the facts of arrays; threads process the pieces of all of them."""
        new = {id(array): array for array in arrays if not self.knows(array)}
        computed = dict(zip(new, self.computed([*new.values()]), strict=True))
        for number, fact in computed.items():
            if not new[number].flags.writeable:
                self._remember(new[number], fact)
        return [
            computed[id(array)] if id(array) in computed else self._known[id(array)][1]
            for array in arrays
        ]

    def computed(self, arrays: Sequence[_Array]) -> list[_Result]:
        """Return the facts of the present elements of arrays, whatever is remembered."""
        pieces = [_pieces(array) for array in arrays]
        results = iter(in_parallel(self._read, [piece for each in pieces for piece in each]))
        return [self._combined([next(results) for _ in each]) for each in pieces]

    def _read(self, piece: _Array) -> Any:
        found = self._of_piece(piece)
        if piece.nbytes >= LARGE:
            release(piece.view(np.uint8).data)
        return found

    def _remember(self, array: _Array, fact: _Result) -> None:
        number = id(array)

        def forget(gone: weakref.ref[_Array]) -> None:
            if (found := self._known.get(number)) is not None and found[0] is gone:
                del self._known[number]

        self._known[number] = weakref.ref(array, forget), fact


def _pieces(array: _Array) -> list[_Array]:
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(PIECE // max(flat.itemsize, 1), 1)
    return [flat[start : start + step] for start in range(0, flat.size, step)]


def in_parallel(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterable[_Result]:
    """Return the results of `function`, which releases the GIL, in the order of the items."""
    if len(items) < 2:
        return [*map(function, items)]
    with ThreadPoolExecutor(min(_threads(), len(items))) as pool:
        return [*pool.map(function, items)]


@cache
def _threads() -> int:
    return min(os.cpu_count() or 1, _MAX_THREADS)


def _least(piece: _Array) -> Any:
    return piece.min()


LEAST: ArrayFact[Any] = ArrayFact(_least, lambda found: min(found, default=0))
"""The smallest element of an array; 0 for an array without elements."""
