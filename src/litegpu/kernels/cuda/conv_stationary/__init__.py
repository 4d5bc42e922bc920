"""Quantized pointwise convolutions whose weights stay in registers: cuda/conv_stationary."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import quantized
from litegpu.kernels.cuda.conv import Packed, conv_kernel
from litegpu.kernels.cuda.conv_stationary.tile import (
    CHANNELS,
    StationaryProblem,
    StationaryTile,
    candidates,
)
from litegpu.kernels.cuda.packing import BYTE_STEP
from litegpu.kernels.cuda.tiles import TilePlan, choose
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import Bytes, QuantizedConvSpec

_MIN_ROWS = 64
"""Minimum number of pixels per multiprocessor, so that the kernel reuses weights in registers often
enough.
"""
_TOO_FEW = Rejected("too few pixels reuse the weights in registers")
_MAX_INPUTS = 256
"""Maximum length of sums: weights of longer sums leave too few registers for pixels."""
_TOO_LONG = Rejected("the weights do not fit into registers")


class QuantizedConvStationary(Implementation):
    """A kernel that keeps weights in registers while it processes many pixels: for short sums."""

    name = "cuda/conv_stationary"
    example = QuantizedConvExample((1, 256, 256, 64), 64)
    small = QuantizedConvExample((1, 13, 11, 48), 40)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        found = quantized.obstacle(spec, target)
        if found is not None:
            return found
        if not spec.keeps_rows:
            return Rejected("the output has another number of pixels than the input")
        rows, (outputs, *_, inputs) = spec.dst.rows, spec.weights.shape
        if rows < _MIN_ROWS * target.compute_units:
            return _TOO_FEW
        bytes_stored = spec.dst.dtype in (DType.INT8, DType.UINT8)
        together = bytes_stored and spec.dst.aligned(8) and outputs % 8 == 0
        if inputs > _MAX_INPUTS:
            return _TOO_LONG
        problem = StationaryProblem(rows, inputs, outputs, 1 + together, bool(spec.weight_zero))
        tiles = choose(candidates(problem, target), target, _TOO_LONG)
        if isinstance(tiles, Rejected):
            return tiles
        return TilePlan(("conv_stationary", problem), tiles, partial(_kernel, spec=spec))


def _kernel(
    node: Node, ctx: LowerContext, tile: StationaryTile, spec: QuantizedConvSpec
) -> KernelRequest:
    problem, channels = tile.problem, CHANNELS * tile.groups
    columns = tile.column_blocks * tile.warps_n * channels
    ones = _ones(problem) if spec.weight_zero else None
    weights = _pack(spec.weights, problem, columns, tile.groups)
    packed = Packed(weights, None, spec.as_stored.folded_bias, columns, ones)
    variables = {
        "PIXELS": tile.pixels,
        "GROUPS": tile.groups,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "WORDS": problem.words,
        "STEPS": problem.steps,
        "PARTS": problem.parts,
        "SETS": tile.positions,
        "WORKERS": tile.workers,
        "COLUMN_BLOCKS": tile.column_blocks,
        "VECTORS": spec.src.aligned(4 * problem.words),
        **quantized.variables_of(spec),
    }
    name, target = QuantizedConvStationary.name, ctx.target
    return conv_kernel(name, node, spec, tile, target, packed, variables, Unit.INT8_MATRIX)


def _pack(
    weights: Bytes, problem: StationaryProblem, columns: int, groups: int
) -> npt.NDArray[np.uint32]:
    """Arrange [O, 1, 1, I] as rows of mma.m16n8k32: [warp, step, matrix, lane] of 4 words.

    Rows g and g + 8 of matrix m are channels 4 * groups * g + 2 * m + {0, 1} of a warp.
    """
    flat = np.zeros((columns, problem.steps * BYTE_STEP), np.int8)
    flat[: len(weights), : weights.shape[3]] = weights[:, 0, 0]
    # [warp, g, matrix, row g or g + 8, step, half of the inputs, lane % 4]
    split = _in_steps(flat, problem).reshape(-1, 8, 2 * groups, 2, problem.steps, 2, 4)
    return np.ascontiguousarray(split.transpose(0, 4, 2, 1, 6, 5, 3)).reshape(-1)


def _ones(problem: StationaryProblem) -> npt.NDArray[np.uint32]:
    """Return a row with a 1 for each real input (0 for padding): [step, lane % 4] of 2 words."""
    flat = np.zeros((1, problem.steps * BYTE_STEP), np.int8)
    flat[:, : problem.inputs] = 1
    return np.ascontiguousarray(_in_steps(flat, problem)[0].transpose(0, 2, 1)).reshape(-1)


def _in_steps(flat: Bytes, problem: StationaryProblem) -> npt.NDArray[np.uint32]:
    """Arrange bytes [rows, inputs] as words [row, step, half, lane % 4], as lanes read them.

    A lane reads `words` adjacent words at a time, two per step.
    """
    # [row, chunk, lane % 4, step of the chunk, half]
    split = flat.view(np.uint32).reshape(len(flat), -1, 4, problem.words // 2, 2)
    return split.transpose(0, 1, 3, 4, 2).reshape(len(flat), problem.steps, 2, 4)
