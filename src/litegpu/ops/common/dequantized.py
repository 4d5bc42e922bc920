"""Large dequantized constants, whose float32 elements exist only while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from litegpu.graph import Quantization

_Floats = npt.NDArray[np.float32]
_MIN_ELEMENTS = 1 << 18
"""Minimum number of elements of a constant that is dequantized when it is read."""
_AT_ONCE = 1 << 16
"""Number of elements that are dequantized at once, so that they fit a core's cache."""


def real_numbers(stored: npt.NDArray[Any], quantization: Quantization) -> _Floats:
    """Return the real numbers of stored integers; large 8-bit constants as a `Dequantized`.

    8-bit tensors are dequantized in float32.
    """
    if stored.dtype.itemsize == 1 and stored.size >= _MIN_ELEMENTS:
        return cast(_Floats, Dequantized(stored, quantization))
    return _real(stored, *_broadcast(stored, quantization))


def as_dequantized(array: Any) -> Dequantized | None:
    """Return an array that `real_numbers` has returned as a `Dequantized`, else None."""
    return array if isinstance(array, Dequantized) else None


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of the memory from which the elements of an array are read."""
    found = as_dequantized(array)
    return int(array.ctypes.data) if found is None else found.address


class Dequantized(NDArrayOperatorsMixin):
    """An array of float32 that is computed from stored integers each time it is read.

    Rows are dequantized separately; all other operations dequantize the whole array, and return
    NumPy arrays.
    """

    dtype = np.dtype(np.float32)
    itemsize = 4

    def __init__(
        self,
        stored: npt.NDArray[Any],
        quantization: Quantization,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Represent the real numbers of `stored`, in another `shape` if it is given."""
        self._stored, self._quantization = stored, quantization
        self.shape = stored.shape if shape is None else shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return self._stored.size

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def address(self) -> int:
        """The address of the stored integers."""
        return int(self._stored.ctypes.data)

    def reshape(self, *shape: Any) -> Dequantized:
        """Return the same elements in another shape, as NumPy does."""
        found = np.broadcast_to(np.int8(0), self.shape).reshape(*shape).shape
        return Dequantized(self._stored, self._quantization, found)

    def largest(self, axes: tuple[int, ...] | None) -> _Floats | None:
        """Return the largest magnitude along axes; None if only the elements determine it."""
        quantization, stored = self._quantization, self._stored
        rows = self._rows_scaled and axes == tuple(range(1, self.ndim))
        if not (rows or axes is None) or not np.isfinite(quantization.scale).all():
            return None
        # Dequantization is monotonic for each scale.
        along = quantization.dimension if len(quantization.scale) > 1 else 0
        others = tuple(axis for axis in range(stored.ndim) if axis != along)
        ends = [reduced(axis=others, keepdims=True) for reduced in (stored.min, stored.max)]
        found = np.maximum(*(np.abs(self._dequantized(each)) for each in ends)).reshape(-1)
        if not np.isfinite(found).all():
            return None
        return np.asarray(found if rows else found.max(initial=0))

    @property
    def _rows_scaled(self) -> bool:
        """Whether each row, an element of the first axis, has one scale."""
        same = bool(self.shape) and self.shape[0] == self._stored.shape[0]
        return same and (len(self._quantization.scale) == 1 or self._quantization.dimension == 0)

    def _dequantized(self, stored: npt.NDArray[Any], rows: slice = slice(None)) -> _Floats:
        scale, zero = _broadcast(self._stored, self._quantization)
        scale = scale[rows] if scale.shape[0] > 1 else scale
        return _real(stored, scale, zero[rows] if zero.shape[0] > 1 else zero)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice) or not self._rows_scaled:
            return np.asarray(self)[key]
        stored = self._stored[key]
        return self._dequantized(stored, key).reshape(len(stored), *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("dequantized elements are always a copy")
        found = np.empty(self._stored.shape, np.float32)
        rows = self._stored.shape[0]
        step = max(_AT_ONCE * rows // self.size, 1)
        for start in range(0, rows, step):
            part = slice(start, start + step)
            found[part] = self._dequantized(self._stored[part], part)
        return found.reshape(self.shape).astype(dtype or np.float32, copy=False)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        read = [np.asarray(each) if isinstance(each, Dequantized) else each for each in inputs]
        return getattr(function, method)(*read, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # NumPy looks for its protocols
            raise AttributeError(name)
        return getattr(np.asarray(self), name)


def _broadcast(
    stored: npt.NDArray[Any], quantization: Quantization
) -> tuple[_Floats, npt.NDArray[np.int64]]:
    """Return scales and zero points in shapes that broadcast to the stored integers."""
    axes = [1] * stored.ndim
    if len(quantization.scale) > 1:
        axes[quantization.dimension] = -1
    scale = np.asarray(quantization.scale, np.float32).reshape(axes)
    zero = np.asarray(quantization.zero_point or (0,), np.int64)
    return scale, zero.reshape(axes if zero.size > 1 else [1] * stored.ndim)


def _real(stored: npt.NDArray[Any], scale: _Floats, zero: npt.NDArray[np.int64]) -> _Floats:
    if stored.dtype.itemsize == 1:
        found = stored.astype(np.float32)
        if zero.any():
            found -= zero.astype(np.float32)
    else:
        found = (stored.astype(np.int64) - zero).astype(np.float32)
    found *= scale
    return found
