"""Plans one block of memory for values that live at different times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from litegpu.codegen import round_up


@dataclass(frozen=True, slots=True)
class Usage:
    """A value of `size` bytes that is needed from kernel number `first` to `last`, inclusive."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
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


def plan_separate(usages: Sequence[Usage], alignment: int) -> Plan:
    """Give each usage memory of its own (for debugging)."""
    offsets, end = [], 0
    for usage in usages:
        offsets.append(end)
        end = round_up(end + usage.size, alignment)
    return Plan(tuple(offsets), end)


def plan_shared(usages: Sequence[Usage], alignment: int) -> Plan:
    """Let usages share memory when their lives do not overlap; the best of several attempts."""
    bound = round_up(lower_bound(usages), alignment)
    best = plan_separate(usages, alignment)
    for key in _ORDERS:
        order = sorted(range(len(usages)), key=key(usages))
        # Chains, where each value lives until the next is made, fit best from both ends.
        ceiling = bound + alignment if key is _by_start else None
        plan = _place(usages, order, alignment, ceiling)
        best = min(best, plan, key=lambda each: each.size)
        if best.size <= bound:
            break
    return best


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
    usages: Sequence[Usage], order: Iterable[int], alignment: int, ceiling: int | None
) -> Plan:
    """Put each usage into the smallest gap that fits between those it overlaps in time.

    It goes to the lower end of the gap or, below a `ceiling`, to the end whose neighbour lives on
    longer; where no gap fits, on top of all.
    """
    offsets = [0] * len(usages)
    placed: list[int] = []
    for i in order:
        usage = usages[i]
        blocks = sorted(
            _Block(offsets[j], offsets[j] + usages[j].size, usages[j].last)
            for j in placed
            if usages[j].first <= usage.last and usage.first <= usages[j].last
        )
        if ceiling is not None:
            blocks.append(_Block(ceiling, ceiling, _FOREVER))
        offsets[i] = _best_gap(blocks, usage.size, alignment, ceiling is not None)
        placed.append(i)
    size = max((o + u.size for o, u in zip(offsets, usages, strict=True)), default=0)
    return Plan(tuple(offsets), size)


class _Block(NamedTuple):
    start: int
    end: int
    last: int


_FOREVER = 1 << 62


def _best_gap(blocks: Iterable[_Block], size: int, alignment: int, both_ends: bool) -> int:
    best: tuple[int, int] | None = None
    below = _Block(0, 0, _FOREVER)
    for block in blocks:
        start = round_up(below.end, alignment)
        gap = block.start - start
        if gap >= size and (best is None or gap < best[0]):
            top = (block.start - size) // alignment * alignment
            best = (gap, top if both_ends and block.last > below.last else start)
        if block.end > below.end:
            below = block
    return best[1] if best else round_up(below.end, alignment)
