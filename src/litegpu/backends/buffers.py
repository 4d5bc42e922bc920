"""Buffers: the memory from which a run reads inputs, and to which it writes outputs."""

from __future__ import annotations

import ctypes
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.constant_blocks import Bytes as Bytes
from litegpu.backends.program import Program
from litegpu.errors import BindingError

_PAGE = 4096


class MemoryKind(enum.Enum):
    """The kind of memory of a buffer."""

    HOST = "any memory of the host"
    PINNED = "host memory that the device reaches fastest, page-locked where its API has that"
    DEVICE = "memory of a device"


class Buffer(ABC):
    """A range of memory. `Device.allocate` creates a buffer on any device."""

    kind: MemoryKind
    nbytes: int
    closed: bool = False
    """Whether the memory was released."""

    @abstractmethod
    def write(self, data: npt.NDArray[Any]) -> None:
        """Copy the bytes of an array to the start of the buffer, and wait for the copy.

        Raises BindingError if the array is larger than the buffer, and ExecutionError if the device
        fails.
        """

    @abstractmethod
    def read(self) -> Bytes:
        """Return a copy of all bytes. Raises ExecutionError when the device fails."""

    def copy_from(self, source: Buffer) -> None:
        """Copy all bytes of another buffer to the start of this one, and wait for the copy.

        If both buffers are on one device, the copy does not use host memory. Raises the errors of
        `write` and `read`.
        """
        self.write(source.read())

    def close(self) -> None:  # noqa: B027 - who owns no memory has nothing to do
        """Release memory that the buffer owns; no run may use the memory afterwards."""

    def _fitting(self, data: npt.NDArray[Any]) -> Bytes:
        """Return the bytes of an array in C order. Raises BindingError if there are too many."""
        self._check_room(data.nbytes)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def _check_room(self, nbytes: int) -> None:
        """Raise BindingError if `nbytes` exceeds the size, and after `close`."""
        self.check_open()
        if nbytes > self.nbytes:
            raise BindingError(
                f"{nbytes} bytes do not fit a buffer of {self.nbytes}. Allocate a larger one."
            )

    def check_open(self) -> None:
        """Raise BindingError after `close`."""
        if self.closed:
            raise BindingError("This buffer was closed. Allocate another one.")


class HostBuffer(Buffer):
    """Host memory that another object owns."""

    def __init__(
        self,
        pointer: ctypes.c_void_p,
        nbytes: int,
        kind: MemoryKind = MemoryKind.HOST,
        owner: object = None,
    ) -> None:
        """Wrap the memory at an address, which each run reads again from `pointer`.

        The buffer keeps a reference to `owner`.
        """
        self.pointer, self.nbytes, self.kind = pointer, nbytes, kind
        self._owner = owner

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> HostBuffer:
        """Wrap an array's memory, and reference the array. Raises BindingError if it has gaps."""
        if not array.flags.c_contiguous:
            raise BindingError(
                "A buffer needs an array in C order without gaps. Copy it: np.ascontiguousarray."
            )
        return cls(ctypes.c_void_p(array.ctypes.data), array.nbytes, owner=array)

    @classmethod
    def allocate(cls, nbytes: int, kind: MemoryKind = MemoryKind.HOST) -> HostBuffer:
        """Return new page-aligned memory."""
        memory = np.empty(nbytes + _PAGE, np.uint8)
        start = -memory.ctypes.data % _PAGE
        wrapped = cls.of(memory[start : start + nbytes])
        wrapped.kind = kind
        return wrapped

    @property
    def address(self) -> int:
        """The address of the first byte; 0 if the buffer has no memory."""
        return self.pointer.value or 0

    def write(self, data: npt.NDArray[Any]) -> None:
        source = self._fitting(data)
        ctypes.memmove(self.address, source.ctypes.data, source.nbytes)

    def read(self) -> Bytes:
        self.check_open()
        return np.frombuffer(ctypes.string_at(self.address, self.nbytes), np.uint8).copy()


class DeviceBuffer(Buffer):
    """A range of device memory: `handle` is the API's allocation, `offset` its first byte."""

    kind = MemoryKind.DEVICE

    def __init__(self, device: Any, handle: Any, offset: int, nbytes: int) -> None:
        """Wrap a range of memory on an opened device."""
        self.device, self.handle, self.offset, self.nbytes = device, handle, offset, nbytes

    def part(self, offset: int, nbytes: int) -> DeviceBuffer:
        """Return a range as a view of this buffer. Raises BindingError if the range is outside."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise BindingError(
                f"Bytes {offset} to {offset + nbytes} are outside of a buffer of {self.nbytes} "
                "bytes."
            )
        return _Part(self, offset, nbytes)

    def write(self, data: npt.NDArray[Any]) -> None:
        self._write(self.offset, self._fitting(data))

    def read(self) -> Bytes:
        self.check_open()
        host = np.empty(self.nbytes, np.uint8)
        self._read(self.offset, host)
        return host

    def copy_from(self, source: Buffer) -> None:
        if not isinstance(source, DeviceBuffer) or source.device is not self.device:
            return super().copy_from(source)
        if source.handle == self.handle:  # not every API copies within an allocation
            return super().copy_from(source)
        source.check_open()
        self._check_room(source.nbytes)
        return self._take(self.offset, source)

    @abstractmethod
    def _take(self, offset: int, source: DeviceBuffer) -> None:
        """Copy bytes from another allocation to an offset of this one, on the device, and wait."""

    @abstractmethod
    def _write(self, offset: int, data: Bytes) -> None:
        """Copy bytes to an offset of the allocation, and wait."""

    @abstractmethod
    def _read(self, offset: int, host: Bytes) -> None:
        """Fill an array from an offset of the allocation, and wait."""


class BorrowedBuffer(DeviceBuffer):
    """Device memory of another library; the buffer keeps a reference to its `owner`."""

    def __init__(
        self, device: Any, handle: Any, offset: int, nbytes: int, owner: object = None
    ) -> None:
        """Wrap memory that litegpu can use without further synchronization."""
        super().__init__(device, handle, offset, nbytes)
        self.owner = owner

    def close(self) -> None:
        """Release the memory."""
        self.closed, self.handle, self.owner = True, None, None


@dataclass(frozen=True, slots=True)
class Adopted:
    """An object of another library as a buffer; `dtype` and `shape` are None if unknown."""

    buffer: Buffer
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    writable: bool = True
    """Whether litegpu may write the memory."""
    output: bool = True
    """Whether kernels may write the memory directly."""


class _Part(DeviceBuffer):
    """A range of another buffer, which owns the memory."""

    def __init__(self, whole: DeviceBuffer, offset: int, nbytes: int) -> None:
        super().__init__(whole.device, whole.handle, whole.offset + offset, nbytes)
        self._whole = whole

    def check_open(self) -> None:
        self._whole.check_open()

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        self._whole._take(offset, source)

    def _write(self, offset: int, data: Bytes) -> None:
        self._whole._write(offset, data)

    def _read(self, offset: int, host: Bytes) -> None:
        self._whole._read(offset, host)


@dataclass(frozen=True, slots=True)
class Bindings:
    """One buffer for each input and each output of a program, in the program's order."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    @classmethod
    def of(
        cls, inputs: Iterable[npt.NDArray[Any]], outputs: Iterable[npt.NDArray[Any]]
    ) -> Bindings:
        """Wrap the memory of arrays. Raises BindingError for arrays with gaps."""
        return cls(tuple(map(HostBuffer.of, inputs)), tuple(map(HostBuffer.of, outputs)))

    def check(self, program: Program, device: object) -> None:
        """Raise BindingError unless a program can run on a device with these buffers."""
        sides = (
            ("input", self.inputs, program.inputs),
            ("output", self.outputs, program.outputs),
        )
        for name, buffers, ranges in sides:
            if len(buffers) != len(ranges):
                raise BindingError(
                    f"There are {len(buffers)} buffers for {len(ranges)} {name}s. Bind one to each."
                )
            for number, (buffer, part) in enumerate(zip(buffers, ranges, strict=True)):
                buffer.check_open()
                if buffer.nbytes < part.size:
                    raise BindingError(
                        f"The {name} {number} has {part.size} bytes, and its buffer "
                        f"{buffer.nbytes}. Bind a larger one."
                    )
                check_device(buffer, device, f"{name} {number}")


def check_device(buffer: Buffer, device: object, name: str) -> None:
    """Raise BindingError if a buffer is memory of another device."""
    if isinstance(buffer, DeviceBuffer) and buffer.device is not device:
        raise BindingError(
            f"The buffer for {name} belongs to another device. Allocate the buffer on the device "
            "that runs the program."
        )


class Staging:
    """Intermediate host memory of a run, for host buffers that are not pinned.

    Staging memory protects the user's memory from writes by the device after a timeout.
    """

    def __init__(self, buffers: Sequence[Buffer], sizes: Iterable[int]) -> None:
        """Allocate staging memory for these buffers; `sizes` are the bytes to copy for each."""
        self.buffers: list[Buffer] = []
        """For each buffer, the memory that the device uses: staging memory, or the buffer."""
        self._copies: list[tuple[HostBuffer, HostBuffer, int]] = []
        for buffer, size in zip(buffers, sizes, strict=True):
            staged = buffer
            if isinstance(buffer, HostBuffer) and buffer.kind is MemoryKind.HOST:
                staged = HostBuffer.of(np.zeros(size, np.uint8))
                self._copies.append((buffer, staged, size))
            self.buffers.append(staged)

    def fill(self) -> None:
        """Copy from the host buffers to the staging memory."""
        for buffer, staged, size in self._copies:
            ctypes.memmove(staged.pointer, buffer.pointer, size)

    def deliver(self) -> None:
        """Copy from the staging memory to the host buffers."""
        for buffer, staged, size in self._copies:
            ctypes.memmove(buffer.pointer, staged.pointer, size)
