"""Selects the number of work items per reduction, and tiles by the device's load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from litegpu.ops.base import LowerContext, Target

_T = TypeVar("_T")
_SHARED_BYTES = 16
"""Bytes of shared memory for each item of a work group: a float4."""
_MIN_GROUP = 16
"""Minimum work-group size: smaller groups leave most lanes of a GPU's vector units idle."""


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def can_share(items: int, target: Target) -> bool:
    """Return whether the device permits a work group of this size with a float4 per item."""
    fits = items * _SHARED_BYTES <= target.local_memory_bytes
    return fits and items <= target.max_work_group_size


_COLUMNS = (8, 4, 2)
"""Channel blocks per work group of divided sums: adjacent items read up to 128 adjacent bytes."""
_SPLIT_K_ITEMS = (256, 128, 64, 32, 16)


@dataclass(frozen=True, slots=True)
class DividedSums:
    """Work groups whose items divide each sum: for results too small to keep the device busy.

    A group computes `rows` rows of `columns` channel blocks with `columns * items` work items.
    """

    rows: int
    columns: int
    items: int
    """Number of work items per sum."""

    @property
    def group(self) -> int:
        """Return the work-group size."""
        return self.items * self.columns

    def grid(self, channel_blocks: int, row_blocks: int) -> tuple[int, int, int]:
        """Return the work items for a result of channel blocks and blocks of `rows` rows."""
        return (-(-channel_blocks // self.columns) * self.group, row_blocks, 1)

    def words(self) -> dict[str, int]:
        """Return the template variables."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "ITEMS": self.items}


def divide_sums(
    row_blocks: int,
    rows: int,
    channel_blocks: int,
    steps: int,
    target: Target,
    adjacent: bool = True,
) -> DividedSums | str:
    """Return work groups that divide sums of `steps` loop steps, or why the device permits none.

    `adjacent`: whether the operands of adjacent channel blocks have adjacent addresses.
    """
    columns, groups = 1, row_blocks * channel_blocks
    if adjacent:
        wide = (each for each in _COLUMNS if groups >= each * target.compute_units)
        columns = next(wide, 1)
    for items in _SPLIT_K_ITEMS:
        if 2 * items <= steps and can_share(items * columns * rows, target):
            return DividedSums(rows, columns, items)
    return "the sums are too short, or the device permits too few work items"


_MIN_DIVIDED_KEYS = 128
"""Minimum number of keys for which a second kernel, which combines the parts, is profitable."""
_KEYS_OF_PARTS = ((1, 16), (4, 128))
"""Numbers of work groups per compute unit, each with the minimum number of keys of its parts.

16 keys are 4 adjacent vectors of values that lie as [depth, keys]. Further groups on a compute unit
hide the latency of loops over many keys, and distribute the work more evenly.
"""


def divide_keys(products: int, keys: int, target: Target) -> int:
    """Return how many work groups divide the keys of each product of an attention of few queries.

    Each compute unit gets one work group or several, if the parts have enough keys. Parts are whole
    blocks of 4 keys, all but the last of one size.
    """
    if keys < _MIN_DIVIDED_KEYS:
        return 1
    blocks = -(-keys // 4)
    wanted = max(
        min(max(1, target.compute_units * groups // products), keys // least)
        for groups, least in _KEYS_OF_PARTS
    )
    return -(-blocks // -(-blocks // wanted))


_WARP = 32
"""Number of threads in a CUDA warp."""


def shared_items(groups: int, terms: int, ctx: LowerContext) -> int:
    """Return the number of work items (a power of 2) that share a reduction of `terms` terms.

    The kernel runs `groups` reductions in parallel. If `groups` work items fill the device, a
    single work item computes a reduction.
    """
    items, target = 1, ctx.target
    # Twice as many must fit, since compute units need several groups at a time.
    while items < min(terms, 256) and can_share(4 * items, target):
        if groups * items >= target.parallel_items:
            break
        items *= 2
    return items if items >= _MIN_GROUP else 1


def lanes_of(items: int, target: Target, rows: int = 1) -> int:
    """Return how many work items of a reduction can add values without shared memory.

    In CUDA, the threads of a warp add values by shuffles, if groups of `rows` reductions are whole
    warps. OpenCL, WebGPU and OpenGL would need an extension for shuffles.
    """
    whole = items * rows % _WARP == 0
    return min(items, _WARP) if target.backend == "cuda" and whole else 1


def by_load(tiles: Sequence[_T], items: Callable[[_T], int], target: Target) -> tuple[_T, ...]:
    """Sort tiles by their suitability for the device; `tiles` lists the largest tile first.

    Tiles that give the device enough work items come first. Tiles that give the device too few work
    items follow, smallest first.
    """
    busy = [tile for tile in tiles if items(tile) >= target.parallel_items]
    return (*busy, *(tile for tile in reversed(tiles) if tile not in busy))
