"""Quantized convolutions on tensor cores with large tiles: cuda/conv_tile."""

from __future__ import annotations

from functools import partial

from litegpu.codegen import round_up
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import quantized
from litegpu.kernels.cuda.conv import conv_kernel
from litegpu.kernels.cuda.conv_tile import plan_tiles, tile_variables
from litegpu.kernels.cuda.conv_tile.tile import NARROWEST, WideProblem, WideTile
from litegpu.kernels.cuda.packing import BYTE_PART, CHUNKS, pack_byte_tiles
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.quantized_conv import QuantizedConvSpec

_MIN_ROWS = 32
"""Half of the smallest tile: products of fewer rows mainly load weights, which conv_mma does once.
"""


class QuantizedConvTile(Implementation):
    """A kernel that multiplies large tiles of bytes in shared memory: for many pixels."""

    name = "cuda/conv_tile"
    example = QuantizedConvExample((1, 256, 256, 64), 64, 3)
    small = QuantizedConvExample((1, 13, 11, 48), 40, 3)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        found = quantized.obstacle(spec, target)
        if found is not None:
            return found
        outputs, *_, inputs = spec.weights.shape
        if 2 * outputs * inputs < round_up(outputs, NARROWEST) * round_up(inputs, BYTE_PART):
            return Rejected("most products would be padding")
        if spec.dst.rows < _MIN_ROWS:
            return Rejected("most rows of a tile would be empty")
        problem = WideProblem.of(spec, False)
        # Warp groups multiply directly from shared memory, so the kernel cannot sum the inputs.
        return plan_tiles(problem, target, partial(_kernel, spec=spec), not spec.weight_zero)


def _kernel(
    node: Node, ctx: LowerContext, tile: WideTile, spec: QuantizedConvSpec
) -> KernelRequest:
    problem, columns = tile.problem, tile.column_blocks * tile.columns
    weights = pack_byte_tiles(spec.weights, problem.k_tiles, tile.columns, problem.grouped)
    steps = problem.k_tiles * CHUNKS // 2
    packed = quantized.packed(spec, weights, columns, BYTE_PART, steps, problem.grouped)
    variables = {
        **tile_variables(tile, spec.window, spec.src, spec.dst),
        "rowwise": spec.keeps_rows,
        **quantized.variables_of(spec),
    }
    name, target = QuantizedConvTile.name, ctx.target
    return conv_kernel(name, node, spec, tile, target, packed, variables, problem.unit)
