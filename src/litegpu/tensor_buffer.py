"""A memory buffer for one tensor of a model, which runs read and write without a copy."""

from __future__ import annotations

import ctypes
import operator
import weakref
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from litegpu.backends import DeviceInfo
from litegpu.backends.adopted_memory import adopted, of_numpy, on_host
from litegpu.backends.buffers import Buffer, DeviceBuffer, HostBuffer, MemoryKind
from litegpu.backends.dlpack import DeviceType, lend
from litegpu.errors import BindingError, CompiledModelError
from litegpu.host.finalizers import finalizer

Array = npt.NDArray[Any]
KINDS = {"host": MemoryKind.HOST, "pinned": MemoryKind.PINNED, "device": MemoryKind.DEVICE}
"""The kinds of memory by their public names."""
_ON_CPU = (int(DeviceType.CPU), 0)


class BufferUser(Protocol):
    """An object that caches data for buffers, for example prepared runs."""

    def forget_buffer(self, number: int, /) -> None:
        """Drop the cached data for the buffer with this id."""


class TensorBuffer:
    """The memory of one tensor, on the host or on a device.

    `CompiledModel.create_input_buffers` and similar methods create tensor buffers;
    `TensorBuffer.of` wraps the memory of another library. The memory exists as long as the program
    references the buffer, its `array` or a DLPack consumer, even after the model is released. Only
    one thread at a time may use a tensor buffer.
    """

    def __init__(
        self,
        memory: Any,
        dtype: npt.DTypeLike,
        shape: Sequence[int],
        writable: bool = True,
        output: bool = True,
    ) -> None:
        """Wrap a Buffer for a tensor; only CompiledModel calls this.

        `writable` and `output` have the same meaning as in Adopted.
        """
        self._memory: Buffer | None = memory
        self._dtype, self._shape = np.dtype(dtype), tuple(map(int, shape))
        self._array: Array | None = None
        self._users = weakref.WeakSet[BufferUser]()
        if isinstance(memory, HostBuffer):
            self._array = _view(memory, self._dtype, self._shape)
            self._array.flags.writeable = writable
        self._writable, self._output = writable, output

    @classmethod
    def create_from_host_memory(cls, data_array: Array) -> TensorBuffer:
        """Return a buffer on an array's memory; runs see later changes of the array.

        Raises CompiledModelError unless the argument is a contiguous array in C order, with
        elements of a type that tensors can have.
        """
        if not isinstance(data_array, np.ndarray):
            raise CompiledModelError("data_array must be a NumPy array: use np.asarray.")
        return cls.of(data_array)

    @classmethod
    def of(
        cls,
        source: Any,
        dtype: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
    ) -> TensorBuffer:
        """Return a tensor buffer on the memory of another library, without a copy.

        `source` is an array of NumPy, PyTorch, CuPy, JAX, Numba or any other library with
        `__dlpack__` or `__cuda_array_interface__`. A pyopencl array, pyopencl.Buffer,
        wgpu.GPUBuffer, moderngl.Buffer or litegpu.GLBuffer is also a valid `source`. A
        pyopencl.Buffer, wgpu.GPUBuffer, moderngl.Buffer or litegpu.GLBuffer needs `dtype` and
        `shape`; for an array, these arguments reinterpret its bytes. The model waits for work that
        the other library has enqueued for an array. Later work of the library is ordered only on
        the `stream` of a run, or in the current OpenGL context.

        Raises CompiledModelError for any other object and for an invalid `dtype` or `shape`. Raises
        BindingError for memory that a model cannot use: memory with gaps, of another context or
        device type, or of a type that tensors do not have.
        """
        if isinstance(source, np.ndarray):
            found = of_numpy(source)
        else:
            found = adopted(source) or on_host(source)
        known = found.dtype if dtype is None else _dtype_of(dtype)
        sizes = found.shape if shape is None else _sizes_of(shape, "shape")
        if known is None or sizes is None:
            raise CompiledModelError(
                f"A {type(source).__name__} has no type of elements and no shape. Give `dtype` and "
                "`shape`."
            )
        if known.kind in "OSUMm" or known.names is not None:
            raise CompiledModelError(
                f"Unsupported dtype: no buffer has elements of {known}. Convert them to numbers."
            )
        needed = known.itemsize * int(np.prod(sizes, dtype=np.int64))
        if needed > found.buffer.nbytes:
            raise CompiledModelError(
                f"{known} of {[*sizes]} takes {needed} bytes, and the {type(source).__name__} has "
                f"{found.buffer.nbytes}. Give the shape of the data."
            )
        return cls(found.buffer, known, sizes, found.writable, found.output)

    @classmethod
    def from_dlpack(cls, source: Any) -> TensorBuffer:
        """Return a buffer on the memory of an array with `__dlpack__`. See TensorBuffer.of."""
        if not hasattr(source, "__dlpack__"):
            raise CompiledModelError(
                f"A {type(source).__name__} has no `__dlpack__`. Use TensorBuffer.of, which also "
                "accepts other memory."
            )
        return cls.of(source)

    @property
    def array(self) -> Array:
        """The memory of the buffer as an array with the tensor's type and shape, to read or write.

        Raises CompiledModelError for device memory; `read` and `write` copy device memory.
        """
        self.memory  # noqa: B018 - raises for a destroyed buffer
        if self._array is None:
            raise CompiledModelError(
                "This buffer is on a device. Copy the elements with read() and write(), or pass "
                "the buffer to a library of that device: torch.from_dlpack(buffer)."
            )
        return self._array

    @property
    def memory(self) -> Any:
        """The Buffer that runs use, for CompiledModel.

        Raises CompiledModelError if the buffer was destroyed.
        """
        if self._memory is None:
            raise CompiledModelError("TensorBuffer has been destroyed")
        return self._memory

    @property
    def kind(self) -> str:
        """The kind of memory: "host", "pinned" (page-locked) or "device"."""
        kind = self.memory.kind
        return next(name for name, each in KINDS.items() if each is kind)

    @property
    def writable(self) -> bool:
        """Whether a run may write to the memory."""
        return self._writable and self._output

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tensor's elements."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._shape

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return self._dtype.itemsize * self._size

    @property
    def _size(self) -> int:
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def handle(self) -> Any:
        """The memory in its API: an address, pyopencl.Buffer, wgpu.GPUBuffer or OpenGL number.

        A run of litegpu does not wait for other work on this memory, except work on the `stream` of
        the run.
        """
        memory = self.memory
        return memory.handle if isinstance(memory, DeviceBuffer) else memory.address

    def write(self, data_array: Array) -> None:
        """Copy an array's elements to the start of the buffer.

        Raises CompiledModelError for an object that is not an array, for an array that has another
        dtype or is too large, and for a read-only buffer.
        """
        if not isinstance(data_array, np.ndarray):
            raise CompiledModelError("data_array must be a NumPy array: use np.asarray.")
        memory = self.memory
        self._check_type(data_array.dtype)
        if data_array.size > self._size:
            raise CompiledModelError(
                f"write: {data_array.size} elements are more than the {self._size} of the tensor "
                "buffer. Resize the input, and create a new buffer for the input."
            )
        if not self._writable:
            raise CompiledModelError(READ_ONLY)
        if self._array is None:
            memory.write(data_array)
        else:
            target = self._array.reshape(-1)[: data_array.size]
            np.copyto(target.reshape(data_array.shape), data_array)

    def read(
        self,
        num_elements: SupportsIndex | Sequence[SupportsIndex] | None = None,
        output_dtype: npt.DTypeLike | None = None,
    ) -> Array:
        """Return a copy of the first elements; by default, of all elements in the tensor's shape.

        If `num_elements` is a number, the result is one-dimensional; otherwise `num_elements` is
        the shape of the result. Raises CompiledModelError for a dtype other than the tensor's, and
        for too many elements.
        """
        memory = self.memory
        if output_dtype is not None:
            self._check_type(_dtype_of(output_dtype))
        sizes = self._shape if num_elements is None else _sizes_of(num_elements, "num_elements")
        count = int(np.prod(sizes, dtype=np.int64))
        if count > self._size:
            raise CompiledModelError(
                f"read: {count} elements are more than the {self._size} that the tensor buffer "
                "has. Read at most that many."
            )
        whole = self._array
        if whole is None:
            whole = memory.read()[: self.nbytes].view(self._dtype).reshape(self._shape)
        return whole.reshape(-1)[:count].reshape(sizes).copy()

    def get_tensor_details(self) -> dict[str, Any]:
        """Return the `dtype` and the `shape` as a dict."""
        self.memory  # noqa: B018 - raises for one that was destroyed
        return {"dtype": self._dtype.name, "shape": list(self._shape)}

    def destroy(self) -> None:
        """Release the memory of the buffer. A second call of `destroy` does nothing."""
        self._memory = self._array = None
        for user in [*self._users]:
            user.forget_buffer(id(self))
        self._users.clear()

    def notify_on_release(self, user: BufferUser) -> None:
        """Notify `user` when the buffer is released; the buffer references `user` weakly."""
        self._users.add(user)

    @finalizer
    def __del__(self) -> None:
        """Release the memory, and notify users of the buffer."""
        self.destroy()

    # Other libraries

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the buffer as a NumPy array: host memory without a copy, device memory as a copy.

        Raises ValueError if `copy` is False and a copy is needed.
        """
        found = self.read() if self._array is None else self.array
        result = found if dtype is None else found.astype(dtype, copy=False)
        if copy is False and result is not self._array:
            raise ValueError(
                "This conversion requires a copy of the buffer's elements. Allow the copy."
            )
        return result.copy() if copy and result is self._array else result

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number.

        Raises BufferError if DLPack does not support the memory.

        DLPack supports host memory, and memory of NVIDIA GPUs through CUDA.
        """
        info = self._device_info()
        if info is None:
            return _ON_CPU
        if info.backend != "cuda":
            raise BufferError(
                f"The buffer is on {info.title}, which DLPack does not support. Its "
                "`handle` is for the libraries of that API."
            )
        return int(DeviceType.CUDA), info.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory for another library, which may use it immediately on any stream.

        The method waits for submitted runs before it returns. Raises BufferError for a request that
        the memory cannot satisfy: a copy, another device, or writable access to read-only memory.
        """
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != device):
            raise BufferError(
                "The buffer exports its own memory without a copy. Copy the exported array, or "
                "use read()."
            )
        if not self._writable:
            raise BufferError(READ_ONLY)
        return lend(self._memory, self._start, self._dtype, self._shape, device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of the buffer for CUDA libraries; raises AttributeError for other devices."""
        info = self._device_info() if self._memory is not None else None
        if info is None or info.backend != "cuda":
            raise AttributeError("__cuda_array_interface__")
        return {
            "version": 3,
            "typestr": self._dtype.str,
            "shape": self._shape,
            "strides": None,
            "data": (self._start, not self._writable),
            "stream": None,
        }

    def _device_info(self) -> DeviceInfo | None:
        """Return the device of the memory; None for host memory."""
        memory = self.memory
        return memory.device.info if isinstance(memory, DeviceBuffer) else None

    @property
    def _start(self) -> int:
        """The address of the buffer's first byte."""
        memory = self.memory
        return int(memory.handle + memory.offset if self._array is None else memory.address)

    def _check_type(self, dtype: np.dtype[Any]) -> None:
        if dtype != self._dtype:
            raise CompiledModelError(
                f"Unsupported dtype: {dtype} for a tensor of {self._dtype}. Convert the array with "
                f"astype(np.{self._dtype})."
            )

    def __repr__(self) -> str:
        if self._memory is None:
            return "<TensorBuffer: destroyed>"
        place = "" if self._array is not None else " on a device"
        return f"<TensorBuffer: {self._dtype} {list(self._shape)}{place}>"


def stream_number(stream: Any) -> int:
    """Return the number of a CUDA stream, which may be an object of another library.

    Raises BindingError for an object that is not a CUDA stream.
    """
    if hasattr(stream, "__cuda_stream__"):
        _, stream = stream.__cuda_stream__()
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba
        stream = getattr(stream, name, stream)
    stream = getattr(stream, "value", stream)  # a ctypes number
    if stream is None:
        return 0  # the default stream, as ctypes represents it
    if isinstance(stream, bool) or not hasattr(stream, "__index__") or int(stream) < 0:
        raise BindingError(
            f"A {type(stream).__name__} is no stream. Give its number, or an object of PyTorch's, "
            "CuPy's or Numba's."
        )
    return int(stream)


READ_ONLY = "This buffer is read-only. Copy the elements, or create another buffer."


def _dtype_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise CompiledModelError(
            f"Unsupported dtype: {dtype!r}. Give a type of NumPy's, such as np.float32."
        ) from error


def _sizes_of(given: Any, what: str) -> tuple[int, ...]:
    """Return a shape; a single number is the shape of a one-dimensional array."""
    try:
        sizes = tuple(map(operator.index, given if np.iterable(given) else (given,)))
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise CompiledModelError(f"{what}={given!r}: give whole numbers from 0 on.")
    return sizes


def _view(memory: HostBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array on a memory object, which the array references."""
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not nbytes:
        return np.empty(shape, dtype)
    whole: Any = (ctypes.c_char * nbytes).from_address(memory.address)
    whole.owner = memory
    return np.frombuffer(whole, dtype).reshape(shape)
