"""Depthwise and pointwise convolutions fused into one kernel of warp groups: cuda/separable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.halves import halves_of, padded
from litegpu.kernels.cuda.packing import pack_tiles
from litegpu.kernels.cuda.separable.stream import StreamTile, pays, streams
from litegpu.kernels.cuda.separable.tile import (
    SeparableProblem,
    SeparableTile,
    candidates,
    patches,
    wasted_pixels,
)
from litegpu.kernels.cuda.tiles import TilePlan, TileTarget, choose
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec, Depthwise, pixels_of
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import Window, readers

_STREAM = "cuda/separable_stream"
"""The kernel template for persistent blocks."""
_FILLED = 0.6
"""Minimum fraction of the patches' pixels that must be inside the image."""
_MIN_ELEMENTS = 1 << 21
"""Minimum number of values for which the "fp16" policy would store the intermediate as half."""
_MIN_PIXELS = 1 << 15
"""Minimum number of pixels, so that each multiprocessor of a large GPU gets two patches."""
_MAX_CHANNELS = 256
"""Maximum number of channels of a patch for which two blocks fit the shared memory."""
_MAX_TAPS = 25
"""Maximum number of multiplications per result, since the kernel unrolls all of them."""
_ERROR = 0.02
"""Relative error of the estimates: among tiles that differ by less, small blocks come first."""

_MARGIN = 1.3
"""Relative error of the estimates between kinds: persistent blocks must be faster by this factor.
"""


class Separable(Implementation):
    """A kernel whose warp groups compute all outputs of a patch of pixels, each only once."""

    name = "cuda/separable"
    also = (_STREAM,)
    example = ConvExample((16, 64, 64, 64), 128, depthwise=True)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        middle = spec.depthwise
        if middle is None or middle.expand is not None:
            return IN_MEMORY
        found = obstacle(spec, target) or _obstacle(middle, spec, target)
        if found is not None:
            return found
        src, dst = spec.src, spec.dst
        problem = SeparableProblem(
            src.shape, src.dtype.value, middle.shape, dst.channels, middle.window
        )
        tiles = tiles_for(problem, target)
        if isinstance(tiles, Rejected):
            return tiles
        return TilePlan(("separable", problem), tiles, partial(_kernel, spec=spec, middle=middle))


def tiles_for(
    problem: SeparableProblem, target: TileTarget
) -> Sequence[SeparableTile | StreamTile] | Rejected:
    """Return the tiles for a problem, best first; persistent blocks come first if faster."""
    others = choose(candidates(problem, target.model), target, error=_ERROR)
    if not pays(problem):
        return others
    found = streams(problem, target.model, target.compute_units)
    staying = choose(found, target, error=_ERROR)
    if isinstance(staying, Rejected):
        return others
    if isinstance(others, Rejected):
        return staying
    better = staying[0].clocks(target) * _MARGIN < others[0].clocks(target)
    return [*staying, *others] if better else [*others, *staying]


def _obstacle(middle: Depthwise, spec: ConvSpec, target: Target) -> Rejected | None:
    if not target.model.warp_groups:
        return Rejected("")  # the general implementation gives a better reason
    if middle.taps is None:
        return Rejected("the node computes a mean")
    if not _is_half(middle.shape, target):
        return Rejected("the result would not be stored as float16")
    if not _suits(middle.shape, middle.window):
        return Rejected("the result is small, or patches would be mostly padding")
    if not spec.src.vector:
        return Rejected("the number of input channels is not a multiple of four")
    if not np.isfinite(middle.taps).all():
        # Pixels outside the image are multiplied as zeros, too.
        return Rejected("the weights are not all finite")
    return None


def _suits(middle: Shape4, window: Window) -> bool:
    found = pixels_of(middle)
    if found < _MIN_PIXELS or math.prod(middle) < _MIN_ELEMENTS:
        return False
    if middle[3] > _MAX_CHANNELS:
        return False
    if math.prod(window.kernel) > _MAX_TAPS or not window.plain:
        return False
    wasted = min(wasted_pixels(patch, middle) for patch in patches(128))
    return found >= _FILLED * (found + wasted)


def _is_half(middle: Shape4, target: Target) -> bool:
    """Whether the depthwise convolution's result, if stored, would be stored as half."""
    return target.policy.stores_half(4 * math.prod(middle))


def _kernel(
    node: Node,
    ctx: LowerContext,
    tile: SeparableTile | StreamTile,
    spec: ConvSpec,
    middle: Depthwise,
) -> KernelRequest:
    dst, src, window, taps = spec.dst, spec.src, middle.window, middle.taps
    assert taps is not None
    channel_blocks = -(-src.channels // 4)
    halves = halves_of(spec.array, ctx.target, exact=False)
    weights = pack_tiles(halves.parts[0], tile.k_tiles, tile.columns)
    packed = Packed(weights, halves.back, spec.weights.bias, tile.column_blocks * tile.columns)
    if isinstance(tile, StreamTile):
        name, words = _STREAM, _words_of_stream(tile)
    else:
        name, words = Separable.name, _words_of_tile(tile)
    variables = {
        **words,
        "BN": tile.columns,
        "PATCH": tile.patch,
        "PIXELS": tile.pixels,
        "ROWS": tile.item[0],
        "COLUMNS": tile.item[1],
        "LOADS_AT_ONCE": tile.loads_at_once,
        "K_TILES": tile.k_tiles,
        "COLUMN_BLOCKS": tile.column_blocks,
        "LINES": round_up(middle.shape[1], tile.item[0]),
        "across": tile.tiles[1],
        "input_blocks": channel_blocks,
        "tap_blocks": channel_blocks,
        "rows": readers(window, 0, tile.item[0]),
        "columns": readers(window, 1, tile.item[1]),
        "one_by_one": (readers(window, 0, 1), readers(window, 1, 1)),
        "has_taps_bias": middle.bias is not None,
        "middle": middle.shape,
        **window.words(src.shape[1:3]),
    }
    kernel = conv_kernel(name, node, spec, tile, ctx.target, packed, variables)
    constants = {"weights": weights, "taps": padded(taps, channel_blocks * 4), **kernel.constants}
    if middle.bias is not None:
        constants["taps_bias"] = padded(middle.bias, channel_blocks * 4)
    return replace(
        kernel,
        constants=constants,
        inner_epilogue=middle.epilogue,
        work={
            **kernel.work,
            Unit.FP32: 2 * dst.rows * math.prod(window.kernel) * src.channels,
        },
        needed={"src": window.elements_read(dst.rows, src.padded_channels)},
    )


def _words_of_tile(tile: SeparableTile) -> dict[str, int]:
    return {
        "THREADS": tile.threads,
        "BM": tile.pixels,
        "PREFETCH": tile.prefetch,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
    }


def _words_of_stream(tile: StreamTile) -> dict[str, int]:
    return {
        "BM": tile.rows,
        "PRODUCERS": tile.producers,
        "MULTIPLIERS": tile.multipliers,
        "RING": tile.ring,
        "PATCHES": math.prod(tile.tiles),
        "BLOCKS": tile.blocks[1],
    }
