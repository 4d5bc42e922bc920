"""Plans one block of memory for values with different lifetimes."""

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
    """A value of `size` bytes that is live from kernel number `first` to `last`, inclusive."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The byte offset of each usage, and the size of the whole block."""

    offsets: tuple[int, ...]
    size: int


def lower_bound(usages: Sequence[Usage]) -> int:
    """Return the maximum number of live bytes, below which no plan is possible."""
    return max(_live_bytes(usages), default=0)


def _live_bytes(usages: Sequence[Usage]) -> list[int]:
    """Return the number of live bytes at each kernel."""
    changes = [0] * (max((usage.last for usage in usages), default=-1) + 2)
    for usage in usages:
        changes[usage.first] += usage.size
        changes[usage.last + 1] -= usage.size
    return list(accumulate(changes))


def plan_separate(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Allocate separate memory for each usage (for debugging)."""
    offsets, end = [], 0
    for usage in usages:
        offsets.append(end)
        end = round_up(end + usage.size, alignment)
    return MemoryPlan(tuple(offsets), end)


def plan_shared(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Let usages with disjoint lifetimes share memory; return the best of several attempts.

    The attempts take quadratic time in the number of usages. If the number of usages is very large,
    the planner places them in the order of their first kernel, without a search.
    """
    best = plan_separate(usages, alignment)
    if len(usages) > _MAX_SEARCHED:
        return min(best, _place_in_time(usages, alignment), key=lambda each: each.size)
    conflicts = _overlapping(usages)
    bound = round_up(lower_bound(usages), alignment)
    for key in _ORDERS:
        order = sorted(range(len(usages)), key=key(usages))
        # In a chain, each value lives until the next is computed: alternate between both ends.
        ceiling = bound + alignment if key is _by_start else None
        plan = _place(usages, order, alignment, ceiling, conflicts)
        best = min(best, plan, key=lambda each: each.size)
        if best.size <= bound:
            break
    return best


def _place_in_time(usages: Sequence[Usage], alignment: int) -> MemoryPlan:
    """Place usages in the order of their first kernel, each in the smallest free block."""
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
    """The free blocks of memory; adjacent free blocks are merged."""

    def __init__(self) -> None:
        """Create an empty list of free blocks."""
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def give(self, start: int, end: int) -> None:
        """Add a free block and merge it with adjacent ones."""
        if end in self._ends:
            end = self._remove(end)
        if start in self._starts:
            before = self._starts[start]
            self._remove(before)
            start = before
        self._ends[start], self._starts[end] = end, start
        bisect.insort(self._by_size, (end - start, start))

    def take(self, size: int) -> int | None:
        """Take the start of the smallest block that is large enough; None if there is none."""
        at = bisect.bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            return None
        start = self._by_size[at][1]
        end = self._remove(start)
        if start + size < end:
            self.give(start + size, end)
        return start

    def _remove(self, start: int) -> int:
        """Remove the block that starts at `start`, and return its end."""
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect.bisect_left(self._by_size, (end - start, start))]
        return end


def _overlapping(usages: Sequence[Usage]) -> list[int]:
    """Return a bit mask for each usage: the usages with overlapping lifetimes."""
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
    """Order usages by the maximum number of live bytes during each usage."""
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
    """Put each usage into the smallest gap that fits between the usages that it conflicts with.

    The usage is placed at the lower end of the gap or, below a `ceiling`, at the end whose neighbor
    lives longer. If no gap fits, the usage gets offsets after those of all other usages.
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
_MAX_SEARCHED = 1 << 10
"""Maximum number of usages for which the planner tries several orders: networks have a few hundred.
"""


def _best_gap(blocks: Iterable[_Block], size: int, alignment: int, both_ends: bool) -> int:
    """Return the best offset between blocks, which are sorted by their start."""
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
