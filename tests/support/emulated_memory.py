"""The memory of the emulated GPU, and the ranges that a launch may access (see cuda_checks.h)."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import Argument, KernelText
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.codegen.dialect import SHARED_SIZES

Bytes: TypeAlias = npt.NDArray[np.uint8]

_MARGIN = 1 << 14
"""Bytes before and after all memory in which a wrong index is noticed."""
_CELL_BYTES = 40
"""Of `Cell` in cuda_checks.h."""
_APART = 1024


class _Range(ctypes.Structure):
    _fields_ = (
        *(("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("writable", ctypes.c_bool)),
    )


class Places(ctypes.Structure):
    """What a launch may touch: `Places` of the header; sizes are in bytes."""

    _fields_ = (
        *(("buffers", ctypes.POINTER(_Range)), ("regions", ctypes.POINTER(_Range))),
        *(("arrays", ctypes.POINTER(_Range)), ("arena_cells", ctypes.c_void_p)),
        *(("buffer_count", ctypes.c_uint), ("array_count", ctypes.c_uint)),
    )


class EmulatedMemory:
    """A program's device memory, which begins as NaN, and its constants."""

    def __init__(self, program: Program) -> None:
        self.arena, whole = _aligned(program.memory_bytes)
        parts = [program.constants, *(block.read() for block in program.blocks)]
        ends = [*accumulate(part.nbytes + _MARGIN - part.nbytes % -256 for part in parts)]
        self._starts = [0, *ends]
        self._constants, constant = _aligned(ends[-1])
        for start, part in zip(self._starts, parts, strict=False):
            self._constants[start : start + part.nbytes] = part
        self._regions = (_Range * 2)(*map(_range, (whole, constant)))
        self._cells = np.zeros(whole.nbytes // 2 * _CELL_BYTES, np.uint8)
        self._kernels = {kernel.name: kernel for kernel in program.kernels}

    def at(self, position: BufferRange) -> int:
        """Return the address of a range."""
        stored = self._constants if position.constant else self.arena
        start = 0 if position.block is None else self._starts[position.block + 1]
        return int(stored.ctypes.data) + start + position.offset

    def places(self, launch: Launch) -> Places:
        """Return what a launch may touch."""
        kernel = self._kernels[launch.kernel]
        buffers = [
            _Range(self.at(each), self.at(each) + _bytes(argument, each), argument.written)
            for argument, each in zip(kernel.arguments, launch.ranges, strict=True)
        ]
        arrays = [_Range(start, end, True) for _, start, end in shared_arrays(kernel)]
        return Places(
            (_Range * len(buffers))(*buffers),
            self._regions,
            (_Range * len(arrays))(*arrays),
            self._cells.ctypes.data,
            len(buffers),
            len(arrays),
        )


def shared_arrays(kernel: KernelText) -> tuple[tuple[str, int, int], ...]:
    """Return the arrays in the memory of a block: names, where they begin and end.

    They lie apart, so that what runs over the end of one is not in the next; but for those whose
    places the program itself works out.
    """
    if whole := dynamic_shared_bytes(kernel):
        return (("dynamic_shared", 0, whole),)
    found, end = [], 0
    for kind, name, length in kernel.shared:
        start = -(-end // _APART) * _APART
        end = start + SHARED_SIZES[kind] * length
        found.append((name, start, end))
        end += 1
    return tuple(found)


def _bytes(argument: Argument, position: BufferRange) -> int:
    """Return the bytes that a kernel may touch: bools are read and written in whole words."""
    return -(-position.size // 4) * 4 if argument.kind == "U8" else position.size


def _range(memory: Bytes) -> _Range:
    start = memory.ctypes.data
    return _Range(start, start + memory.nbytes, True)


def _aligned(nbytes: int) -> tuple[Bytes, Bytes]:
    """Return bytes that read as NaN, at an address like the device's, and the same with margins."""
    stored = np.full(nbytes + 2 * _MARGIN + 256, 0xFF, np.uint8)
    start = -stored.ctypes.data % 256
    whole = stored[start : start + nbytes + 2 * _MARGIN]
    return whole[_MARGIN : _MARGIN + nbytes], whole
