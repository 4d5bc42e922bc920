"""What a device is given to compile: kernels, launches and memory, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from litegpu.codegen import KernelText


@dataclass(frozen=True, slots=True)
class BufferRange:
    """A byte range of a context's memory (`constant` false) or of the program's constants."""

    constant: bool
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a context's memory from `start` to `end`; of every `pitch` bytes the first `width`.

    A `pitch` of 0 means all of them.
    """

    start: int
    end: int
    pitch: int = 0
    width: int = 0

    def overlaps(self, other: Span) -> bool:
        """Return whether some bytes belong to both, or may do so."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        ahead = (other.start - self.start) % self.pitch
        return ahead < self.width or ahead + other.width > self.pitch

    def covers(self, other: Span) -> bool:
        """Return whether all bytes of another belong to this one."""
        return not self.pitch and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: kernel name, a buffer range per argument, work items and work-group size.

    Its dependencies follow from the memory that it `reads` and `writes`.
    """

    kernel: str
    ranges: tuple[BufferRange, ...]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()

    def offset_in(self, whole: BufferRange, argument: int) -> int:
        """Return the byte of a range where an argument begins."""
        return self.ranges[argument].offset - whole.offset


@dataclass(frozen=True, slots=True)
class Update:
    """An output that is an input with parts replaced, in the same range of memory."""

    input: int
    """The input's number."""
    uses: tuple[tuple[int, int], ...]
    """All launches and arguments that access the range, by their numbers."""


@dataclass(frozen=True, slots=True)
class Program:
    """Everything a device needs to run a partition: kernels, memory and the list of launches.

    `inputs` and `outputs` are ranges of the context's memory that are copied from and to the
    buffers that a run is given, in this order.
    """

    kernels: tuple[KernelText, ...]
    launches: tuple[Launch, ...]
    memory_bytes: int
    constants: npt.NDArray[np.uint8]
    inputs: tuple[BufferRange, ...]
    outputs: tuple[BufferRange, ...]
    sole_writers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Of an output, by its number: the launch and the argument that write it, by theirs.

    Only of outputs that nothing else reads or writes: a device may bind this argument to other
    memory than the output's range, and copy from there. An argument may begin in the middle of its
    output or input: see `Launch.offset_in`.
    """
    readers: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Of an input, by its number: the launches and arguments that read it, by theirs.

    Only of inputs that no launch writes, and that are no output: a device may bind these arguments
    to other memory of as many bytes, rounded up to whole vectors of 16.
    """
    updates: Mapping[int, Update] = field(default_factory=dict)
    """Of an output, by its number: the input that it updates.

    A device may bind these arguments to other memory, which then has to contain the input before
    the launches, and contains the output after them.
    """
