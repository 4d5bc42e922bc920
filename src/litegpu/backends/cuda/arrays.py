"""Wraps arrays of PyTorch, CuPy, JAX, Numba and others on an NVIDIA GPU as buffers."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.backends.buffers import Adopted, HostBuffer, MemoryKind
from litegpu.backends.cuda.buffers import CUDABorrowedBuffer
from litegpu.backends.cuda.driver import call, driver
from litegpu.backends.dlpack import (
    ON_CUDA,
    ON_HOST,
    Borrowed,
    DeviceType,
    borrow,
    check_dense,
    device_of,
)
from litegpu.errors import BindingError

if TYPE_CHECKING:
    from litegpu.backends.cuda.device import CUDADevice

_Open = Callable[[int], "CUDADevice"]


def adopt(source: Any, open_device: _Open) -> Adopted | None:
    """Return an array on a GPU or in page-locked memory as a buffer; None for other objects.

    `open_device` returns the device with a CUDA device number. Raises BindingError. See
    Backend.adopt.
    """
    kind, number = device_of(source) if hasattr(source, "__dlpack_device__") else (0, 0)
    if kind in ON_CUDA:
        device = open_device(number)
        stream = device.arrivals()
        return _adopted(borrow(source, stream, ON_CUDA), device, stream)
    if kind == DeviceType.CUDA_HOST:
        return _pinned(borrow(source, None, ON_HOST))
    facts = getattr(source, "__cuda_array_interface__", None)
    return None if facts is None else _of_interface(source, facts, open_device)


def _adopted(array: Borrowed, device: CUDADevice, stream: int) -> Adopted:
    buffer = CUDABorrowedBuffer(device, array.address, array.nbytes, array, stream)
    return Adopted(buffer, array.dtype, array.shape, array.writable)


def _pinned(array: Borrowed) -> Adopted:
    buffer = HostBuffer(c_void_p(array.address), array.nbytes, MemoryKind.PINNED, array)
    return Adopted(buffer, array.dtype, array.shape, array.writable)


def _of_interface(source: Any, facts: dict[str, Any], open_device: _Open) -> Adopted:
    """Wrap an array by the fields of its `__cuda_array_interface__`, version 3 and older."""
    try:
        dtype, shape = np.dtype(facts["typestr"]), tuple(map(int, facts["shape"]))
        start, read_only = facts["data"]
        address, strides = int(start or 0), facts.get("strides")
        steps = None if strides is None else [stride // dtype.itemsize for stride in strides]
        mask, stream = facts.get("mask"), facts.get("stream")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BindingError(
            f"A {type(source).__name__} has the __cuda_array_interface__ {facts!r}, which lacks a "
            "valid typestr, shape or data. Use __dlpack__ of the array, or copy the array to the "
            "host."
        ) from error
    if mask is not None:
        raise BindingError(
            "The array is masked, but tensors have no masks. Call its method filled() before."
        )
    if steps is not None:
        check_dense(shape, steps)
    device = open_device(_number_of(address))
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    buffer = CUDABorrowedBuffer(device, address, nbytes, source, stream)
    return Adopted(buffer, dtype, shape, not read_only)


def _number_of(address: int) -> int:
    """Return the device number of an address; for a null address, the first device's number."""
    if not address:
        return 0
    cu = driver()
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call(cu.cuPointerGetAttribute, attribute, address)[0])
