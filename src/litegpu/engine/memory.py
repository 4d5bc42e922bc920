"""Plans one block of memory for values that live at different times."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from litegpu.codegen import round_up


@dataclass(frozen=True, slots=True)
class Usage:
    """A value of `size` bytes that is needed from kernel number `first` to `last`, inclusive."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offset of each usage, and the size of the block that holds them all."""

    offsets: tuple[int, ...]
    size: int


def lower_bound(usages: Sequence[Usage]) -> int:
    """Return the most bytes that are live at once: no plan can need less."""
    return max(_live_bytes(usages), default=0)


def _live_bytes(usages: Sequence[Usage]) -> list[int]:
    """Return how many bytes are live at each kernel."""
    changes = [0] * (max((usage.last for usage in usages), default=-1) + 2)
    for usage in usages:
        changes[usage.first] += usage.size
        changes[usage.last + 1] -= usage.size
    return list(accumulate(changes))


def plan_separate(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Give each usage memory of its own (for debugging)."""
    offsets, end = [], 0
    for usage in usages:
        offsets.append(end)
        end = round_up(end + usage.size, alignment)
    return MemoryPlan(tuple(offsets), end)


def plan_shared(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Let usages share memory when they are not needed together; the best of several attempts.

    The attempts take time that grows with the square of the number of usages: very many are
    placed in the order in which they begin, without a search.
    """
    best = plan_separate(usages, alignment)
    if len(usages) > _MOST_SEARCHED:
        return min(best, _place_in_time(usages, alignment), key=lambda each: each.size)
    conflicts = _overlapping(usages)
    bound = round_up(lower_bound(usages), alignment)
    for key in _ORDERS:
        order = sorted(range(len(usages)), key=key(usages))
        # Chains, where each value lives until the next is made, fit best from both ends.
        ceiling = bound + alignment if key is _by_start else None
        plan = _place(usages, order, alignment, ceiling, conflicts)
        best = min(best, plan, key=lambda each: each.size)
        if best.size <= bound:
            break
    return best


def _place_in_time(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Give each usage, in the order in which they begin, the smallest free block that holds it."""
    offsets = [0] * len(usages)
    sizes = [round_up(max(usage.size, 1), alignment) for usage in usages]
    free = _FreeBlocks()
    live: list[tuple[int, int]] = []
    end = 0
    for i in sorted(range(len(usages)), key=_by_start(usages)):
        while live and live[0][0] < usages[i].first:
            _, over = heapq.heappop(live)
            free.give(offsets[over], offsets[over] + sizes[over])
        offset = free.take(sizes[i])
        if offset is None:
            offset, end = end, end + sizes[i]
        offsets[i] = offset
        heapq.heappush(live, (usages[i].last, i))
    return MemoryPlan(tuple(offsets), end)


class _FreeBlocks:
    """Blocks that nobody needs now; neighbours are one block."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def give(self, start: int, end: int) -> None:
        """Add a block, joined with those that it touches."""
        if end in self._ends:
            end = self._remove(end)
        if start in self._starts:
            before = self._starts[start]
            self._remove(before)
            start = before
        self._ends[start], self._starts[end] = end, start
        bisect.insort(self._by_size, (end - start, start))

    def take(self, size: int) -> int | None:
        """Take the beginning of the smallest block that is large enough, if there is one."""
        at = bisect.bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            return None
        start = self._by_size[at][1]
        end = self._remove(start)
        if start + size < end:
            self.give(start + size, end)
        return start

    def _remove(self, start: int) -> int:
        """Remove the block that begins there, and return its end."""
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect.bisect_left(self._by_size, (end - start, start))]
        return end


def _overlapping(usages: Sequence[Usage]) -> list[int]:
    """Return for each usage those whose lives overlap with its own, as the bits of a number."""
    steps = max((usage.last for usage in usages), default=-1) + 1
    begun, ended = [0] * (steps + 1), [0] * (steps + 1)
    for i, usage in enumerate(usages):
        begun[usage.first] |= 1 << i
        ended[usage.last + 1] |= 1 << i
    begun, ended = list(accumulate(begun, or_)), list(accumulate(ended, or_))
    return [begun[usage.last] & ~ended[usage.first] for usage in usages]


_Key = Callable[[int], tuple[int, ...]]


def _by_size(usages: Sequence[Usage]) -> _Key:
    return lambda i: (-usages[i].size, usages[i].first)


def _by_duration(usages: Sequence[Usage]) -> _Key:
    return lambda i: (usages[i].first - usages[i].last, -usages[i].size)


def _by_area(usages: Sequence[Usage]) -> _Key:
    return lambda i: (-usages[i].size * (usages[i].last - usages[i].first + 1), usages[i].first)


def _by_breadth(usages: Sequence[Usage]) -> _Key:
    """Order by the fullest moment that each usage is part of."""
    live = _live_bytes(usages)
    return lambda i: (-max(live[usages[i].first : usages[i].last + 1]), -usages[i].size)


def _by_start(usages: Sequence[Usage]) -> _Key:
    return lambda i: (usages[i].first, -usages[i].size)


_ORDERS = (_by_size, _by_duration, _by_area, _by_breadth, _by_start)


def _place(
    usages: Sequence[Usage],
    order: Iterable[int],
    alignment: int,
    ceiling: int | None,
    conflicts: Sequence[int],
) -> MemoryPlan:
    """Put each usage into the smallest gap that fits between those it conflicts with.

    It goes to the lower end of the gap or, below a `ceiling`, to the end whose neighbour lives on
    longer; where no gap fits, on top of all.
    """
    offsets = [0] * len(usages)
    top = [] if ceiling is None else [_Block(ceiling, ceiling, _FOREVER, len(usages))]
    placed: list[_Block] = []
    for i in order:
        usage = usages[i]
        digits = f"{conflicts[i]:0{len(usages)}b}"  # the last one is that of usage 0
        blocks = [block for block in placed if digits[~block.usage] == "1"]
        offset = _best_gap([*blocks, *top], usage.size, alignment, ceiling is not None)
        bisect.insort(placed, _Block(offset, offset + usage.size, usage.last, i))
        offsets[i] = offset
    size = max((o + u.size for o, u in zip(offsets, usages, strict=True)), default=0)
    return MemoryPlan(tuple(offsets), size)


class _Block(NamedTuple):
    start: int
    end: int
    last: int
    usage: int


_FOREVER = 1 << 62
_MOST_SEARCHED = 1 << 10
"""Usages for which orders are tried: networks have some hundred."""


def _best_gap(blocks: Iterable[_Block], size: int, alignment: int, both_ends: bool) -> int:
    """Return an offset between blocks, which come in the order in which they begin."""
    smallest, best = _FOREVER, -1
    reach, free, below = 0, 0, _FOREVER
    for start, end, last, _ in blocks:
        gap = start - free
        if size <= gap < smallest:
            smallest = gap
            upper = both_ends and last > below
            best = (start - size) // alignment * alignment if upper else free
        if end > reach:
            reach, below = end, last
            free = -(-end // alignment) * alignment
    return free if best < 0 else best
