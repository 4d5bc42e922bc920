"""Memory for one tensor of a model, which runs read and write without copying it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.buffers import HostBuffer
from litegpu.errors import CompiledModelError

Array = npt.NDArray[Any]


class TensorBuffer:
    """One tensor's memory on the host, page-locked where a GPU reaches such memory faster.

    `CompiledModel.create_input_buffers` and its like make them. A buffer lives as long as it, or
    its `array`, is held by anyone, whatever becomes of the model. It is for one thread at a time.
    """

    def __init__(self, memory: Any, dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
        """Take a HostBuffer for a tensor; CompiledModel does that."""
        self._memory: HostBuffer | None = memory
        self._array = _view(memory, np.dtype(dtype), tuple(map(int, shape)))

    @classmethod
    def create_from_host_memory(cls, data_array: Array) -> TensorBuffer:
        """Return a buffer that is an array's memory: what is written there later is seen, too.

        Raises CompiledModelError for what is no array in C order without gaps.
        """
        if not isinstance(data_array, np.ndarray):
            raise CompiledModelError("data_array must be a NumPy array")
        if not data_array.flags.c_contiguous:
            raise CompiledModelError(
                "data_array must be C-contiguous: copy it with np.ascontiguousarray."
            )
        return cls(HostBuffer.of(data_array), data_array.dtype, data_array.shape)

    @property
    def array(self) -> Array:
        """The memory itself, of the tensor's type and shape: read it, or write it in place."""
        if self._memory is None:
            raise CompiledModelError("TensorBuffer has been destroyed")
        return self._array

    @property
    def memory(self) -> Any:
        """What runs are bound to, for CompiledModel. Raises CompiledModelError after `destroy`."""
        if self._memory is None:
            raise CompiledModelError("TensorBuffer has been destroyed")
        return self._memory

    def write(self, data_array: Array) -> None:
        """Copy an array's elements to the begin of the buffer.

        Raises CompiledModelError for what is no array, of another type, or too large.
        """
        if not isinstance(data_array, np.ndarray):
            raise CompiledModelError("data_array must be a NumPy array")
        whole = self.array
        self._check_type(data_array.dtype)
        if data_array.size > whole.size:
            raise CompiledModelError(
                f"write: {data_array.size} elements are more than the {whole.size} of the tensor "
                f"buffer. Resize the input, and create its buffer anew."
            )
        np.copyto(whole.reshape(-1)[: data_array.size].reshape(data_array.shape), data_array)

    def read(
        self, num_elements: int | None = None, output_dtype: npt.DTypeLike | None = None
    ) -> Array:
        """Return a copy of the first elements in a row; without a number all, in their shape.

        Raises CompiledModelError for another type than the tensor's, and for more than there are.
        """
        whole = self.array
        if output_dtype is not None:
            self._check_type(np.dtype(output_dtype))
        if num_elements is None:
            return whole.copy()
        if num_elements > whole.size:
            raise CompiledModelError(
                f"read: {num_elements} elements are more than the {whole.size} that the tensor "
                "buffer has."
            )
        return whole.reshape(-1)[:num_elements].copy()

    def get_tensor_details(self) -> dict[str, Any]:
        """Return the `dtype` and the `shape`."""
        return {"dtype": self.array.dtype.name, "shape": list(self.array.shape)}

    def destroy(self) -> None:
        """Let go of the memory. Harmless when repeated."""
        self._memory = None
        self._array = np.empty(0, self._array.dtype)

    def _check_type(self, dtype: np.dtype[Any]) -> None:
        if dtype != self._array.dtype:
            raise CompiledModelError(
                f"Unsupported dtype: {dtype} for a tensor of {self._array.dtype}. Convert the "
                f"array with astype(np.{self._array.dtype})."
            )

    def __repr__(self) -> str:
        if self._memory is None:
            return "<TensorBuffer: destroyed>"
        return f"<TensorBuffer: {self._array.dtype} {list(self._array.shape)}>"


def _view(memory: HostBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of memory, which keeps it."""
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not nbytes:
        return np.empty(shape, dtype)
    whole: Any = (ctypes.c_char * nbytes).from_address(memory.address)
    whole.owner = memory
    return np.frombuffer(whole, dtype).reshape(shape)
