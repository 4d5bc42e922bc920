"""Quantized depthwise convolutions on tensor cores: cuda/depthwise_mma."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT, round_up
from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.tiles import PersistentTile, TilePlan, TileTarget, choose
from litegpu.kernels.depthwise import words_of
from litegpu.kernels.examples import DepthwiseExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.depthwise_spec import DepthwiseSpec
from litegpu.ops.common.units import Unit
from litegpu.ops.common.weights import pad_channels
from litegpu.ops.common.window import Window, readers

_CHANNELS = 32
"""Number of channels per warp."""
_PART = 8
"""Number of channels that a lane reads of a pixel, and of pixels of a row per warp."""
_MAX_TAPS = 18
"""Maximum number of instructions per sum: the weights of longer sums do not fit registers."""
_LARGEST = 254
"""The largest weight that a sum of two int8 terms can represent."""
_OTHER_REGISTERS = 20
"""Registers per thread in addition to weights, values and sums: addresses, bias and multipliers."""
_MAX_RESIDENT = 4
"""Maximum number of blocks per multiprocessor; with more blocks, each would have too few registers.
"""


@dataclass(frozen=True, slots=True)
class DepthwiseProblem:
    """The properties that determine the tiles: the window and the result [N, H, W, C].

    After subtraction of the zero point, weights may have 9 bits; each weight is then the sum of two
    `terms`.
    """

    window: Window
    result: tuple[int, int, int, int]
    terms: int

    @property
    def taps(self) -> int:
        """Number of products per sum."""
        return self.window.kernel[0] * self.window.kernel[1] * self.terms

    @property
    def pairs(self) -> int:
        """Number of instructions per sum, with two products each."""
        return -(-self.taps // 2)


@dataclass(frozen=True, slots=True)
class DepthwiseTile(PersistentTile):
    """A tile whose warps compute 32 channels of 8 adjacent pixels of `rows` rows at a time."""

    problem: DepthwiseProblem
    rows: int
    resident: int
    units: int
    most_warps = 4

    @property
    def warps_of_channels(self) -> int:
        return -(-self.problem.result[3] // _CHANNELS)

    @property
    def positions(self) -> int:
        """Number of groups of 8 pixels and `rows` rows."""
        n, height, width, _ = self.problem.result
        return n * -(-height // self.rows) * -(-width // _PART)

    @property
    def registers(self) -> int:
        """Estimate the registers per thread."""
        window = self.problem.window
        read = len(readers(window, 0, self.rows)) * window.kernel[1] * 2
        return 8 * self.problem.pairs + read + 8 * self.rows + _OTHER_REGISTERS

    def clocks(self, target: TileTarget) -> float:
        """Return an estimate of what the busiest multiprocessor reads, in rows of pixels."""
        read = len(readers(self.problem.window, 0, self.rows)) + self.rows
        turns = -(-self.positions // (self.workers * self.warps_m))
        return turns * read * self.resident


def candidates(problem: DepthwiseProblem, target: Target) -> list[DepthwiseTile]:
    """Return the tiles whose threads have enough registers."""
    found = []
    for rows in (4, 2, 1):
        if rows > 1 and rows // 2 >= problem.result[1]:
            continue
        for resident in range(_MAX_RESIDENT, 0, -1):
            tile = DepthwiseTile(problem, rows, resident, target.compute_units)
            if tile.registers <= min(255, target.model.registers // (tile.threads * resident)):
                found.append(tile)
                break
    return found


class DepthwiseMma(Implementation):
    """A kernel that multiplies bytes on tensor cores, with the weights as diagonal matrices."""

    name = "cuda/depthwise_mma"
    example = DepthwiseExample((16, 64, 64, 64), quantized=True)
    small = DepthwiseExample((1, 15, 17, 64), quantized=True)

    def plan(self, spec: DepthwiseSpec, target: Target) -> Plan | Rejected:
        if not target.model.tensor_cores:
            return Rejected("the device has no tensor cores")
        if spec.taps is None or not spec.of_bytes:
            return Rejected("the weights or the input are not 8-bit")
        if np.abs(spec.taps.astype(np.int16)).max() > _LARGEST:
            return Rejected("the weights are not sums of two 8-bit integers")
        if spec.multiplier > 1:
            return Rejected("the depthwise convolution multiplies the number of channels")
        if not spec.src.aligned(_PART):
            return Rejected("the number of input channels is not a multiple of eight")
        terms = 1 if spec.taps.dtype == np.int8 else 2
        problem = DepthwiseProblem(spec.window, spec.dst.shape, terms)
        if problem.taps > _MAX_TAPS:
            return Rejected("the weights do not fit into registers")
        _, _, width, channels = spec.dst.shape
        whole = round_up(width, _PART) * round_up(channels, _CHANNELS)
        if 2 * whole > 3 * width * channels:
            return Rejected("too many products would be padding")
        tiles = choose(candidates(problem, target), target)
        if isinstance(tiles, Rejected):
            return tiles
        return TilePlan(("depthwise_mma", problem), tiles, partial(_kernel, spec=spec))


def _kernel(
    node: Node, ctx: LowerContext, tile: DepthwiseTile, spec: DepthwiseSpec
) -> KernelRequest:
    src, dst, view, problem = spec.src, spec.dst, spec.window, tile.problem
    columns = tile.column_blocks * tile.warps_n * _CHANNELS
    across, down = tile.blocks
    return KernelRequest(
        template=DepthwiseMma.name,
        grid=(across * tile.threads, down, 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants={
            "weights": _pack(spec, problem, columns),
            "bias": pad_channels(_folded_bias(spec), columns),
        },
        variables={
            "ROWS": tile.rows,
            "TERMS": problem.terms,
            "PAIRS": problem.pairs,
            "WM": tile.warps_m,
            "WN": tile.warps_n,
            "UNITS": tile.positions,
            "WORKERS": tile.workers,
            "COLUMN_BLOCKS": tile.column_blocks,
            "rows": [offset for offset, _ in readers(view, 0, tile.rows)],
            "columns": [offset for offset, _ in readers(view, 1, 1)],
            "kernel": view.kernel,
            "stride": view.stride,
            "dilation": view.dilation,
            "pads": view.pads,
            "UNSIGNED": src.dtype is DType.UINT8,
            **words_of(spec),
        },
        attributes=tile.attributes(ctx.target),
        work={Unit.INT8_MATRIX: spec.flops},
        needed={"src": view.elements_read(dst.rows, src.padded_channels)},
        accumulator=INT,
    )


def _folded_bias(spec: DepthwiseSpec) -> npt.NDArray[np.int32]:
    """Return the bias minus the contribution of the input's zero point (int32, wraps around)."""
    assert spec.taps is not None
    known = -spec.input_zero * spec.taps.astype(np.int64).sum(axis=(0, 1))
    if spec.bias is not None:
        known = known + spec.bias
    wrapped: npt.NDArray[np.int32] = known.astype(np.uint32).view(np.int32)
    return wrapped


def _pack(spec: DepthwiseSpec, problem: DepthwiseProblem, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange taps [H, W, C] as rows of mma.m16n8k32: [32 channels, pair, matrix, lane] of 4.

    Rows g and g + 8 of matrix m are channels 4 * g + 2 * m + {0, 1}. The inputs of lane % 4 = q are
    those of rows 2 * q and 2 * q + 1, first of one product, then of the next.
    """
    assert spec.taps is not None
    pairs, channels = problem.pairs, spec.taps.shape[2]
    left = spec.taps.reshape(-1, channels).astype(np.int16)
    terms = []
    for _ in range(problem.terms):
        terms.append(np.clip(left, -128, 127))
        left = left - terms[-1]
    taps = np.zeros((2 * pairs, columns), np.int8)
    taps[: problem.taps, :channels] = np.stack(terms, axis=1).reshape(-1, channels)
    # [pair, half, warp, g, matrix, row g or g + 8]
    split = taps.reshape(pairs, 2, -1, 8, 2, 2)
    # [warp, pair, matrix, g, lane % 4, half, row, byte]
    packed = np.zeros((columns // _CHANNELS, pairs, 2, 8, 4, 2, 2, 4), np.int8)
    for g in range(8):
        for row in range(2):
            values = split[:, :, :, g, :, row].transpose(2, 0, 3, 1)
            packed[:, :, :, g, g // 2, :, row, 2 * (g % 2) + row] = values
    return packed.reshape(-1).view(np.uint32)
