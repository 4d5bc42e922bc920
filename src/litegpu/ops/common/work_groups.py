"""The number of work items that share a kernel's work, and the selection of tiles by load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from litegpu.ops.base import LowerContext, Target

_T = TypeVar("_T")
_SHARED_BYTES = 16
"""The shared memory of each item of a work group: a float4."""
_SMALLEST_GROUP = 16
"""Smaller work groups leave most lanes of a GPU's vector units idle."""


def can_share(items: int, target: Target) -> bool:
    """Return whether a work group of this many items may exist and share a float4 each."""
    fits = items * _SHARED_BYTES <= target.local_memory_bytes
    return fits and items <= target.max_work_group_size


_WARP = 32
"""Number of CUDA work items in a warp."""


def shared_items(groups: int, terms: int, ctx: LowerContext) -> int:
    """Return how many work items (a power of 2) should divide a reduction of `terms`.

    `groups` reductions run in parallel: if they keep the device busy, one item each.
    """
    items, target = 1, ctx.target
    # Twice as many must fit: compute units need several groups at a time.
    while items < min(terms, 256) and can_share(4 * items, target):
        if groups * items >= target.parallel_items:
            break
        items *= 2
    return items if items >= _SMALLEST_GROUP else 1


def lanes_of(items: int, target: Target, rows: int = 1) -> int:
    """Return how many of the items of a reduction can sum without shared memory; 1: none.

    In CUDA, those of a warp can, if groups of `rows` reductions are whole warps. All other
    languages would need an extension for it.
    """
    whole = items * rows % _WARP == 0
    return min(items, _WARP) if target.backend == "cuda" and whole else 1


def by_load(tiles: Sequence[_T], items: Callable[[_T], int], target: Target) -> tuple[_T, ...]:
    """Sort tiles, which are given largest first, by their suitability for the device.

    First come those that still leave it enough work items, then the others, smallest first.
    """
    busy = [tile for tile in tiles if items(tile) >= target.parallel_items]
    return (*busy, *(tile for tile in reversed(tiles) if tile not in busy))
