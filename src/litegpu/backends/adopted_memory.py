"""Wraps the device or host memory of other libraries as buffers, without a copy."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from litegpu.backends import BACKENDS
from litegpu.backends.buffers import Adopted, HostBuffer
from litegpu.backends.dlpack import ON_HOST, borrow
from litegpu.errors import BindingError, CompiledModelError


def adopted(source: Any) -> Adopted | None:
    """Wrap the device memory of another library; return None for other objects."""
    with _typed_refusals(source):
        found = (backend.adopt(source) for backend in BACKENDS.values())
        return next((each for each in found if each is not None), None)


def of_numpy(array: npt.NDArray[Any]) -> Adopted:
    """Wrap the memory of a NumPy array.

    Raises CompiledModelError for an array whose elements are not contiguous.
    """
    if not array.flags.c_contiguous:
        raise CompiledModelError(
            "data_array must be C-contiguous: copy it with np.ascontiguousarray."
        )
    return Adopted(HostBuffer.of(array), array.dtype, array.shape, array.flags.writeable)


def on_host(source: Any) -> Adopted:
    """Wrap host memory of another library.

    Raises CompiledModelError if litegpu cannot wrap the memory.
    """
    if not hasattr(source, "__dlpack__"):
        raise CompiledModelError(
            f"A {type(source).__name__} is neither an array nor a GPU buffer. Give one of NumPy, "
            "PyTorch, CuPy, JAX, Numba, pyopencl or wgpu."
        )
    with _typed_refusals(source):
        array = borrow(source, None, ON_HOST)
    buffer = HostBuffer(ctypes.c_void_p(array.address), array.nbytes, owner=array)
    return Adopted(buffer, array.dtype, array.shape, array.writable)


@contextlib.contextmanager
def _typed_refusals(source: Any) -> Iterator[None]:
    try:
        yield
    except BufferError as error:
        raise BindingError(
            f"A {type(source).__name__} does not export its memory: {error}"
        ) from error
