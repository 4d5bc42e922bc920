"""Whether a program reads what was made, from memory that nobody else has taken since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.backends.base import Slot
from litegpu.engine.lowering import RANGE_BINDING
from litegpu.engine.program import BuiltProgram


@dataclass(frozen=True, slots=True)
class _Access:
    root: int
    """The root value, or the number of a constant."""
    slot: Slot
    written: bool


def verify(built: BuiltProgram) -> None:
    """Follow a program launch by launch.

    Raises ValueError with the launch and the value (the number of its root in the layout) where a
    range leaves the program's memory, constants are written, a value is read that nobody has made
    or whose memory another value has taken, a kernel writes over what it reads, or an output is
    not what was made.
    """
    program = built.program
    # The root value that lies in each range of memory.
    held = {_range(slot): _GIVEN for slot in program.inputs}
    for number, launch in enumerate(built.launches):
        where = f"launch {number} ({launch.template})"
        accesses = list(_accesses(built, number))
        for access in accesses:
            _check_bounds(built, access, where)
        # Each launch has range words of its own, which the host reads all at once.
        accesses = [each for each in accesses if each.root != RANGE_BINDING]
        reads = [access for access in accesses if not access.written and not access.slot.constant]
        for access in reads:
            owner = held.get(_range(access.slot))
            if owner not in (_GIVEN, access.root):
                raise ValueError(
                    f"{where} reads value {access.root}, which was not made or is overwritten"
                )
        for access in (each for each in accesses if each.written):
            for other in reads:
                apart = other.root == access.root or not _overlap(other.slot, access.slot)
                if not apart:
                    raise ValueError(
                        f"{where} writes value {access.root} over value {other.root}, "
                        "which it reads"
                    )
            taken = [each for each in held if _overlap_ranges(each, _range(access.slot))]
            for each in taken:
                del held[each]
            held[_range(access.slot)] = access.root
    for number, slot in enumerate(program.outputs):
        if slot.size and _range(slot) not in held:
            raise ValueError(f"output {number} is not what was made for it")


_GIVEN = -2
"""Stands for the roots of what comes from the host."""


def _accesses(built: BuiltProgram, number: int) -> Iterator[_Access]:
    launch, dispatch = built.launches[number], built.program.dispatches[number]
    for (root, _), slot, argument in zip(
        launch.bindings, dispatch.slots, launch.kernel.arguments, strict=True
    ):
        yield _Access(root, slot, argument.written)


def _check_bounds(built: BuiltProgram, access: _Access, where: str) -> None:
    program, slot = built.program, access.slot
    room = len(program.constants) if slot.constant else program.memory_bytes
    if slot.offset < 0 or slot.offset + slot.size > room:
        raise ValueError(f"{where} binds {slot}, of {room} bytes")
    if slot.constant and access.written:
        raise ValueError(f"{where} writes constants: {slot}")


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + slot.size


def _overlap(first: Slot, second: Slot) -> bool:
    return _overlap_ranges(_range(first), _range(second))


def _overlap_ranges(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]
