"""Buffers of a run that kernels update in place, and buffers that are copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_suite import ADD_ONE, CELL, kernel, launch, program
from litegpu.backends.buffers import Bindings, BorrowedBuffer, Buffer, Bytes, DeviceBuffer
from litegpu.backends.direct_updates import direct_updates
from litegpu.backends.program import BufferRange, Update

ALIGNMENT = 256
HALF = CELL // 2
PROGRAM = replace(
    program([kernel("k", ADD_ONE)], [launch("k", 0, 1)], [0, 1], [0, 2]),
    updates={0: Update(0, ((0, 0),))},
)


class _Memory(DeviceBuffer):
    """A range of an allocation; the allocation is represented by a number."""

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        raise AssertionError("Only the places of buffers are asked for.")

    def _write(self, offset: int, data: Bytes) -> None:
        raise AssertionError("Only the places of buffers are asked for.")

    def _read(self, offset: int, host: Bytes) -> None:
        raise AssertionError("Only the places of buffers are asked for.")


class _Lent(BorrowedBuffer, _Memory):
    """Memory of another library."""


def own(handle: int, offset: int = 0) -> DeviceBuffer:
    return _Memory(None, handle, offset, CELL)


def lent(handle: int) -> Buffer:
    return _Lent(None, handle, 0, CELL)


def test_a_buffer_that_is_input_and_output_is_not_copied() -> None:
    buffer = own(1, ALIGNMENT)
    ends = Bindings((buffer, own(2)), (buffer, own(3)))
    direct = direct_updates(PROGRAM, ends, ALIGNMENT)
    assert (direct.inputs, direct.outputs) == ({0: None}, {0})
    assert direct.argument(0, 0, PROGRAM.inputs[0]) == (buffer, ALIGNMENT)
    assert direct.argument(0, 1, PROGRAM.inputs[1]) == (None, CELL)


def test_another_input_is_copied_to_the_output() -> None:
    target = own(3)
    ends = Bindings((own(1), own(2)), (target, own(1)))
    direct = direct_updates(PROGRAM, ends, ALIGNMENT)
    assert (direct.inputs, direct.outputs) == ({0: target}, {0})


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((own(1), own(2)), (own(2), own(3))),
        ((own(1), own(2)), (own(1), own(1, HALF))),
        ((own(1), own(2)), (own(1, HALF), own(3))),
        ((own(1, 16), own(2)), (own(1, 16), own(3))),
        ((lent(1), own(2)), (lent(1), own(3))),
        ((own(1), lent(2)), (own(1), own(3))),
    ],
    ids=["other input", "other output", "in part", "unaligned", "borrowed", "unknown"],
)
def test_other_memory_is_not_updated(
    inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]
) -> None:
    direct = direct_updates(PROGRAM, Bindings(inputs, outputs), ALIGNMENT)
    assert not direct.uses and not direct.inputs and not direct.outputs


def test_kernels_access_whole_vectors() -> None:
    part = BufferRange(False, 0, CELL - 4)
    short = replace(PROGRAM, inputs=(part, PROGRAM.inputs[1]), outputs=(part, PROGRAM.outputs[1]))
    buffer = own(1)
    ends = Bindings((buffer, own(2)), (buffer, own(3)))
    assert not direct_updates(short, ends, ALIGNMENT).uses
