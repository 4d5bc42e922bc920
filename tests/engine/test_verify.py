"""The verifier: a program reads only values that it has written and not overwritten."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from litegpu.backends.program import BufferRange, Span
from litegpu.codegen import LaunchAttributes
from litegpu.engine.layout import assign
from litegpu.engine.program import BuiltProgram
from litegpu.engine.verify import _Write, verify
from litegpu.graph import EpilogueOp
from litegpu.numeric_policy import FP16_ALL, FP32
from paper_device import DEVICE, build
from passes.graphs import RELU, GraphBuilder


@pytest.fixture(params=[FP32, FP16_ALL])
def built(request: pytest.FixtureRequest) -> BuiltProgram:
    """A diamond: two convolutions of one value, added, and a copy of the sum."""
    builder = GraphBuilder()
    source = builder.conv(builder.input(1, 4, 4, 8), 8)
    first, second = builder.conv(source, 8), builder.conv(source, 8)
    total = builder.elementwise(first, EpilogueOp("ADD", (second,)))
    graph = builder.graph(builder.elementwise(builder.conv(total, 8), RELU))
    return build(assign(graph, request.param))


def with_range(built: BuiltProgram, launch: int, argument: int, **changed: Any) -> BuiltProgram:
    launches = list(built.program.launches)
    ranges = list(launches[launch].ranges)
    ranges[argument] = replace(ranges[argument], **changed)
    sides: dict[bool, list[Span]] = {False: [], True: []}
    for part, each in zip(ranges, built.launches[launch].kernel.arguments, strict=True):
        if not part.constant:
            sides[each.written].append(Span(part.offset, part.offset + part.size))
    launches[launch] = replace(
        launches[launch],
        ranges=tuple(ranges),
        reads=tuple(sides[False]),
        writes=tuple(sides[True]),
    )
    return replace(built, program=replace(built.program, launches=tuple(launches)))


def place_of(built: BuiltProgram, launch: int, written: bool, constant: bool = False) -> int:
    """Return the first argument of a kernel of that sort."""
    arguments = built.launches[launch].kernel.arguments
    return next(
        i for i, a in enumerate(arguments) if a.written is written and a.constant is constant
    )


def range_of(built: BuiltProgram, launch: int, written: bool) -> BufferRange:
    return built.program.launches[launch].ranges[place_of(built, launch, written)]


def without_first(built: BuiltProgram) -> BuiltProgram:
    program = replace(built.program, launches=built.program.launches[1:])
    return replace(built, launches=built.launches[1:], program=program)


def over_its_input(built: BuiltProgram) -> BuiltProgram:
    read = range_of(built, 1, written=False)
    return with_range(built, 1, place_of(built, 1, written=True), offset=read.offset)


def over_the_other_branch(built: BuiltProgram) -> BuiltProgram:
    """The second branch lands on the first, which the sum still needs."""
    first = range_of(built, 1, written=True)
    return with_range(built, 2, place_of(built, 2, written=True), offset=first.offset)


def beyond(built: BuiltProgram) -> BuiltProgram:
    return with_range(built, 0, place_of(built, 0, written=True), offset=built.program.memory_bytes)


def into_constants(built: BuiltProgram) -> BuiltProgram:
    return with_range(built, 0, place_of(built, 0, written=True), constant=True, offset=0, size=4)


def untold(built: BuiltProgram) -> BuiltProgram:
    first, *others = built.program.launches
    launches = (replace(first, writes=()), *others)
    return replace(built, program=replace(built.program, launches=launches))


def read_elsewhere(built: BuiltProgram) -> BuiltProgram:
    """A branch tells that it reads nothing, so that it seems to wait for nobody."""
    launches = list(built.program.launches)
    reads = tuple(Span(0, 0) for _ in launches[2].reads)
    launches[2] = replace(launches[2], reads=reads)
    return replace(built, program=replace(built.program, launches=tuple(launches)))


def with_kernel(built: BuiltProgram, **changed: Any) -> BuiltProgram:
    first, *others = built.launches
    kernel = replace(first.kernel, **changed)
    return replace(built, launches=(replace(first, kernel=kernel), *others))


def too_many_items(built: BuiltProgram) -> BuiltProgram:
    return with_kernel(built, local_size=(32, 16, 1))


def too_much_shared_memory(built: BuiltProgram) -> BuiltProgram:
    return with_kernel(built, shared=(("uint4", "scratch", 2049),))


def no_whole_clusters(built: BuiltProgram) -> BuiltProgram:
    return with_kernel(built, attributes=LaunchAttributes(cluster_size=7))


def smaller_than_its_value(built: BuiltProgram) -> BuiltProgram:
    launches = list(built.program.launches)
    written = place_of(built, 0, written=True)
    ranges = list(launches[0].ranges)
    ranges[written] = replace(ranges[written], size=ranges[written].size // 2)
    launches[0] = replace(launches[0], ranges=tuple(ranges))
    return replace(built, program=replace(built.program, launches=tuple(launches)))


def another_output(built: BuiltProgram) -> BuiltProgram:
    wrong = replace(built.program.outputs[0], size=4)
    return replace(built, program=replace(built.program, outputs=(wrong,)))


def test_a_sound_program(built: BuiltProgram) -> None:
    verify(built, DEVICE)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_first, "reads value .*, which was not computed or is overwritten"),
        (over_its_input, "writes value .* over value .*, which it reads"),
        (over_the_other_branch, "which was not computed or is overwritten|over value"),
        (beyond, "binds BufferRange.*, which is outside of its memory"),
        (too_many_items, "needs 512 work items in a group, but the device has 256"),
        (too_much_shared_memory, "needs 32784 bytes of shared memory, but the device has 32768"),
        (no_whole_clusters, "work items, in groups of"),
        (smaller_than_its_value, "binds BufferRange.*, but accesses Span"),
        (into_constants, "writes constants"),
        (untold, "accesses Span.* of BufferRange.*, but declares"),
        (read_elsewhere, "accesses Span.* of BufferRange.*, but declares"),
        (another_output, "output 0 does not contain the computed value"),
    ],
)
def test_faults_are_found(
    built: BuiltProgram, change: Callable[[BuiltProgram], BuiltProgram], text: str
) -> None:
    with pytest.raises(ValueError, match=re.compile(text)):
        verify(change(built), DEVICE)


def test_another_order_that_launches_permit_must_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 8)
    whole = builder.concat(1, builder.conv(source, 8), builder.conv(source, 8))
    built = build(assign(builder.graph(builder.conv(whole, 8)), FP32))
    verify(built, DEVICE)
    assert len(built.launches) == 3
    monkeypatch.setattr("litegpu.engine.verify.dependencies", lambda _: [set(), set(), {1}])
    with pytest.raises(ValueError, match="in an order that the dependencies permit"):
        verify(built)


def test_the_rest_of_a_value_remains_when_another_takes_a_part_of_its_memory() -> None:
    """A launch that reads the last part may wait until others, which waited for the first, ran."""
    write = _Write(1, 0, Span(0, 96), BufferRange(False, 0, 96), lost=(Span(0, 32),))
    assert write.holds(Span(64, 96))
    assert not write.holds(Span(16, 48))
    assert not write.holds(Span(96, 128))
