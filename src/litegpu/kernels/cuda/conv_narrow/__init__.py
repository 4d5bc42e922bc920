"""Convolutions of unpadded images with few channels, on tensor cores: cuda/conv_narrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage
from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle_to_halves
from litegpu.kernels.cuda.conv_narrow.patch import COLUMNS, NarrowProblem
from litegpu.kernels.cuda.conv_narrow.tile import NarrowTile, candidates
from litegpu.kernels.cuda.halves import halves_of, parts_of
from litegpu.kernels.cuda.packing import pack_halves
from litegpu.kernels.cuda.tiles import TOO_LARGE, TilePlan, choose
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.window import Pair, Window

_FLOATS = npt.NDArray[np.float32]
_Element = TypeVar("_Element", bound=np.generic)
_Tile = TypeVar("_Tile", bound=NarrowTile)
_MAX_CHANNELS = 4
"""Maximum number of channels, including padding; other kernels process images with more channels.
"""
_MAX_STEPS = 48
"""Maximum number of steps of a sum, since the kernel unrolls all steps."""
_MAX_CLOCK_RATIO = 0.8
"""Maximum ratio of this kernel's estimated time to the estimated time of the other kernel."""
_TOO_FEW = Rejected("too few tiles to keep the device busy")


class ConvNarrow(Implementation):
    """A kernel that stores whole rows of an image with few channels in shared memory."""

    name = "cuda/conv_narrow"
    example = ConvExample((1, 384, 384, 3), 8, kernel=9)
    small = ConvExample((1, 13, 21, 3), 8, kernel=5)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        problem = narrow_problem(spec, target)
        if isinstance(problem, Rejected):
            return problem
        # Its rounded input should stay float32: storing it as half would add padding between the
        # pixels.
        return plan_tiles("conv_narrow", problem, target, partial(narrow_kernel, spec=spec))


def narrow_problem(spec: ConvSpec, target: Target) -> NarrowProblem | Rejected:
    """Return the problem of a convolution, or why cuda/conv_narrow cannot compute it."""
    found = obstacle_to_halves(spec, target)
    if found is not None:
        return found
    src, dst = spec.src, spec.dst
    if not _is_narrow(src, spec.window):
        return Rejected("the rows of a window are not contiguous with few channels")
    rounded = spec.may_round(target)
    return NarrowProblem(
        image=(src.shape[1], src.shape[2]),
        output=(dst.shape[1], dst.shape[2]),
        batch=dst.shape[0],
        channels=src.pitch,
        outputs=dst.channel_blocks * 4,
        view=spec.window,
        stored=src.dtype.value,
        whole=not any(length % 4 for length in (*src.strides[:2], src.offset)),
        split_values=src.dtype is DType.FLOAT32 and not rounded,
        split_weights=parts_of(spec.array, target, not rounded, spec.weights.siblings) > 1,
    )


def plan_tiles(
    name: str,
    problem: NarrowProblem,
    target: Target,
    kernel: Callable[[Node, LowerContext, NarrowTile], KernelRequest],
) -> Plan | Rejected:
    """Return the tiles to be measured, or why this kernel should not compute the problem."""
    tiles = choose_tiles(problem, candidates(problem, target), target)
    if isinstance(tiles, Rejected):
        return tiles
    return TilePlan((name, problem), tiles, kernel, tiles[0].clocks(target), _MAX_CLOCK_RATIO)


def choose_tiles(
    problem: NarrowProblem, tiles: Iterable[_Tile], target: Target
) -> list[_Tile] | Rejected:
    """Return the tiles that should be measured, the best first."""
    if problem.steps > _MAX_STEPS:
        return TOO_LARGE
    return choose(tiles, target, _TOO_FEW)


def _is_narrow(src: Storage, view: Window) -> bool:
    """Whether the windows of `src` read contiguous runs of few channels."""
    unpadded = src.pitch == src.padded_channels and src.strides[1] == src.shape[2] * src.pitch
    few = src.pitch <= _MAX_CHANNELS and view.kernel[1] > 1
    return unpadded and few and view.dilation[1] == 1 and view.plain


def narrow_kernel(node: Node, ctx: LowerContext, tile: NarrowTile, spec: ConvSpec) -> KernelRequest:
    """Return the launch of a tile."""
    problem = tile.problem
    siblings = spec.weights.siblings
    halves = halves_of(spec.array, ctx.target, problem.split_weights, siblings)
    columns = tile.all_pairs * COLUMNS
    together = tile.together(spec.dst)
    weights = pack_quads(halves.parts, problem, columns, max(1, together))
    packed = Packed(weights, halves.back, spec.weights.bias, columns)
    ranged = spec.src.dtype is DType.FLOAT32
    variables = {**tile_variables(tile), "RANGED": ranged, "TOGETHER": together}
    target, name = ctx.target, ConvNarrow.name
    return conv_kernel(name, node, spec, tile, target, packed, variables, products=problem.products)


def tile_variables(tile: NarrowTile) -> dict[str, Any]:
    """Return the template variables of a tile."""
    problem, patch = tile.problem, tile.patch
    return {
        "SPLIT_A": problem.split_values,
        "SPLIT_W": problem.split_weights,
        "POOL": tile.pool_words,
        "ROWS": tile.rows,
        "ACROSS": tile.across,
        "TILE": tile.extent,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "PAIRS": tile.pairs,
        "ALL_PAIRS": tile.all_pairs,
        "STEPS": problem.steps,
        "LANES": problem.channels,
        "STEP": problem.step,
        "M_TILES": tile.m_tiles,
        "IN_REGISTERS": tile.in_registers,
        "tiles": tile.tiles,
        **patch.words(),
    }


def pack_quads(parts: list[_FLOATS], problem: NarrowProblem, columns: int, pairs: int) -> LazyArray:
    """Arrange [O, H, W, I] in the kernel's layout: see arrange_quads, pack_halves."""
    arranged = [arrange_quads(weights, problem, columns, pairs) for weights in parts]
    return pack_halves([each[:, None, None] for each in arranged], problem.steps, columns)


def arrange_quads(
    weights: npt.NDArray[_Element], problem: NarrowProblem, columns: int, pairs: int
) -> npt.NDArray[_Element]:
    """Arrange [O, H, W, I] as [columns, inputs], with inputs in the order of NarrowProblem.quads.

    The columns of each of the `pairs` are ordered so that each lane gets sums of 4 adjacent
    channels.
    """
    run, seen = problem.run, set[Pair]()
    index = []
    for tap in (tap for quad in problem.quads for tap in quad):
        for value in (2 * tap[1], 2 * tap[1] + 1):
            known = value < run and tap not in seen
            index.append(tap[0] * run + value if known else -1)
        seen.add(tap)
    lanes = np.pad(weights, [(0, 0)] * 3 + [(0, problem.channels - weights.shape[3])])
    flat = lanes.reshape(lanes.shape[0], -1)
    # Index -1 selects a column of zeros.
    matrix = np.pad(flat, ((0, columns - flat.shape[0]), (0, 1)))[:, index]
    # [pairs, lane of a pixel, column of an instruction, two channels]
    split = matrix.reshape(-1, 4, 2 * pairs, 2, len(index)).transpose(0, 2, 1, 3, 4)
    return split.reshape(columns, len(index))
