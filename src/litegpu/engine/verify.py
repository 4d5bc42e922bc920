"""Whether a program reads what was made, from memory that nobody else has taken since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.backends.program import BufferRange
from litegpu.engine.lowering import RANGE_BINDING
from litegpu.engine.program import BuiltProgram


@dataclass(frozen=True, slots=True)
class _Access:
    root: int
    """The root value, or the number of a constant."""
    range: BufferRange
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
    held = {_range(part): _GIVEN for part in program.inputs}
    for number, launch in enumerate(built.launches):
        where = f"launch {number} ({launch.template})"
        accesses = list(_accesses(built, number))
        for access in accesses:
            _check_bounds(built, access, where)
        # Each launch has range words of its own, which the host reads all at once.
        accesses = [each for each in accesses if each.root != RANGE_BINDING]
        reads = [access for access in accesses if not access.written and not access.range.constant]
        for access in reads:
            owner = held.get(_range(access.range))
            if owner not in (_GIVEN, access.root):
                raise ValueError(
                    f"{where} reads value {access.root}, which was not made or is overwritten"
                )
        for access in (each for each in accesses if each.written):
            for other in reads:
                apart = other.root == access.root or not _overlap(other.range, access.range)
                if not apart:
                    raise ValueError(
                        f"{where} writes value {access.root} over value {other.root}, "
                        "which it reads"
                    )
            taken = [each for each in held if _overlap_ranges(each, _range(access.range))]
            for each in taken:
                del held[each]
            held[_range(access.range)] = access.root
    for number, part in enumerate(program.outputs):
        if part.size and _range(part) not in held:
            raise ValueError(f"output {number} is not what was made for it")


_GIVEN = -2
"""Stands for the roots of what comes from the host."""


def _accesses(built: BuiltProgram, number: int) -> Iterator[_Access]:
    launch, bound = built.launches[number], built.program.launches[number]
    for (root, _), part, argument in zip(
        launch.bindings, bound.ranges, launch.kernel.arguments, strict=True
    ):
        yield _Access(root, part, argument.written)


def _check_bounds(built: BuiltProgram, access: _Access, where: str) -> None:
    program, part = built.program, access.range
    room = len(program.constants) if part.constant else program.memory_bytes
    if part.offset < 0 or part.offset + part.size > room:
        raise ValueError(f"{where} binds {part}, of {room} bytes")
    if part.constant and access.written:
        raise ValueError(f"{where} writes constants: {part}")


def _range(part: BufferRange) -> tuple[int, int]:
    return part.offset, part.offset + part.size


def _overlap(first: BufferRange, second: BufferRange) -> bool:
    return _overlap_ranges(_range(first), _range(second))


def _overlap_ranges(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]
