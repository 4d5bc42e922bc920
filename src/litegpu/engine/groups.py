"""Work groups: their shapes where items have nothing to do with each other, and their registers."""

from __future__ import annotations

import math
from dataclasses import replace

from litegpu.codegen import LaunchAttributes
from litegpu.ops.base import Target

_ITEMS, _MANY_ITEMS = 64, 256
_ACROSS = 8
_WAVES = 8
"""From how many times the device's work items on, groups are large.

A GPU begins about one group in a nanosecond, whatever it does: 400,000 groups of 64 items, of
which 48 had nothing to do, took an H200 486 µs for bytes that it moves in 16.
"""
_PLENTY = 128
"""Registers that few kernels want more of for an item: with fewer, kernels stay as they are."""


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


def with_registers(
    attributes: LaunchAttributes, groups: int, items: int, target: Target
) -> LaunchAttributes:
    """Return how work groups of so many items are launched, with the registers that they leave.

    NVRTC saves registers, for as many groups as a multiprocessor could have. Where few come to it,
    items have more loads on their way with more of them.
    """
    share, model = -(-groups // target.compute_units), target.model
    roomy = share <= model.max_blocks and share * items * _PLENTY <= model.registers
    if attributes.min_blocks or not model.tensor_cores or not roomy:
        return attributes
    return replace(attributes, min_blocks=share)


def _power_of_two(size: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()
