"""Memory that a run takes its inputs from and leaves its outputs in."""

from __future__ import annotations

import ctypes
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.program import Program
from litegpu.errors import BindingError

Bytes = npt.NDArray[np.uint8]
_PAGE = 4096


class MemoryKind(enum.Enum):
    """The kind of memory of a buffer."""

    HOST = "any memory of the host"
    PINNED = "host memory that the device reaches fastest, page-locked where its API has that"
    DEVICE = "memory of a device"


class Buffer(ABC):
    """A piece of memory. `Device.allocate` makes one on any device."""

    kind: MemoryKind
    nbytes: int
    closed: bool = False
    """Whether its memory was released."""

    @abstractmethod
    def write(self, data: npt.NDArray[Any]) -> None:
        """Copy the bytes of an array to the begin of the buffer, and wait until they are there.

        Raises BindingError when there are too many, ExecutionError when the device fails.
        """

    @abstractmethod
    def read(self) -> Bytes:
        """Return a copy of all bytes. Raises ExecutionError when the device fails."""

    def copy_from(self, source: Buffer) -> None:
        """Copy all bytes of another buffer to the begin of this one, and wait until they are there.

        They do not leave the device where both are. Raises as `write` and `read` do.
        """
        self.write(source.read())

    def close(self) -> None:  # noqa: B027 - who owns no memory has nothing to do
        """Release memory that the buffer owns; nothing may use it any more."""

    def _fitting(self, data: npt.NDArray[Any]) -> Bytes:
        """Return the bytes of an array, in a row. Raises BindingError when there are too many."""
        self._check_room(data.nbytes)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def _check_room(self, nbytes: int) -> None:
        """Raise BindingError when there are too many bytes, and after `close`."""
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
    """Host memory with another owner."""

    def __init__(
        self,
        pointer: ctypes.c_void_p,
        nbytes: int,
        kind: MemoryKind = MemoryKind.HOST,
        owner: object = None,
    ) -> None:
        """Take the field with the address; each run reads it again, so that it may change.

        The buffer references `owner`.
        """
        self.pointer, self.nbytes, self.kind = pointer, nbytes, kind
        self._owner = owner

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> HostBuffer:
        """Return the memory of an array, which it keeps. Raises BindingError for one with gaps."""
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
        """The first byte's address, 0 for none."""
        return self.pointer.value or 0

    def write(self, data: npt.NDArray[Any]) -> None:
        source = self._fitting(data)
        ctypes.memmove(self.address, source.ctypes.data, source.nbytes)

    def read(self) -> Bytes:
        self.check_open()
        return np.frombuffer(ctypes.string_at(self.address, self.nbytes), np.uint8).copy()


class DeviceBuffer(Buffer):
    """A range of a device's memory: what the API calls a whole allocation, and where it begins."""

    kind = MemoryKind.DEVICE

    def __init__(self, device: Any, handle: Any, offset: int, nbytes: int) -> None:
        """Take a range of memory that is on an opened device."""
        self.device, self.handle, self.offset, self.nbytes = device, handle, offset, nbytes

    def part(self, offset: int, nbytes: int) -> DeviceBuffer:
        """Return a range of this one, which keeps it. Raises BindingError outside of it."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise BindingError(
                f"Bytes {offset} to {offset + nbytes} are not in a buffer of {self.nbytes}."
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
        if source.handle == self.handle:  # within an allocation not every API copies
            return super().copy_from(source)
        source.check_open()
        self._check_room(source.nbytes)
        return self._take(self.offset, source)

    @abstractmethod
    def _take(self, offset: int, source: DeviceBuffer) -> None:
        """Copy another allocation's bytes to an offset of this one, on the device, and wait."""

    @abstractmethod
    def _write(self, offset: int, data: Bytes) -> None:
        """Copy bytes to an offset of the allocation, and wait."""

    @abstractmethod
    def _read(self, offset: int, host: Bytes) -> None:
        """Fill an array from an offset of the allocation, and wait."""


class BorrowedBuffer(DeviceBuffer):
    """Device memory of another library; this references its `owner`."""

    def __init__(
        self, device: Any, handle: Any, offset: int, nbytes: int, owner: object = None
    ) -> None:
        """Take memory that is ready to be used."""
        super().__init__(device, handle, offset, nbytes)
        self.owner = owner

    def close(self) -> None:
        """Release the memory."""
        self.closed, self.handle, self.owner = True, None, None


@dataclass(frozen=True, slots=True)
class Adopted:
    """What another library's object is as a buffer; `dtype` and `shape` are None if it has none."""

    buffer: Buffer
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    writable: bool = True
    """Whether anybody may write there."""
    output: bool = True
    """Whether kernels may, too."""


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
    """A buffer for each input and output of a program, in its order."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    @classmethod
    def of(
        cls, inputs: Iterable[npt.NDArray[Any]], outputs: Iterable[npt.NDArray[Any]]
    ) -> Bindings:
        """Return the memory of arrays. Raises BindingError for arrays with gaps."""
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
    """Raise BindingError for memory of another device than that."""
    if isinstance(buffer, DeviceBuffer) and buffer.device is not device:
        raise BindingError(
            f"The buffer for {name} is of another device. Allocate it on the device that runs the "
            "program."
        )


class Staging:
    """A run's own host memory for host buffers that are not pinned.

    A late write of the device cannot reach the user's memory.
    """

    def __init__(self, buffers: Sequence[Buffer], sizes: Iterable[int]) -> None:
        """Make room for each such buffer; `sizes` are the bytes that are copied."""
        self.buffers: list[Buffer] = []
        """What the device is to use: staged memory, or the buffer itself."""
        self._copies: list[tuple[HostBuffer, HostBuffer, int]] = []
        for buffer, size in zip(buffers, sizes, strict=True):
            staged = buffer
            if isinstance(buffer, HostBuffer) and buffer.kind is MemoryKind.HOST:
                staged = HostBuffer.of(np.zeros(size, np.uint8))
                self._copies.append((buffer, staged, size))
            self.buffers.append(staged)

    def fill(self) -> None:
        """Copy the contents of the host buffers."""
        for buffer, staged, size in self._copies:
            ctypes.memmove(staged.pointer, buffer.pointer, size)

    def deliver(self) -> None:
        """Copy back to the host's buffers."""
        for buffer, staged, size in self._copies:
            ctypes.memmove(buffer.pointer, staged.pointer, size)
