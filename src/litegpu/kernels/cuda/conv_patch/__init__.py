"""Convolutions with overlapping windows, using patches in shared memory: cuda/conv_patch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle_to_halves
from litegpu.kernels.cuda.conv_patch.tile import PART, PatchProblem, PatchTile, candidates
from litegpu.kernels.cuda.halves import halves_of, parts_of, spread_taps
from litegpu.kernels.cuda.tiles import TilePlan, choose
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.halves import as_halves
from litegpu.ops.common.lazy_array import LazyArray

_FLOATS = npt.NDArray[np.float32]
_OVERLAPS = 4
"""Minimum number of windows per pixel, which is how often a block reads a pixel from shared memory.
"""
_MAX_CLOCK_RATIO = 0.7
"""Maximum ratio of this kernel's estimated time to the estimated time of the other kernel."""


class ConvPatch(Implementation):
    """A kernel that stores a patch of the image in shared memory: for overlapping windows."""

    name = "cuda/conv_patch"
    example = ConvExample((1, 192, 192, 16), 16, kernel=3)
    small = ConvExample((1, 12, 17, 12), 20, kernel=3)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = obstacle_to_halves(spec, target)
        if found is not None:
            return found
        view, src, dst = spec.window, spec.src, spec.dst
        taps, step = math.prod(view.kernel), math.prod(view.stride)
        if taps < _OVERLAPS * step or min(view.kernel) < 2:
            return Rejected("the windows overlap too little")
        problem = PatchProblem(
            image=(src.shape[1], src.shape[2]),
            output=(dst.shape[1], dst.shape[2]),
            batch=dst.shape[0],
            channels=spec.weights.shape[3],
            outputs=dst.channel_blocks * 4,
            view=view,
            split_values=src.dtype is DType.FLOAT32,
            split_weights=parts_of(spec.array, target, siblings=spec.weights.siblings) > 1,
        )
        tiles = choose(candidates(problem), target)
        if isinstance(tiles, Rejected):
            return tiles
        key, best = ("conv_patch", problem), tiles[0].clocks(target)
        return TilePlan(key, tiles, partial(_kernel, spec=spec), best, _MAX_CLOCK_RATIO)


def _kernel(node: Node, ctx: LowerContext, tile: PatchTile, spec: ConvSpec) -> KernelRequest:
    problem = tile.problem
    siblings = spec.weights.siblings
    halves = halves_of(spec.array, ctx.target, problem.split_weights, siblings)
    packed = Packed(pack_steps(halves.parts, tile), halves.back, spec.weights.bias, tile.columns)
    variables: dict[str, Any] = {
        "SPLIT_A": problem.split_values,
        "SPLIT_W": problem.split_weights,
        "RANGED": spec.src.dtype is DType.FLOAT32,
        "WARPS": tile.warps,
        "ROWS": tile.rows,
        "N_TILES": tile.n_tiles,
        "CHUNKS": problem.chunks,
        "PITCH": problem.pitch,
        "STEPS": problem.steps,
        "patch": tile.patch,
        "tiles": tile.tiles,
        "input_blocks": -(-spec.weights.shape[3] // 4),
    }
    target, name = ctx.target, ConvPatch.name
    return conv_kernel(name, node, spec, tile, target, packed, variables, products=problem.products)


def pack_steps(parts: list[_FLOATS], tile: PatchTile) -> LazyArray:
    """Arrange [O, H, W, I] for mma.m16n8k16: [block, step, part, 8 columns, lane] of 2 words.

    A lane holds inputs 2 * (lane % 4) + {0, 1}, and the inputs 8 further, of column lane / 4.
    """
    steps, columns = tile.problem.steps, tile.columns

    def fill(out: npt.NDArray[Any]) -> None:
        ordered = out.reshape(-1, steps, len(parts), tile.n_tiles, PART, 4, 2)
        for number, weights in enumerate(parts):
            flat = as_halves(spread_taps(weights, columns, PART, steps * 2 * PART))
            # [block, n-tile, column, step, half of the inputs, lane % 4]
            split = flat.view(np.uint32).reshape(-1, tile.n_tiles, PART, steps, 2, 4)
            ordered[:, :, number] = split.transpose(0, 3, 1, 2, 5, 4)

    return LazyArray(np.dtype(np.uint32), len(parts) * columns * steps * PART, fill)
