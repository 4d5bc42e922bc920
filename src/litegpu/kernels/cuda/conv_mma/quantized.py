"""Quantized convolutions on tensor cores that gather their input pixel by pixel: cuda/conv_mma."""

from __future__ import annotations

from functools import partial

from litegpu.codegen import round_up
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import quantized
from litegpu.kernels.cuda.conv import conv_kernel
from litegpu.kernels.cuda.conv_mma import tile_variables
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem, MmaTile, best_tiles
from litegpu.kernels.cuda.packing import BYTE_PART, BYTE_STEP, pack_bytes
from litegpu.kernels.cuda.tiles import TilePlan
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import QuantizedConvSpec


class QuantizedConvMma(Implementation):
    """A kernel that gathers the input pixel by pixel: for any window, best for few pixels."""

    name = "cuda/conv_mma"
    general = True
    example = QuantizedConvExample((1, 14, 14, 64), 64)
    small = QuantizedConvExample((1, 5, 4, 36), 20, kernel=3)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        found = quantized.obstacle(spec, target)
        if found is not None:
            return found
        problem = _problem_of(spec)
        tiles = best_tiles(problem, target)
        if isinstance(tiles, Rejected):
            return tiles
        key = ("conv_mma of bytes", problem)
        return TilePlan(key, tiles, partial(_kernel, spec=spec), tiles[0].clocks(target))


def _part(spec: QuantizedConvSpec) -> int:
    """Return the number of channels that a thread moves at a time."""
    return BYTE_PART if spec.src.aligned(BYTE_PART) else 4


def _problem_of(spec: QuantizedConvSpec) -> MmaProblem:
    part, (_, height, width, depth) = _part(spec), spec.weights.shape
    gathered = 0 if spec.keeps_rows else 30
    return MmaProblem(
        rows=spec.dst.rows,
        channels=spec.dst.channel_blocks * 4,
        steps=-(-height * width * round_up(depth, part) // BYTE_STEP),
        parts=1,
        weight_parts=1,
        products=1,
        loads=1 if spec.src.vector else 4,
        instructions=20 + gathered,
        pieces=BYTE_STEP // part,
    )


def _kernel(node: Node, ctx: LowerContext, tile: MmaTile, spec: QuantizedConvSpec) -> KernelRequest:
    part, columns = _part(spec), tile.all_columns
    weights = pack_bytes(spec.weights, part, tile.all_steps, columns, in_fours=True)
    packed = quantized.packed(spec, weights, columns, part, tile.all_steps)
    variables = {
        **tile_variables(tile),
        "ALL_PAIRS": columns // 16,
        "FILL_UNROLL": 8,
        "TF32": False,
        "SPLIT_A": False,
        "SPLIT_W": False,
        "PART": part,
        "input_blocks": -(-spec.weights.shape[3] // part),
        "pointwise": spec.keeps_rows,
        "depthwise": False,
        **quantized.variables_of(spec),
    }
    name, target = QuantizedConvMma.name, ctx.target
    return conv_kernel(name, node, spec, tile, target, packed, variables, Unit.INT8_MATRIX)
