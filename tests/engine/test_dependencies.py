"""Launches wait only for launches whose results or memory they need."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litegpu.backends.program import Launch, Span
from litegpu.engine import memory
from litegpu.engine.dependencies import dependencies
from litegpu.engine.layout import assign
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.engine.verify import verify
from litegpu.graph import EpilogueOp, Graph
from litegpu.numeric_policy import FP32
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder

property_test = settings(max_examples=300, deadline=None, derandomize=True)
ALIGNMENT = 8
Bytes = npt.NDArray[np.uint8]


def launch(reads: Sequence[Span] = (), writes: Sequence[Span] = ()) -> Launch:
    return Launch("", (), (1, 1, 1), (1, 1, 1), tuple(reads), tuple(writes))


@st.composite
def spans(draw: Any) -> Span:
    start, rows = draw(st.integers(0, 40)), draw(st.integers(1, 6))
    pitch = draw(st.sampled_from([0, 4, 6, 6, 6]))
    if not pitch:
        return Span(start, start + rows)
    width = draw(st.integers(1, pitch - 1))
    return Span(start, start + (rows - 1) * pitch + width, pitch, width)


def bytes_of(span: Span) -> set[int]:
    whole = range(span.start, span.end)
    return {b for b in whole if not span.pitch or (b - span.start) % span.pitch < span.width}


@given(first=spans(), second=spans())
@property_test
def test_spans_with_a_byte_in_common_overlap(first: Span, second: Span) -> None:
    common = bool(bytes_of(first) & bytes_of(second))
    assert first.overlaps(second) == second.overlaps(first)
    assert first.overlaps(second) or not common
    if first.pitch == second.pitch == 0:
        assert first.overlaps(second) == common
    if first.covers(second):
        assert bytes_of(first) >= bytes_of(second)


def ancestors(direct: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Return for each launch all that it waits for, directly or not."""
    found: list[frozenset[int]] = []
    for before in direct:
        found.append(before.union(*(found[number] for number in before)))
    return found


def test_a_diamond_waits_at_its_ends() -> None:
    a, b, c, d = (Span(i, i + 8) for i in range(0, 32, 8))
    launches = [launch((), (a,)), launch((a,), (b,)), launch((a,), (c,)), launch((b, c), (d,))]
    assert dependencies(launches) == [frozenset(), {0}, {0}, {1, 2}]


def test_who_overwrites_waits_for_the_readers() -> None:
    a, b, c = (Span(i, i + 8) for i in range(0, 24, 8))
    assert dependencies([launch((a,), (b,)), launch((), (a,)), launch((a,), (c,))]) == [
        *(frozenset(), {0}, {1}),
    ]


def test_channels_side_by_side_are_written_at_once() -> None:
    left, right = Span(0, 28, 12, 4), Span(4, 36, 12, 8)
    whole = launch((Span(0, 36),), (Span(40, 44),))
    launches = [launch((), (left,)), launch((), (right,)), whole]
    assert dependencies(launches) == [frozenset(), frozenset(), {0, 1}]


# Drawn programs, run byte by byte


class Drawn:
    """Launches on values of some bytes; what each gives hangs on all that it reads."""

    def __init__(self, sizes: Sequence[int], steps: Sequence[tuple[Any, ...]]) -> None:
        """Take the values' sizes and, per launch, the values it reads and writes, and which half.

        Half 0 or 1 of the pairs of bytes of a value, or all of it (None).
        """
        self.sizes, self.steps = sizes, steps

    def kernels(self, v: int) -> list[int]:
        """Return the launches that use a value."""
        return [k for k, (r, w, _) in enumerate(self.steps) if v in (*r, w)]

    def is_made(self, v: int) -> bool:
        """Whether the first launch that uses a value makes all of it; others are there before."""
        kernels = self.kernels(v)
        return bool(kernels) and bool(self.steps[kernels[0]][1:] == (v, None))

    def usages(self) -> list[memory.Usage]:
        found = []
        for v, size in enumerate(self.sizes):
            kernels = self.kernels(v)
            first = kernels[0] if self.is_made(v) else 0
            last = len(self.steps) - 1 if is_kept(v) else max(kernels, default=0)
            found.append(memory.Usage(size, first, last))
        return found

    def launches(self, offsets: Sequence[int]) -> list[Launch]:
        def span(v: int, half: int | None) -> Span:
            start, end = offsets[v], offsets[v] + self.sizes[v]
            return Span(start, end) if half is None else Span(start + half, end - 1 + half, 2, 1)

        return [launch([span(r, None) for r in rs], [span(w, h)]) for rs, w, h in self.steps]

    def run(self, plan: memory.MemoryPlan, order: Sequence[int]) -> list[bytes]:
        """Return the values that are kept after the launches have run in an order."""
        array: Bytes = np.zeros(plan.size + 1, np.uint8)
        for v, (size, offset) in enumerate(zip(self.sizes, plan.offsets, strict=True)):
            if not self.is_made(v):
                array[offset : offset + size] = 7
        program = self.launches(plan.offsets)
        for number in order:
            each = program[number]
            seen = b"".join(array[span.start : span.end].tobytes() for span in each.reads)
            (target,) = each.writes
            positions = sorted(bytes_of(target))
            noise = np.random.default_rng(zlib.crc32(seen + bytes([number])))
            array[positions] = noise.integers(0, 256, len(positions), np.uint8)
        return [
            array[offset : offset + size].tobytes()
            for v, (size, offset) in enumerate(zip(self.sizes, plan.offsets, strict=True))
            if is_kept(v)
        ]


def is_kept(v: int) -> bool:
    """Whether a value of a drawn program must be there after all launches."""
    return v % 3 == 0


@st.composite
def drawn_programs(draw: Any) -> Drawn:
    sizes = draw(st.lists(st.integers(1, 6).map(lambda n: 2 * n), min_size=2, max_size=9))
    known: list[int] = [0]
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 10))):
        reads = tuple(draw(st.lists(st.sampled_from(known), max_size=2, unique=True)))
        target = draw(st.sampled_from([v for v in range(len(sizes)) if v not in reads] or [0]))
        halves = [0, 1, None] if target in known else [None]
        steps.append((reads, target, draw(st.sampled_from(halves))))
        known = sorted({*known, target})
    return Drawn(sizes, steps)


def some_order(draw: Any, waiting: Sequence[frozenset[int]]) -> list[int]:
    order: list[int] = []
    while len(order) < len(waiting):
        ready = [n for n, before in enumerate(waiting) if n not in order and before <= {*order}]
        order.append(draw(st.sampled_from(ready)))
    return order


@given(program=drawn_programs(), data=st.data(), share_memory=st.booleans())
@property_test
def test_any_order_that_is_permitted_gives_the_same(
    program: Drawn, data: st.DataObject, share_memory: bool
) -> None:
    usages = program.usages()
    apart = memory.plan_separate(usages, ALIGNMENT)
    in_order = range(len(program.steps))
    expected = program.run(apart, in_order)
    plan = memory.plan_shared(usages, ALIGNMENT) if share_memory else apart
    assert program.run(plan, in_order) == expected
    waiting = dependencies(program.launches(plan.offsets))
    assert program.run(plan, some_order(data.draw, waiting)) == expected


# Programs of graphs


def compiled(graph: Graph, share_memory: bool) -> BuiltProgram:
    layout = assign(graph, FP32)
    ends = layout.graph.inputs, layout.graph.outputs
    built = build_program(layout, DEVICE, *ends, share_memory=share_memory)
    verify(built)
    return built


def branches(count: int, joined: bool) -> Graph:
    """Chains of two convolutions on one value, added up or put side by side."""
    builder = GraphBuilder()
    source = builder.conv(builder.input(1, 8, 8, 8), 8)
    ends = [builder.conv(builder.conv(source, 8), 8) for _ in range(count)]
    if joined:
        whole = builder.concat(3, *ends)
        return builder.graph(builder.conv(whole, 8))
    total = ends[0]
    for end in ends[1:]:
        total = builder.elementwise(total, EpilogueOp("ADD", (end,)))
    return builder.graph(builder.elementwise(total, RELU))


@pytest.mark.parametrize("joined", [False, True])
def test_branches_wait_for_each_other_only_where_they_share_memory(joined: bool) -> None:
    graph = branches(3, joined)
    apart, shared = (compiled(graph, share_memory) for share_memory in (False, True))
    waiting = [ancestors(dependencies(built.program.launches)) for built in (apart, shared)]
    # The convolution that all branches read, then the two of each branch.
    assert waiting[0][:7] == [set(), {0}, {0, 1}, {0}, {0, 3}, {0}, {0, 5}]
    assert all(few <= many for few, many in zip(*waiting, strict=True))
    assert waiting[0] != waiting[1]
    assert shared.program.memory_bytes < apart.program.memory_bytes


def test_all_pairs_of_a_program_that_overlap_wait() -> None:
    built = compiled(branches(4, joined=True), share_memory=True)
    before = ancestors(dependencies(built.program.launches))
    pairs = itertools.combinations(enumerate(built.program.launches), 2)
    for (first, early), (second, late) in pairs:
        hazards = [
            *itertools.product(early.writes, (*late.reads, *late.writes)),
            *itertools.product(early.reads, late.writes),
        ]
        if any(a.overlaps(b) for a, b in hazards):
            assert first in before[second]
