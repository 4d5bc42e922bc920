"""Arrays that are computed directly in their final memory, after all kernels are rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class LazyArray:
    """An array of `size` elements on one axis; kernels need to know only its type.

    `fill` writes the elements into a contiguous array of zeros of that size and type. So compilers
    run while weights are packed, and weights are written only once.

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
        """Return the array in separate memory."""
        result = np.zeros(self.size, self.dtype)
        self.fill(result)
        return result
