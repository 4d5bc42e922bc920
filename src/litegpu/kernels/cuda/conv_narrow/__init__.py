"""Convolutions of dense images with few channels, on tensor cores: when cuda/conv_narrow pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage
from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import conv_mma, tensor_cores
from litegpu.kernels.cuda.conv_narrow.tile import COLUMNS, WIDE, Problem, Tile
from litegpu.kernels.cuda.halves import parts_of
from litegpu.kernels.cuda.split_conv import TOO_LARGE, SplitLaunch, SplitPlan, split_kernel
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.window import Pair, Window

_FLOATS = npt.NDArray[np.float32]
_MOST_CHANNELS = 4
"""Channels of an image, with its padding; more of them are chunks that other kernels take."""
_SHARED_LIMIT = 72 << 10
"""Shared memory of a block; three blocks fit a multiprocessor."""
_MOST_STEPS = 48
"""Steps of a sum, all of which are written out."""


class ConvNarrow(Implementation):
    """Keeps whole rows of an image with few channels on the chip."""

    name = "cuda/conv_narrow"

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = tensor_cores.obstacle_to_halves(spec, target)
        if found is not None:
            return found
        src, dst = spec.src, spec.dst
        if not _is_narrow(src, spec.window):
            return Rejected("its windows are no runs of few channels")
        rounded = spec.may_round(target)
        problem = Problem(
            image=(src.shape[1], src.shape[2]),
            output=(dst.shape[1], dst.shape[2]),
            batch=dst.shape[0],
            channels=src.pitch,
            outputs=dst.slices * 4,
            view=spec.window,
            stored=src.dtype.value,
            whole=not any(length % 4 for length in (*src.strides[:2], src.offset)),
            split_values=src.dtype is DType.FLOAT32 and not rounded,
            split_weights=parts_of(spec.array, target, not rounded) > 1,
        )
        if problem.steps > _MOST_STEPS:
            return TOO_LARGE
        ranked = sorted(_tiles(problem, target), key=lambda tile: _clocks(tile, problem, target))
        if not ranked:
            return Rejected("too few tiles to keep the device busy")
        best = _clocks(ranked[0], problem, target)
        # What it rounds is better left in float32: half would put padding between the pixels.
        tiles = ranked[:_CANDIDATES]
        return SplitPlan("conv_narrow", spec, problem, tiles, _kernel, best, _WORTH)


def _is_narrow(src: Storage, view: Window) -> bool:
    """Whether the windows of `src` are runs of few channels, with nothing else in between."""
    dense = src.pitch == src.lanes and src.strides[1] == src.shape[2] * src.pitch
    few = src.pitch <= _MOST_CHANNELS and view.kernel[1] > 1
    return dense and few and view.dilation[1] == 1 and view.plain


_CANDIDATES = 6
_WORTH = 0.6
"""How much less time than the other kernel's the estimate must promise; neither is exact."""
_BLOCKS_PER_UNIT = 2
"""Blocks that each multiprocessor should get: while one reads its patch, another multiplies."""
_TURNS = 2
"""Turns of a warp that make up for the patch and the weights that a block reads first."""


def _tiles(problem: Problem, target: Target) -> Iterator[Tile]:
    tiles_across = -(-problem.output[1] // WIDE)
    widths = sorted({-(-tiles_across // parts) for parts in (1, 2, 3, 4, 8)})
    for warps_n, pairs in ((1, 1), (1, 2), (2, 2), (1, 4), (2, 1)):
        if warps_n * pairs >= 2 * problem.pairs:
            continue
        for warps in (4, 8):
            for rows in (1, 2, 4, 8):
                for across in widths:
                    tile = Tile(rows, across, warps // warps_n, warps_n, pairs)
                    if _is_possible(tile, problem, target):
                        yield tile


def _is_possible(tile: Tile, problem: Problem, target: Target) -> bool:
    blocks = math.prod(tile.blocks(problem)) * problem.batch
    busy = blocks >= _BLOCKS_PER_UNIT * target.compute_units
    return busy and tile.turns >= _TURNS and 16 * tile.units(problem) <= _SHARED_LIMIT


# Clocks of a multiprocessor, by what the compiled kernels consist of.
_WAIT_CLOCKS = 900.0
"""From the first load of a patch to the last one's arrival, from the device's memory."""
_ISSUED_PER_CLOCK = 4.0
"""Instructions of a warp."""
_BLOCK_INSTRUCTIONS = 120.0
"""Of a warp, for places and weights."""
_FILL_INSTRUCTIONS = 45.0
"""For one unit of the patch, from its place to its halves; a split takes half as many more."""
_STORE_INSTRUCTIONS = 35.0
"""For 4 channels of a pixel, from sums to what is stored."""
_PRODUCT_CLOCKS = 2.0
"""Of instructions whose operands are there already: Clocks.product counts waiting for them, too."""
_SHARED_CLOCKS = 1.0
"""For each word of shared memory that a lane loads."""
_TURN_INSTRUCTIONS = 40.0
_STEP_CLOCKS = 40.0
"""Of a warp that waits for its values and for the sums of the step before."""
_TURN_CLOCKS = 200.0
"""Of a warp, from one turn to the next, beside its steps."""


def _clocks(tile: Tile, problem: Problem, target: Target) -> float:
    """Estimate a kernel's clocks: what units are busy with, and what they wait for."""
    clocks = target.model.clocks
    blocks = math.prod(tile.blocks(problem)) * problem.batch
    per_unit = -(-blocks // target.compute_units)
    patch, steps = tile.patch(problem), problem.steps
    warps = tile.warps_m * tile.warps_n
    filled = patch.rows * patch.units / 32
    turns = tile.turns * warps
    products = steps * tile.pairs * 2 * problem.products
    values = steps * 4 * (1 + problem.split_values)
    weights = steps * tile.pairs * 4 * problem.parts / tile.together(problem)
    weights *= not tile.held(problem)
    stored = tile.pairs * 2
    issued = products + values + weights / 4 + stored * _STORE_INSTRUCTIONS + _TURN_INSTRUCTIONS
    fill = filled * _FILL_INSTRUCTIONS * (1 + problem.split_values / 2) / _ISSUED_PER_CLOCK
    each_turn = max(
        issued / _ISSUED_PER_CLOCK,
        products * _PRODUCT_CLOCKS,
        (values + weights) * _SHARED_CLOCKS,
    )
    shared = 16 * tile.units(problem)
    room = target.model.resident_blocks(tile.threads, tile.registers(problem), shared)
    together = max(1, min(per_unit, room))
    size = 4 if problem.stored == "float32" else 2
    read = patch.rows * patch.units * patch.unit * size / clocks.memory_bytes
    begin = warps * _BLOCK_INSTRUCTIONS / _ISSUED_PER_CLOCK
    begin += warps * steps * problem.parts * tile.pairs * 4 * _SHARED_CLOCKS
    worked = begin + fill + turns * each_turn
    # Outputs are counted as half; weights are copied from the cache.
    moved = read + turns * stored * 256 / clocks.memory_bytes
    moved += 16 * tile.weight_units(problem) / clocks.cached_bytes
    # The more blocks a multiprocessor has, the more often one works while another waits for memory.
    busy = max(worked, moved) + min(worked, moved) / together
    # The first blocks read at the same time, with nothing to do meanwhile; the last go on alone.
    last = tile.turns * (steps * _STEP_CLOCKS + _TURN_CLOCKS) / 2
    waits = _WAIT_CLOCKS * -(-per_unit // together)
    return per_unit * busy + together * read + last + waits


def _kernel(
    node: Node, ctx: LowerContext, tile: Tile, problem: Problem, spec: ConvSpec
) -> KernelRequest:
    patch, blocks = tile.patch(problem), tile.blocks(problem)
    all_pairs = blocks[2] * tile.warps_n * tile.pairs
    lanes = all_pairs * COLUMNS
    launch = SplitLaunch("cuda/conv_narrow", tile.threads, blocks, tile.units(problem), lanes)
    variables: dict[str, Any] = {
        "ROWS": tile.rows,
        "ACROSS": tile.across,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "PAIRS": tile.pairs,
        "ALL_PAIRS": all_pairs,
        "STEPS": problem.steps,
        "LANES": problem.channels,
        "STEP": problem.step,
        "TOGETHER": tile.together(problem),
        "HELD": tile.held(problem),
        "SIDE_BY_SIDE": ctx.target.model.resident_blocks(tile.threads, tile.registers(problem), 0),
        "WEIGHTS_AT": patch.units_of_16,
        **patch.words(),
    }

    def pack(parts: list[_FLOATS]) -> npt.NDArray[np.uint32]:
        return pack_groups(parts, problem, lanes)

    return split_kernel(node, ctx, problem, launch, spec, pack, variables)


def pack_groups(parts: list[_FLOATS], problem: Problem, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as the kernel multiplies it: see `Problem.groups` and `pack_halves`.

    The columns of a pair are ordered so that each lane gets sums of 4 neighbouring channels.
    """
    run, seen = problem.run, set[Pair]()
    index = []
    for place in (place for group in problem.groups for place in group):
        for value in (2 * place[1], 2 * place[1] + 1):
            known = value < run and place not in seen
            index.append(place[0] * run + value if known else -1)
        seen.add(place)
    arranged = []
    for weights in parts:
        lanes = np.pad(weights, [(0, 0)] * 3 + [(0, problem.channels - weights.shape[3])])
        flat = lanes.reshape(lanes.shape[0], -1)
        # What the index -1 takes is a column of zeros.
        matrix = np.pad(flat, ((0, columns - flat.shape[0]), (0, 1)))[:, index]
        split = matrix.reshape(columns // COLUMNS, 4, 2, 2, len(index)).transpose(0, 2, 1, 3, 4)
        arranged.append(split.reshape(columns, 1, 1, len(index)))
    return conv_mma.pack_halves(arranged, problem.steps, columns)
