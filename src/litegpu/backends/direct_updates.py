"""Updates of inputs that kernels do in the bound buffers, instead of in a context's memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from litegpu.backends.buffers import Bindings, BorrowedBuffer, Buffer, DeviceBuffer
from litegpu.backends.program import BufferRange, Program

_UNIT = 16
"""The vector size in bytes: kernels access whole vectors."""


@dataclass(frozen=True, slots=True)
class DirectUpdates:
    """The bound buffers that a run's kernels access directly; none by default."""

    uses: Mapping[tuple[int, int], tuple[DeviceBuffer, int]] = field(default_factory=dict)
    """Maps (launch number, argument number) to the buffer, and to the argument's byte offset in the
    buffer's allocation.
    """
    inputs: Mapping[int, DeviceBuffer | None] = field(default_factory=dict)
    """Maps an input number to the buffer to copy the input to; None if no copy is needed."""
    outputs: Collection[int] = frozenset()
    """The numbers of outputs that need no copy."""

    def argument(
        self, launch: int, number: int, part: BufferRange
    ) -> tuple[DeviceBuffer | None, int]:
        """Return an argument's buffer and byte offset; (None, offset) if no buffer is bound."""
        return self.uses.get((launch, number), (None, part.offset))


def direct_updates(program: Program, bindings: Bindings, alignment: int) -> DirectUpdates:
    """Return the updates that kernels can do directly in the outputs' buffers.

    An output's buffer qualifies if litegpu allocated it and no other buffer of the run overlaps it.
    The input's buffer may be the same buffer. Arguments begin at a multiple of `alignment` bytes.
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
    """Whether two buffers may share bytes; buffers of other libraries are assumed to."""
    if not (isinstance(a, DeviceBuffer) and isinstance(b, DeviceBuffer)):
        return False
    if isinstance(b, BorrowedBuffer):
        return True
    inside = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
    return bool(a.handle == b.handle) and inside
