"""Verifies that a program reads the values that it wrote, from memory that was not overwritten."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from litegpu.backends.base import DeviceInfo
from litegpu.backends.limits import obstacle
from litegpu.backends.program import BufferRange, Span
from litegpu.codegen import round_up
from litegpu.engine.dependencies import dependencies
from litegpu.engine.lowering import RANGE_BINDING, KernelLaunch
from litegpu.engine.program import BuiltProgram, span_of


@dataclass(frozen=True, slots=True)
class _Access:
    base: int
    """The base value id, or the index of a constant."""
    range: BufferRange
    """The whole memory range of the base value or constant."""
    written: bool
    span: Span
    """The part of the memory range that the launch accesses."""
    declared: Span | None
    """The accessed part that the launch declares."""


@dataclass(frozen=True, slots=True)
class _Write:
    """The output of a launch, and the parts of it that other values have overwritten."""

    base: int
    launch: int
    span: Span
    range: BufferRange
    lost: tuple[Span, ...] = ()

    def holds(self, span: Span) -> bool:
        """Whether a memory span still holds exactly this output."""
        return self.span.overlaps(span) and not any(each.overlaps(span) for each in self.lost)


_Producers = frozenset[int]


def verify(built: BuiltProgram, info: DeviceInfo | None = None) -> None:
    """Simulate a program launch by launch, in its order and in another permitted order.

    Raises ValueError with the launch and the value (the index of its base in the layout) for any of
    these errors: A launch exceeds a limit of the device (only with `info`: work items or shared
    memory of a work group, buffers). The work items of a launch are no multiple of its groups or
    clusters. A range exceeds the program's memory or is smaller than its value. A launch writes
    constants, or does not declare all of its accesses. A launch reads a value before the value is
    computed, or after its memory was reused. A kernel overwrites its inputs, an output does not
    have the computed value, or the other order changes what a launch reads.
    """
    for number, launch in enumerate(built.launches):
        where = f"launch {number} ({launch.template})"
        # Templates check the regions of shared memory.
        if info is not None and (reason := obstacle(launch.kernel, info)):
            raise ValueError(f"{where}: {reason}")
        _check_groups(launch, where)
        for access in _accesses(built, number):
            _check_bounds(built, access, where)
    read: dict[tuple[int, int], _Producers] = {}
    waiting = dependencies(built.program.launches)
    for order in (range(len(built.launches)), _latest_first(waiting)):
        _follow(built, order, read)


def _latest_first(waiting: Sequence[frozenset[int]]) -> list[int]:
    """Return an order that respects the dependencies and runs the latest ready launch first."""
    left = [len(before) for before in waiting]
    behind: list[list[int]] = [[] for _ in waiting]
    for number, before in enumerate(waiting):
        for each in before:
            behind[each].append(number)
    ready = [-number for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(-heapq.heappop(ready))
        for number in behind[order[-1]]:
            left[number] -= 1
            if not left[number]:
                heapq.heappush(ready, -number)
    return order


def _follow(
    built: BuiltProgram, order: Iterable[int], read: dict[tuple[int, int], _Producers]
) -> None:
    """Check one order of the launches.

    `read` maps each launch and base to the launches that wrote the data; the check of the first
    order fills `read`.
    """
    program = built.program
    live = [_Write(_GIVEN, _GIVEN, _whole(part), part) for part in program.inputs]
    for number in order:
        where = f"launch {number} ({built.launches[number].template})"
        # Each launch has separate range words; the host reads all of them at once.
        accesses = [each for each in _accesses(built, number) if each.base != RANGE_BINDING]
        reads = [access for access in accesses if not access.written and not access.range.constant]
        for access in reads:
            found = [
                each
                for each in live
                if each.base in (_GIVEN, access.base) and each.holds(access.span)
            ]
            if not found:
                raise ValueError(
                    f"{where} reads value {access.base}, which was not computed or is overwritten"
                )
            _check_producers(
                read, (number, access.base), found, f"{where} reads value {access.base}"
            )
        for access in (each for each in accesses if each.written):
            _check_operands(access, reads, where)
            live = [_without(access, each) for each in live if not _replaces(access, each)]
            live.append(_Write(access.base, number, access.span, access.range))
    for number, part in enumerate(program.outputs):
        # Small elements are written in whole words; the host may need fewer bytes.
        found = [
            each
            for each in live
            if each.range.offset == part.offset
            and 0 <= each.range.size - part.size < _WORDS
            and not each.lost
        ]
        if part.size and not found:
            raise ValueError(f"output {number} does not contain the computed value")
        _check_producers(read, (_GIVEN, number), found, f"output {number} is read")


def _replaces(access: _Access, before: _Write) -> bool:
    """Whether an access writes the same value again."""
    return access.base == before.base and access.span.covers(before.span)


def _without(access: _Access, before: _Write) -> _Write:
    """Return the earlier output without the parts that now hold another value."""
    if access.base == before.base or not access.span.overlaps(before.span):
        return before
    return replace(before, lost=(*before.lost, access.span))


def _check_producers(
    read: dict[tuple[int, int], _Producers],
    storage: tuple[int, int],
    found: list[_Write],
    where: str,
) -> None:
    producers = frozenset(each.launch for each in found)
    first = read.setdefault(storage, producers)
    if first != producers:
        raise ValueError(
            f"{where} as written by launches {sorted(producers)} in an order that the "
            f"dependencies permit, not as written by {sorted(first)}"
        )


def _check_operands(written: _Access, reads: Iterable[_Access], where: str) -> None:
    for other in reads:
        if other.base != written.base and other.span.overlaps(written.span):
            raise ValueError(
                f"{where} writes value {written.base} over value {other.base}, which it reads"
            )


_WORDS = 8
"""Granularity in bytes of writes for elements of less than 32 bits."""
_GIVEN = -2
"""Base id and launch number that denote the host, for inputs and outputs that it copies."""


def _accesses(built: BuiltProgram, number: int) -> Iterator[_Access]:
    launch, bound = built.launches[number], built.program.launches[number]
    spans = {False: iter(bound.reads), True: iter(bound.writes)}
    for (base, _), offset, part, storage, argument in zip(
        *(launch.bindings, launch.offsets, bound.ranges, launch.storages),
        *(launch.kernel.arguments,),
        strict=True,
    ):
        declared = None if part.constant else next(spans[argument.written], None)
        span = span_of(part, storage, argument.written)
        whole = replace(part, offset=part.offset - offset, size=part.size + offset)
        yield _Access(base, whole, argument.written, span, declared)


def _check_groups(launch: KernelLaunch, where: str) -> None:
    x, y, z = launch.kernel.local_size
    group = (x * launch.kernel.attributes.cluster_size, y, z)
    if any(size % part for size, part in zip(launch.global_size, group, strict=True)):
        raise ValueError(f"{where} has {launch.global_size} work items, in groups of {group}")


def _check_bounds(built: BuiltProgram, access: _Access, where: str) -> None:
    program, part, declared = built.program, access.range, access.declared
    if not program.contains(part):
        raise ValueError(f"{where} binds {part}, which is outside of its memory")
    if part.constant:
        if access.written:
            raise ValueError(f"{where} writes constants: {part}")
    elif access.span.end > part.offset + round_up(part.size, 16):
        raise ValueError(f"{where} binds {part}, but accesses {access.span}")
    elif declared is None or (declared != access.span and not declared.covers(access.span)):
        raise ValueError(f"{where} accesses {access.span} of {part}, but declares {declared}")


def _whole(part: BufferRange) -> Span:
    """Return the whole range of a value; kernels write bools in whole words."""
    return Span(part.offset, part.offset + round_up(part.size, 16))
