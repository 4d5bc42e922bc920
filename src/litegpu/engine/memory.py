"""Plans one block of memory for values that live at different times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    last = max((usage.last for usage in usages), default=-1)
    return max(
        (sum(u.size for u in usages if u.first <= t <= u.last) for t in range(last + 1)),
        default=0,
    )


def plan_separate(usages: Sequence[Usage], alignment: int) -> Plan:
    """Give each usage memory of its own (for debugging)."""
    offsets, end = [], 0
    for usage in usages:
        offsets.append(end)
        end = round_up(end + usage.size, alignment)
    return Plan(tuple(offsets), end)


def plan_shared(usages: Sequence[Usage], alignment: int) -> Plan:
    """Let usages share memory when their lives do not overlap; the best of several orders."""
    return min(
        (_place(usages, sorted(range(len(usages)), key=key(usages)), alignment) for key in _ORDERS),
        key=lambda plan: plan.size,
    )


_Key = Callable[[int], tuple[int, ...]]


def _by_size(usages: Sequence[Usage]) -> _Key:
    return lambda i: (-usages[i].size, usages[i].first)


def _by_duration(usages: Sequence[Usage]) -> _Key:
    return lambda i: (usages[i].first - usages[i].last, -usages[i].size)


def _by_area(usages: Sequence[Usage]) -> _Key:
    return lambda i: (-usages[i].size * (usages[i].last - usages[i].first + 1), usages[i].first)


def _by_breadth(usages: Sequence[Usage]) -> _Key:
    """Order by the fullest moment that each usage is part of."""
    end = max((usage.last for usage in usages), default=-1) + 1
    live = [sum(u.size for u in usages if u.first <= t <= u.last) for t in range(end)]
    return lambda i: (-max(live[usages[i].first : usages[i].last + 1]), -usages[i].size)


def _by_start(usages: Sequence[Usage]) -> _Key:
    return lambda i: (usages[i].first, -usages[i].size)


_ORDERS = (_by_size, _by_duration, _by_area, _by_breadth, _by_start)


def _place(usages: Sequence[Usage], order: Iterable[int], alignment: int) -> Plan:
    """Put each usage into the smallest gap that fits between those it overlaps in time."""
    offsets = [0] * len(usages)
    placed: list[int] = []
    for i in order:
        usage = usages[i]
        overlapping = sorted(
            (offsets[j], usages[j].size)
            for j in placed
            if usages[j].first <= usage.last and usage.first <= usages[j].last
        )
        offsets[i] = _best_gap(overlapping, usage.size, alignment)
        placed.append(i)
    size = max((o + u.size for o, u in zip(offsets, usages, strict=True)), default=0)
    return Plan(tuple(offsets), size)


def _best_gap(blocks: Iterable[tuple[int, int]], size: int, alignment: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for offset, length in blocks:
        gap = offset - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, round_up(offset + length, alignment))
    return best[1] if best else end
