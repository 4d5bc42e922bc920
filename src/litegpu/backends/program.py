"""The program that a device compiles: kernels, launches and memory, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.codegen import KernelText


@dataclass(frozen=True, slots=True)
class BufferRange:
    """A byte range of the program's constants, or of a context's memory if not `constant`."""

    constant: bool
    offset: int
    size: int
    block: int | None = None
    """The number of the block of constants; None for the small constants and for memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a context's memory, or parts of them at regular intervals.

    With a `pitch`, only the first `width` bytes of every `pitch` bytes belong to the span; a
    `pitch` of 0 means all bytes.
    """

    start: int
    end: int
    pitch: int = 0
    width: int = 0

    def overlaps(self, other: Span) -> bool:
        """Return whether two spans share bytes, or may share some."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        ahead = (other.start - self.start) % self.pitch
        return ahead < self.width or ahead + other.width > self.pitch

    def covers(self, other: Span) -> bool:
        """Return whether all bytes of `other` belong to this span."""
        return not self.pitch and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: kernel name, a buffer range per argument, global and local size.

    A launch depends on earlier launches through the memory that it `reads` and `writes`.
    """

    kernel: str
    ranges: tuple[BufferRange, ...]
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()

    def offset_in(self, whole: BufferRange, argument: int) -> int:
        """Return the byte offset of an argument within a range."""
        return self.ranges[argument].offset - whole.offset


@dataclass(frozen=True, slots=True)
class Update:
    """An output that is an in-place update of an input: both use the same memory range."""

    input: int
    """The number of the input."""
    uses: tuple[tuple[int, int], ...]
    """The (launch number, argument number) of all arguments that access the range."""


@dataclass(frozen=True, slots=True)
class Program:
    """A partition as a device runs it: kernels, memory and the list of launches.

    `inputs` and `outputs` are ranges of the context's memory, in the order of the buffers that are
    copied to and from them.
    """

    kernels: tuple[KernelText, ...]
    launches: tuple[Launch, ...]
    memory_bytes: int
    constants: npt.NDArray[np.uint8]
    """The small constants."""
    inputs: tuple[BufferRange, ...]
    outputs: tuple[BufferRange, ...]
    sole_writers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Maps an output number to the (launch number, argument number) that writes the output.

    The mapping contains only outputs that no other argument reads or writes. A device may bind the
    argument to other memory, and copy the output from that memory. The argument may begin in the
    middle of the output or input; see `Launch.offset_in`.
    """
    readers: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Maps an input number to each (launch number, argument number) that reads the input.

    The mapping contains only inputs that no launch writes and that are not outputs. A device may
    bind these arguments to other memory of the same size, rounded up to whole vectors of 16 bytes.
    """
    updates: Mapping[int, Update] = field(default_factory=dict)
    """Maps an output number to the update of an input that the output is.

    A device may bind the update's arguments to other memory. That memory must contain the input
    before the launches, and contains the output after the launches.
    """
    blocks: tuple[ConstantBlock, ...] = ()
    """The large constants."""

    @property
    def constant_bytes(self) -> int:
        """The size of all constants in bytes."""
        return self.constants.nbytes + sum(block.nbytes for block in self.blocks)

    @property
    def distinct_bytes(self) -> int:
        """The size of all constants in bytes, where blocks of equal bytes count once."""
        blocks = {block.digest or block: block.nbytes for block in self.blocks}
        return self.constants.nbytes + sum(blocks.values())

    def contains(self, part: BufferRange) -> bool:
        """Return whether a range is inside its block of constants, or inside the memory."""
        if part.block is not None:
            known = part.constant and 0 <= part.block < len(self.blocks)
            room = self.blocks[part.block].nbytes if known else 0
        else:
            room = self.constants.nbytes if part.constant else self.memory_bytes
        return part.offset >= 0 and part.size >= 0 and part.offset + part.size <= room
