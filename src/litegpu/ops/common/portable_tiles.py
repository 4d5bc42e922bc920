"""Tiles of pixels and channel blocks that a work item of a portable kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.ops.base import LowerContext
from litegpu.ops.common.work_groups import by_load


@dataclass(frozen=True, slots=True)
class TileProblem:
    """What determines tiles of pixels and channel blocks."""

    template: str
    rows: int
    channel_blocks: int
    terms: tuple[int, ...]
    """The number of summed terms: the window, and the channel blocks or channels of the input."""
    stored: str
    """Type of the input's elements."""
    whole_groups: bool = True
    """Whether two adjacent channel blocks always belong to one group of channels."""
    group_blocks: int = 0
    """Channel blocks of a group of channels; 0 if there is one group."""

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
    """Return a tile (pixels, blocks): the largest that still leaves the device enough work items.

    It may be another one if that was measured to be faster.
    """

    def items(tile: tuple[int, int]) -> int:
        return -(-problem.rows // tile[0]) * -(-problem.channel_blocks // tile[1])

    widest = min(problem.channel_blocks, 2 if problem.whole_groups else 1)
    fitting = [tile for tile in _TILES if tile[0] <= problem.rows and tile[1] <= widest]
    return ctx.choose(problem, by_load([*fitting, (1, 1)], items, ctx.target))
