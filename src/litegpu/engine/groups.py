"""Selects work-group shapes and register limits for kernels of independent work items."""

from __future__ import annotations

import math
from dataclasses import replace

from litegpu.codegen import LaunchAttributes
from litegpu.ops.base import Target
from litegpu.ops.common.work_groups import power_of_two

_ITEMS, _MANY_ITEMS = 64, 256
_ACROSS = 8
_WAVES = 8
"""Grids of at least this multiple of the device's parallel work items use large work groups.

A GPU starts about one work group per nanosecond, whatever the work group computes. With 400,000
work groups of 64 items, 48 of them idle, an H200 took 486 µs to move bytes that it can move in 16
µs.
"""
_PLENTY = 128
"""Number of registers per work item that is sufficient for most kernels; fewer registers slow these
kernels down.
"""


def group_for(
    grid: tuple[int, int, int], target: Target, moves_only: bool = True
) -> tuple[int, int, int]:
    """Return a work-group size for a grid of independent items that leaves few items idle.

    In a narrow grid, the work group is as wide as the grid. Kernels that only move data use large
    work groups on large grids; registers limit the size for other kernels.
    """
    across, down = (power_of_two(size) for size in grid[:2])
    many = moves_only and math.prod(grid) >= _WAVES * target.parallel_items
    items = _MANY_ITEMS if many and target.max_work_group_size >= _MANY_ITEMS else _ITEMS
    x = min(across, max(_ACROSS, items // down))
    return x, min(items // x, down), 1


def with_registers(
    attributes: LaunchAttributes, groups: int, items: int, target: Target
) -> LaunchAttributes:
    """Return launch attributes that let a launch of this many work groups use more registers.

    NVRTC limits the registers of a thread so that as many work groups as possible fit a
    multiprocessor. If there are few work groups per multiprocessor, more registers per item permit
    more loads in flight.
    """
    share, model = -(-groups // target.compute_units), target.model
    roomy = share <= model.max_blocks and share * items * _PLENTY <= model.registers
    if attributes.min_blocks or not model.tensor_cores or not roomy:
        return attributes
    return replace(attributes, min_blocks=share)
