"""Code shared by depthwise convolution kernels: their tiles and launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import register_of
from litegpu.graph import DType, Node
from litegpu.kernels.base import Plan
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common import weights, window
from litegpu.ops.common.depthwise_spec import DepthwiseSpec
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import Pair
from litegpu.ops.common.work_groups import by_load

_TILES = ((2, 4), (4, 4), (1, 4), (1, 2), (1, 1))
"""The tiles of depthwise convolutions: rows x columns per work item.

Tiles with more than two rows save a fifth of the loads but need twice the registers: such tiles are
only used if measurements select them.
"""
_MAX_TEXT = 512
"""Maximum number of unrolled multiplications; larger tiles compute one row in a loop."""


def tiles_of(spec: DepthwiseSpec, target: Target) -> tuple[Pair, ...]:
    """Return the tiles that are not larger than the result and whose kernels are not too long.

    The first tile is the largest that leaves the device enough work items.
    """
    _, height, width, _ = spec.dst.shape
    fitting = [tile for tile in _TILES if tile[0] <= max(height, 1) and tile[1] <= max(width, 1)]
    fitting = [tile for tile in fitting if tile[0] == 1 or _text(tile, spec) <= _MAX_TEXT]
    return by_load(fitting, lambda tile: spec.dst.channel_blocks * _parts(tile, spec), target)


def _text(tile: Pair, spec: DepthwiseSpec) -> int:
    return math.prod((*tile, *spec.window.kernel))


def _parts(tile: Pair, spec: DepthwiseSpec) -> int:
    n, height, width, _ = spec.dst.shape
    return n * -(-height // tile[0]) * -(-width // tile[1])


@dataclass(frozen=True, slots=True)
class DepthwisePlan(Plan):
    """The tiles of a kernel, best first; a work item computes a tile of one channel block."""

    template: str
    spec: DepthwiseSpec
    tiles: Sequence[Pair]
    as_floats: bool = False
    """Whether the kernel multiplies stored integers as floats, if floats represent the sums
    exactly.
    """

    @property
    def _local(self) -> tuple[int, int, int]:
        """Return the work-group shape: for bytes, 32 threads read the blocks of a cache line."""
        blocks, most = self.spec.dst.channel_blocks, 32 if self.as_floats else 8
        x = next(n for n in (most, 16, 8) if n <= max(blocks, 8))
        return x, 64 // x, 1

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec, view, src, dst = self.spec, self.spec.window, self.spec.src, self.spec.dst
        result = (*dst.shape[:3], dst.channel_blocks)
        problem = (self.template, src.shape, src.dtype.value, result, view)
        rows, columns = tile = ctx.choose(problem, self.tiles)
        return KernelRequest(
            template=self.template,
            grid=(dst.channel_blocks, _parts(tile, spec), 1),
            local=self._local,
            output=node.outputs[0],
            reads={"src": node.inputs[0]} | ({"taps": spec.computed} if spec.taps is None else {}),
            constants=_constants(spec, ctx, self.as_floats),
            variables={
                "ROWS": rows,
                "COLUMNS": columns,
                "rows": window.readers(view, 0, rows),
                "columns": window.readers(view, 1, columns),
                "kernel": view.kernel,
                "stride": view.stride,
                "dilation": view.dilation,
                "pads": view.pads,
                "padded": view.leaves(src.shape[1:3], dst.shape[1:3]),
                "multiplier": spec.multiplier,
                "has_bias": spec.bias is not None,
                "computed": spec.taps is None,
                "tap_blocks": dst.channel_blocks,
                "zero": spec.input_zero,
                "LOADS_AT_ONCE": window.LOADS_AT_ONCE,
                "BYTES": self.as_floats,
                **words_of(spec),
            },
            work={Unit.INT32 if spec.of_integers and not self.as_floats else Unit.FP32: spec.flops},
            needed={"src": view.elements_read(dst.rows, src.padded_channels)},
            accumulator=register_of(src.dtype),
        )


def words_of(spec: DepthwiseSpec) -> dict[str, Any]:
    """Return the zero point as a word of 4 bytes, and a word that makes signed bytes unsigned."""
    zeros = np.full(4, spec.input_zero & 0xFF, np.uint8)
    signed = spec.src.dtype is DType.INT8
    return {"OUTSIDE": int(zeros.view(np.uint32)[0]), "FLIP": 128 if signed else 0}


def _constants(
    spec: DepthwiseSpec, ctx: LowerContext, as_floats: bool
) -> dict[str, npt.NDArray[Any]]:
    """Return the bias and the taps [kh, kw, channel blocks * 4], if they are constant."""
    lanes = spec.dst.channel_blocks * 4
    found: dict[str, npt.NDArray[Any]] = {}
    if spec.bias is not None:
        found["bias"] = weights.pad_channels(spec.bias, lanes)
    if spec.taps is not None:
        dtype = np.dtype(np.float32) if as_floats else spec.taps.dtype
        padded = np.zeros((*spec.window.kernel, lanes), dtype)
        padded[:, :, : spec.dst.channels] = spec.taps
        halves = not spec.of_integers
        found["weights"] = weights.in_precision(padded, ctx) if halves else padded
    return found
