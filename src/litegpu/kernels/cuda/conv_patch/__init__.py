"""Convolutions whose windows overlap, on tensor cores: when cuda/conv_patch pays, its tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import tensor_cores
from litegpu.kernels.cuda.halves import parts_of, spread_taps
from litegpu.kernels.cuda.split_conv import (
    TOO_LARGE,
    SplitLaunch,
    SplitPlan,
    SplitProblem,
    split_kernel,
)
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.halves import as_halves
from litegpu.ops.window import Pair, Window

_FLOATS = npt.NDArray[np.float32]
_WIDE = 16
"""Pixels of a row that a matrix instruction takes."""
_PART = 8
"""Channels of a chunk; a step of the instruction takes two chunks."""
_SHARED_LIMIT = 72 << 10
"""Shared memory of a block; three blocks fit a multiprocessor."""
_MOST_SUMS = 64
"""Sums of a thread, in registers."""


@dataclass(frozen=True, slots=True)
class Problem(SplitProblem):
    """A convolution whose pixels are chunks of channels."""

    @property
    def chunks(self) -> int:
        return -(-self.channels // _PART)

    @property
    def pitch(self) -> int:
        """Halves from one pixel of a patch to the next: an odd number of chunks."""
        return (self.chunks | 1) * _PART

    @property
    def steps(self) -> int:
        return -(-math.prod(self.view.kernel) * self.chunks // 2)


@dataclass(frozen=True, slots=True)
class Tile:
    """A block makes `rows` rows of 16 pixels x `groups` * 8 channels with `warps` warps."""

    rows: int
    warps: int
    groups: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def patch(self, view: Window) -> Pair:
        """Return the rows and columns of the image that the windows of a tile cover."""
        height, width = (
            (size - 1) * stride + (kernel - 1) * dilation + 1
            for size, stride, kernel, dilation in zip(
                (self.rows, _WIDE), view.stride, view.kernel, view.dilation, strict=True
            )
        )
        return height, width

    def blocks(self, problem: Problem) -> tuple[int, int, int]:
        """Return how many tiles lie below each other, side by side, and behind each other."""
        height, width = problem.output
        columns = -(-problem.outputs // (self.groups * _PART))
        return -(-height // self.rows), -(-width // _WIDE), columns

    def weight_units(self, problem: Problem) -> int:
        """Return the units of 16 bytes that the weights of a block take up."""
        return problem.steps * (1 + problem.split_weights) * self.groups * 16

    def value_units(self, problem: Problem) -> int:
        """Return the units of 16 bytes for the patch, or for the sums that reuse its memory."""
        pixels = math.prod(self.patch(problem.view))
        values = pixels * problem.pitch * 2 * (1 + problem.split_values)
        sums = self.rows * _WIDE * (self.groups * _PART + 4) * 4
        return -(-max(values, sums) // 16)

    def units(self, problem: Problem) -> int:
        """Return all the shared memory of a block, in units of 16 bytes."""
        offsets = -(-problem.steps * 2 * 4 // 16)
        return self.value_units(problem) + self.weight_units(problem) + offsets


class ConvPatch(Implementation):
    """Keeps a patch of the image on the chip: for windows that overlap."""

    name = "cuda/conv_patch"

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = tensor_cores.obstacle_to_halves(spec, target)
        if found is not None:
            return found
        view, src, dst = spec.window, spec.src, spec.dst
        taps, step = math.prod(view.kernel), math.prod(view.stride)
        if taps < _OVERLAPS * step or min(view.kernel) < 2:
            return Rejected("its windows overlap too little")
        problem = Problem(
            image=(src.shape[1], src.shape[2]),
            output=(dst.shape[1], dst.shape[2]),
            batch=dst.shape[0],
            channels=spec.weights.shape[3],
            outputs=dst.slices * 4,
            view=view,
            split_values=src.dtype is DType.FLOAT32,
            split_weights=parts_of(spec.array, target) > 1,
        )
        ranked = sorted(_tiles(problem), key=lambda tile: _clocks(tile, problem, target))
        if not ranked:
            return TOO_LARGE
        best = _clocks(ranked[0], problem, target)
        tiles = ranked[:_CANDIDATES]
        return SplitPlan("conv_patch", spec, problem, tiles, _kernel, best, _WORTH)


_CANDIDATES = 4
_OVERLAPS = 4
"""Windows that a pixel must be part of: what is stored once is then read so many times."""
_WORTH = 0.7
"""How much less time than the other kernel's the estimate must promise; neither is exact."""


def _tiles(problem: Problem) -> Iterator[Tile]:
    for warps in (8, 4, 2):
        for turns in (1, 2, 4):
            for groups in (1, 2, 4, 8):
                tile = Tile(warps * turns, warps, groups)
                sums = turns * groups * 4 * (1 + (problem.products > 1))
                wasted = groups > 1 and (groups // 2) * _PART >= problem.outputs
                fits = 16 * tile.units(problem) <= _SHARED_LIMIT
                if fits and not wasted and sums <= _MOST_SUMS:
                    yield tile


# Clocks of a multiprocessor.
_MATRIX_CLOCKS = 4.0
"""A matrix load moves 512 bytes of shared memory, 128 per clock; weights of 8 columns are 256."""
_FILL_INSTRUCTIONS = 60
"""For one slice of the patch, from its place to its halves."""
_STEP_CLOCKS = 40.0
"""What one step of a warp waits for its operands."""
_REGISTERS = 128
"""Of a thread."""


def _clocks(tile: Tile, problem: Problem, target: Target) -> float:
    """Estimate a kernel's clocks: what units are busy with, and what they wait for."""
    clocks = target.model.clocks
    down, across, columns = tile.blocks(problem)
    per_unit = -(-down * across * columns * problem.batch // target.compute_units)
    slices = math.prod(tile.patch(problem.view)) * problem.chunks * 2
    halves, parts = 1 + problem.split_values, 1 + problem.split_weights
    loads = tile.rows * halves + tile.warps * tile.groups * parts / 2
    products = tile.rows * tile.groups * problem.products
    each_step = max(products * clocks.product, loads * _MATRIX_CLOCKS)
    stored = tile.rows * _WIDE * tile.groups * 2
    busy = (
        slices * _FILL_INSTRUCTIONS * clocks.instruction
        + problem.steps * each_step
        + stored * _FILL_INSTRUCTIONS * clocks.instruction
    )
    waits = clocks.load * (2 + slices / (tile.threads * 8)) + _STEP_CLOCKS * problem.steps
    room = target.model.resident_blocks(tile.threads, _REGISTERS, 16 * tile.units(problem))
    together = max(1, min(per_unit, room))
    return per_unit * busy + waits * -(-per_unit // together)


def _kernel(
    node: Node, ctx: LowerContext, tile: Tile, problem: Problem, spec: ConvSpec
) -> KernelRequest:
    blocks = tile.blocks(problem)
    lanes = blocks[2] * tile.groups * _PART
    launch = SplitLaunch("cuda/conv_patch", tile.threads, blocks, tile.units(problem), lanes)
    variables: dict[str, Any] = {
        "WARPS": tile.warps,
        "ROWS": tile.rows,
        "NT": tile.groups,
        "CHUNKS": problem.chunks,
        "PITCH": problem.pitch,
        "STEPS": problem.steps,
        "WEIGHTS_AT": tile.value_units(problem),
        "patch": tile.patch(problem.view),
        "input_slices": -(-spec.weights.shape[3] // 4),
    }

    def pack(parts: list[_FLOATS]) -> npt.NDArray[np.uint32]:
        return pack_steps(parts, problem.steps, tile)

    return split_kernel(node, ctx, problem, launch, spec, pack, variables)


def pack_steps(parts: list[_FLOATS], steps: int, tile: Tile) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k16 has it: [block, step, part, 8 columns, lane] of 2.

    A lane holds inputs 2 * (lane % 4) + {0, 1} and those 8 further, of column lane / 4.
    """
    blocks = -(-parts[0].shape[0] // (tile.groups * _PART))
    columns, length = blocks * tile.groups * _PART, steps * 2 * _PART
    flat = np.stack([as_halves(spread_taps(w, columns, _PART, length)) for w in parts])
    # [part, block, group, column, step, half of the inputs, lane % 4, two inputs]
    split = flat.reshape(len(parts), -1, tile.groups, _PART, steps, 2, 4, 2)
    ordered = split.transpose(1, 4, 0, 2, 3, 6, 5, 7)
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint32)
