"""Constant arrays that are computed in their final memory, after kernels are rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class LazyArray:
    """A one-dimensional array of `size` elements; rendering a kernel needs only the dtype.

    `fill` writes the elements into a zero-filled contiguous array of that size and type. The engine
    calls `fill` while compilers run, so that the weights are written only once.

    >>> LazyArray(np.dtype(np.int32), 2, lambda out: out.__setitem__(1, 7)).make()
    array([0, 7], dtype=int32)
    """

    dtype: np.dtype[Any]
    size: int
    fill: Callable[[npt.NDArray[Any]], None]

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> LazyArray:
        """Return the elements of an array in row-major order."""

        def fill(out: npt.NDArray[Any]) -> None:
            out.reshape(array.shape)[...] = array

        return cls(array.dtype, array.size, fill)

    @property
    def nbytes(self) -> int:
        """Return the length in bytes."""
        return self.size * self.dtype.itemsize

    def make(self) -> npt.NDArray[Any]:
        """Return the elements as a new array."""
        result = np.zeros(self.size, self.dtype)
        self.fill(result)
        return result
