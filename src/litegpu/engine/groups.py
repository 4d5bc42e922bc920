"""Shapes of work groups for kernels whose work items have nothing to do with each other."""

from __future__ import annotations

import math

from litegpu.ops.base import Target

_ITEMS, _MANY_ITEMS = 64, 256
_ACROSS = 8
_WAVES = 8
"""From how many times the device's work items on, groups are large.

A GPU begins about one group in a nanosecond, whatever it does: 400,000 groups of 64 items, of
which 48 had nothing to do, took an H200 486 µs for bytes that it moves in 16.
"""


def group_for(
    grid: tuple[int, int, int], target: Target, moves_only: bool = True
) -> tuple[int, int, int]:
    """Return a work group for a grid of independent items, of which few are left over.

    It is as wide as the grid where that is narrow. Where kernels only move data, large grids have
    large groups; registers limit those of others.
    """
    across, down = (_power_of_two(size) for size in grid[:2])
    many = moves_only and math.prod(grid) >= _WAVES * target.parallel_items
    items = _MANY_ITEMS if many and target.max_work_group_size >= _MANY_ITEMS else _ITEMS
    x = min(across, max(_ACROSS, items // down))
    return x, min(items // x, down), 1


def _power_of_two(size: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()
