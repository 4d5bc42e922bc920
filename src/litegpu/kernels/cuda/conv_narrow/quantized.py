"""Quantized convolutions of images with few channels, on tensor cores: cuda/conv_narrow."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import quantized
from litegpu.kernels.cuda.conv import Packed, conv_kernel
from litegpu.kernels.cuda.conv_narrow import arrange_quads, plan_tiles, tile_variables
from litegpu.kernels.cuda.conv_narrow.patch import BYTES_OF_PIXEL, COLUMNS, NarrowProblem
from litegpu.kernels.cuda.conv_narrow.tile import NarrowTile
from litegpu.kernels.cuda.packing import pack_bytes
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import Bytes, QuantizedConvSpec


class QuantizedConvNarrow(Implementation):
    """A kernel that stores whole rows of an image with few channels, one shared word per pixel."""

    name = "cuda/conv_narrow"
    example = QuantizedConvExample((1, 1024, 1024, 3), 32, kernel=7)
    small = QuantizedConvExample((1, 12, 20, 3), 24, kernel=5)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        found = quantized.obstacle(spec, target)
        if found is not None:
            return found
        src, dst, view = spec.src, spec.dst, spec.window
        few = spec.weights.shape[3] <= BYTES_OF_PIXEL and view.kernel[1] > 1
        if not few or view.dilation[1] > 1 or not view.plain:
            return Rejected("the rows of a window are not contiguous with few channels")
        problem = NarrowProblem(
            image=(src.shape[1], src.shape[2]),
            output=(dst.shape[1], dst.shape[2]),
            batch=dst.shape[0],
            channels=BYTES_OF_PIXEL // 2,
            outputs=dst.channel_blocks * 4,
            view=view,
            stored=src.dtype.value,
            whole=_is_whole(src),
            split_values=False,
            split_weights=False,
        )
        return plan_tiles("conv_narrow of bytes", problem, target, partial(_kernel, spec=spec))


def _is_whole(src: Storage) -> bool:
    """Whether rows of `src` consist of groups of 4 pixels, which are whole words."""
    layout = (src.shape[2], *src.strides[:2], src.offset)
    return src.pitch == src.padded_channels and not any(length % 4 for length in layout)


def _kernel(
    node: Node, ctx: LowerContext, tile: NarrowTile, spec: QuantizedConvSpec
) -> KernelRequest:
    problem, columns, dst = tile.problem, tile.all_pairs * COLUMNS, spec.dst
    together = tile.together(dst)
    weights = _pack(spec.weights, problem, columns, max(1, together))
    ones = _ones(spec.weights, problem) if spec.weight_zero else None
    packed = Packed(weights, None, spec.as_stored.folded_bias, columns, ones)
    variables = {
        **tile_variables(tile),
        "RANGED": False,
        "TOGETHER": together,
        **quantized.variables_of(spec),
    }
    name, target = QuantizedConvNarrow.name, ctx.target
    return conv_kernel(name, node, spec, tile, target, packed, variables, Unit.INT8_MATRIX)


def _pack(weights: Bytes, problem: NarrowProblem, columns: int, pairs: int) -> LazyArray:
    """Arrange [O, H, W, I] in the kernel's layout: see arrange_quads, pack_bytes."""
    missing = BYTES_OF_PIXEL - weights.shape[3]
    words = np.pad(weights, [(0, 0)] * 3 + [(0, missing)]).view(np.uint16)
    arranged = arrange_quads(words, problem, columns, pairs).view(np.int8)[:, None, None]
    return pack_bytes(arranged, BYTES_OF_PIXEL, problem.steps, columns)


def _ones(weights: Bytes, problem: NarrowProblem) -> npt.NDArray[np.uint32]:
    """Return 8 equal columns of 1 for each real input, 0 for padding: [step, lane % 4] of 2."""
    rows = np.ones_like(weights[:1]).repeat(COLUMNS, axis=0)
    packed_ones = _pack(rows, problem, COLUMNS, 1).make()
    return np.ascontiguousarray(packed_ones.reshape(problem.steps, 32, 4)[:, :4, :2]).reshape(-1)
