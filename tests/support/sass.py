"""The machine instructions of a kernel compiled by NVRTC for compute capability 9.0."""

from __future__ import annotations

import struct
from collections.abc import Iterator

WAIT, LOAD, BRANCH, EXIT, MULTIPLY = 0x82E, 0x981, 0x947, 0x94D, 0x23C
"""Opcodes of ACQBULK (griddepcontrol.wait), LDG, BRA, EXIT and HMMA."""
_CONSTANT = 1 << 79
"""LDG of what never changes (ld.global.nc)."""


def instructions(cubin: bytes) -> Iterator[int]:
    """Yield the instructions of all kernels of a module, of 16 bytes each."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<II4Q", cubin, table + size * i) for i in range(count)]
    strings = sections[names][4]
    for name, _kind, _flags, _address, start, nbytes in sections:
        if cubin[strings + name :].startswith(b".text."):
            for at in range(start, start + nbytes, 16):
                yield int.from_bytes(cubin[at : at + 16], "little")


def opcode(instruction: int) -> int:
    """Return what an instruction does."""
    return instruction & 0xFFF


def loads_a_constant(instruction: int) -> bool:
    """Whether an instruction loads from memory that does not change."""
    return opcode(instruction) == LOAD and bool(instruction & _CONSTANT)
