"""Selects the tile of pixels and channel blocks that a work item of a portable kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.ops.base import LowerContext
from litegpu.ops.common.work_groups import by_load


@dataclass(frozen=True, slots=True)
class TileProblem:
    """The properties of a kernel that determine its tile of pixels and channel blocks."""

    template: str
    rows: int
    channel_blocks: int
    terms: tuple[int, ...]
    """The number of terms per sum: window size times the input's channel blocks or channels."""
    stored: str
    """Element type of the kernel's input."""
    whole_groups: bool = True
    """Whether two adjacent channel blocks always belong to the same group of channels."""
    group_blocks: int = 0
    """Channel blocks per group of channels; 0 if there is only one group."""

    @classmethod
    def of_conv(
        cls, template: str, dst: Storage, src: Storage, shape: Shape4, groups: int
    ) -> TileProblem:
        """Return the problem of a convolution with weights [O, H, W, I / groups] of this shape."""
        outputs, height, width, depth = shape
        whole_groups = groups == 1 or outputs // groups % 8 == 0
        terms = (height, width, -(-depth // 4))
        return cls(
            template,
            dst.rows,
            dst.channel_blocks,
            terms,
            src.dtype.value,
            whole_groups,
            (outputs // groups // 4 if groups > 1 else 0),
        )


_TILES: Sequence[tuple[int, int]] = ((4, 2), (4, 1), (2, 2), (2, 1), (1, 2))


def choose_tile(problem: TileProblem, ctx: LowerContext) -> tuple[int, int]:
    """Return the largest tile (pixels, blocks) that leaves the device enough work items.

    The autotuner may select a faster tile.
    """

    def items(tile: tuple[int, int]) -> int:
        return -(-problem.rows // tile[0]) * -(-problem.channel_blocks // tile[1])

    widest = min(problem.channel_blocks, 2 if problem.whole_groups else 1)
    fitting = [tile for tile in _TILES if tile[0] <= problem.rows and tile[1] <= widest]
    return ctx.choose(problem, by_load([*fitting, (1, 1)], items, ctx.target))
