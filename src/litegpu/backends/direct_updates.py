"""Inputs that kernels update in the buffers of a run, in place of a context's own memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from litegpu.backends.buffers import Bindings, BorrowedBuffer, Buffer, DeviceBuffer
from litegpu.backends.program import BufferRange, Program

_UNIT = 16
"""Kernels access whole vectors of as many bytes."""


@dataclass(frozen=True, slots=True)
class DirectUpdates:
    """Which buffers the kernels of a run use themselves; none by default."""

    uses: Mapping[tuple[int, int], tuple[DeviceBuffer, int]] = field(default_factory=dict)
    """Of a launch and an argument, by their numbers: the buffer, and the byte of the allocation
    where the argument begins.
    """
    inputs: Mapping[int, DeviceBuffer | None] = field(default_factory=dict)
    """Of an input, by its number: where it is copied to; None if it is there already."""
    outputs: Collection[int] = frozenset()
    """The numbers of the outputs that are not copied."""

    def argument(
        self, launch: int, number: int, part: BufferRange
    ) -> tuple[DeviceBuffer | None, int]:
        """Return where an argument lies: None and the byte of a range if it is not in a buffer."""
        return self.uses.get((launch, number), (None, part.offset))


def direct_updates(program: Program, bindings: Bindings, alignment: int) -> DirectUpdates:
    """Return the updates that may take place in the outputs' buffers.

    Such a buffer is litegpu's own, and no other buffer of the run overlaps it; that of the input
    may be the same. Arguments begin at a multiple of `alignment` bytes.
    """
    uses: dict[tuple[int, int], tuple[DeviceBuffer, int]] = {}
    inputs: dict[int, DeviceBuffer | None] = {}
    outputs: set[int] = set()
    for number, update in program.updates.items():
        target, part = bindings.outputs[number], program.outputs[number]
        source = bindings.inputs[update.input]
        others = _without(bindings.inputs, update.input), _without(bindings.outputs, number)
        apart = not any(_overlap(target, each) for side in others for each in side)
        same = _is_same(source, target)
        if not (
            isinstance(target, DeviceBuffer)
            and not isinstance(target, BorrowedBuffer)
            and target.offset % alignment == 0
            and part.size % _UNIT == 0
            and apart
            and (same or not _overlap(target, source))
        ):
            continue
        for launch, argument in update.uses:
            inside = program.launches[launch].offset_in(part, argument)
            uses[launch, argument] = target, target.offset + inside
        inputs[update.input] = None if same else target
        outputs.add(number)
    return DirectUpdates(uses, inputs, outputs)


def _without(buffers: tuple[Buffer, ...], number: int) -> Iterator[Buffer]:
    return (each for n, each in enumerate(buffers) if n != number)


def _is_same(a: Buffer, b: Buffer) -> bool:
    if not (isinstance(a, DeviceBuffer) and isinstance(b, DeviceBuffer)):
        return False
    return bool(a.handle == b.handle) and a.offset == b.offset


def _overlap(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers may have bytes in common: others' objects say nothing about that."""
    if not (isinstance(a, DeviceBuffer) and isinstance(b, DeviceBuffer)):
        return False
    if isinstance(b, BorrowedBuffer):
        return True
    inside = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
    return bool(a.handle == b.handle) and inside
