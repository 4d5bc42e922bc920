"""DLPack: imports arrays of other libraries, and exports buffers to other libraries.

The structures match those of DLPack 1.0 (dlpack.h).
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import BindingError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import immortal

_VERSION = (1, 0)
"""The newest supported version; later ones of the same major version only append fields."""
_NAMES = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}
"""The names of capsules before and after use; capsules store pointers to these strings."""
_PLAIN, _ = _NAMES
_READ_ONLY = 1


class DeviceType(enum.IntEnum):
    """DLPack's device types."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    OPENCL = 4
    VULKAN = 7
    METAL = 8
    ROCM = 10
    CUDA_MANAGED = 13
    ONEAPI = 14
    WEBGPU = 15


ON_HOST = (DeviceType.CPU, DeviceType.CUDA_HOST)
ON_CUDA = (DeviceType.CUDA, DeviceType.CUDA_MANAGED)


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLPack's type codes by NumPy's dtype kinds."""
_KINDS = {code: kind for kind, code in _CODES.items()}
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api = ctypes.pythonapi
_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_IS_VALID = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_RENAME = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
# A destructor receives a capsule that is being deleted: it must not create a reference to it.
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_DELETED_IS_VALID = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_DELETED_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


class Borrowed:
    """An array of another library, referenced until this object is deleted."""

    def __init__(self, managed: _Managed | _Versioned) -> None:
        """Take ownership of a capsule's tensor. Raises BindingError if litegpu cannot use it."""
        self._managed = managed
        tensor = managed.tensor
        self.device = (int(tensor.device_type), int(tensor.device_id))
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.writable = not (isinstance(managed, _Versioned) and managed.flags & _READ_ONLY)
        self.dtype = _dtype(tensor.dtype)
        self.nbytes = self.dtype.itemsize * math.prod(self.shape)
        if tensor.strides:
            check_dense(self.shape, tensor.strides[: tensor.ndim])

    @finalizer
    def __del__(self) -> None:
        """Call the tensor's deleter, which releases the array in the other library."""
        if self._managed.deleter:
            _DELETER(self._managed.deleter)(ctypes.addressof(self._managed))


def borrow(source: Any, stream: int | None, places: Collection[DeviceType]) -> Borrowed:
    """Return the memory of an object with `__dlpack__`, after the pending work that writes it.

    `stream` is the handle of the CUDA stream that will use the memory, None for the CPU. Raises
    BindingError for memory that litegpu cannot use, for example on a device type that is not in
    `places`. Raises any error that the object raises.
    """
    keywords: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        capsule = source.__dlpack__(max_version=_VERSION, **keywords)
    except TypeError:  # older libraries do not support versions
        capsule = source.__dlpack__(**keywords)
    kinds: tuple[Any, ...] = (_Managed, _Versioned)
    for name, kind in zip(_NAMES, kinds, strict=True):
        if _IS_VALID(capsule, name):
            managed = kind.from_address(_POINTER(capsule, name))
            if isinstance(managed, _Versioned) and managed.major > _VERSION[0]:
                raise BindingError(
                    f"{_name_of(source)} gives DLPack {managed.major}.{managed.minor}; "
                    f"{_VERSION[0]} is known. Update litegpu."
                )
            _RENAME(capsule, _NAMES[name])
            found = Borrowed(managed)
            _check_place(source, found.device, places)
            return found
    raise BindingError(f"{_name_of(source)} returned a DLPack capsule that was used before.")


def device_of(source: Any) -> tuple[int, int]:
    """Return the type and the number of the device of an object with `__dlpack__`."""
    kind, number = source.__dlpack_device__()
    return int(kind), int(number)


def _check_place(source: Any, device: tuple[int, int], places: Collection[DeviceType]) -> None:
    """Raise BindingError for memory of a device type that is not in `places`."""
    kind, number = device
    if kind not in places:
        known = next((each.name for each in DeviceType if each == kind), f"device type {kind}")
        raise BindingError(
            f"A {_name_of(source)} is on DLPack's {known} {number}, where litegpu cannot access "
            "arrays. Copy the array to the host (cpu() in PyTorch) or to a CUDA device."
        )


def check_dense(shape: Sequence[int], strides: Sequence[int]) -> None:
    """Raise BindingError unless elements are in C order without gaps. `strides` are in elements."""
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    pairs = zip(shape, strides, expected, strict=False)
    dense = all(size <= 1 or stride == wanted for size, stride, wanted in pairs)
    if 0 not in shape and not (dense and len(strides) == len(shape)):
        raise BindingError(
            f"An array of the shape {[*shape]} with strides of {[*strides]} elements is not "
            "in C order without gaps. Copy it: contiguous() in PyTorch, ascontiguousarray in "
            "CuPy."
        )


def _dtype(found: _DataType) -> np.dtype[Any]:
    kind = _KINDS.get(found.code)
    size, rest = divmod(found.bits, 8)
    try:
        if kind is None or rest or found.lanes != 1:
            raise TypeError
        return np.dtype(f"{kind}{size}")
    except TypeError:
        raise BindingError(
            f"An array has elements of DLPack's type {found.code} with {found.bits} bits and "
            f"{found.lanes} lanes, which no tensor has. Convert the array, such as to float32."
        ) from None


def _name_of(source: object) -> str:
    return type(source).__name__


# Exported memory


@dataclass(slots=True)
class _Loan:
    """Keeps exported memory alive until the other library calls the deleter."""

    owner: object
    managed: _Managed
    shape: Any


_loans: dict[int, _Loan] = {}
"""The exported arrays, by the address of their DLPack structure."""


def lend(
    owner: object, address: int, dtype: np.dtype[Any], shape: Sequence[int], device: tuple[int, int]
) -> Any:
    """Return a capsule for memory that `owner` keeps alive, for use by another library."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = address, *device
    tensor.ndim, tensor.shape = len(shape), ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.dtype = _DataType(_CODES[dtype.kind], dtype.itemsize * 8, 1)
    managed.deleter = ctypes.cast(_returned, ctypes.c_void_p).value
    number = ctypes.addressof(managed)
    _loans[number] = _Loan(owner, managed, sizes)
    return _NEW(number, _PLAIN, ctypes.cast(_unused, ctypes.c_void_p).value)


def _take_back(number: int, loans: dict[int, _Loan] = _loans) -> None:
    """Release an exported array; the other library calls this deleter."""
    loans.pop(number, None)


def _drop_unused(
    capsule: int,
    loans: dict[int, _Loan] = _loans,
    name: bytes = _PLAIN,
    is_valid: Any = _DELETED_IS_VALID,
    pointer: Any = _DELETED_POINTER,
) -> None:
    """Release the array of a deleted capsule, if no library has used the capsule."""
    if is_valid(capsule, name):
        loans.pop(pointer(capsule, name), None)


_returned, _unused = _DELETER(_take_back), _DESTRUCTOR(_drop_unused)
# Other libraries may call these after the module is unloaded, without its names.
immortal(_returned)
immortal(_unused)
