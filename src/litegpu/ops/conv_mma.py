"""Convolutions on NVIDIA's tensor cores: tile choice and weight layout of cuda/conv_mma."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Node, Stage
from litegpu.ops.base import HALF_MAX, KernelRequest, LowerContext
from litegpu.ops.window import Window

_FLOATS = npt.NDArray[np.float32]
_STEP = 16
"""Inputs that one instruction sums up."""
_SHARED_LIMIT = 100 << 10
"""Shared memory of a block; two blocks fit a multiprocessor."""
_BYTES_PER_CLOCK = 48.0
_LATENCY_CLOCKS = 1500.0


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution computed on the fly as the operand of a pointwise one."""

    window: Window
    taps: _FLOATS
    """Weights [kh, kw, channels]."""
    bias: _FLOATS | None
    stages: tuple[Stage, ...]
    shape: tuple[int, int, int, int]
    """Its output [N, H, W, C]."""


@dataclass(frozen=True, slots=True)
class Tile:
    """BM pixels and WN warps of NT column groups of 8 each; WK warps share out the k-steps."""

    pixels: int
    warps_n: int
    warps_k: int
    groups: int
    chunk: int
    """k-steps of 16 that lie in shared memory at a time."""
    steps: int
    """All k-steps, padded to whole chunks."""
    cluster: int
    """Blocks that share out the operand."""
    ahead: int
    """k-steps whose weights wait in registers."""

    @property
    def columns(self) -> int:
        return self.warps_n * self.groups * 8

    @property
    def threads(self) -> int:
        return 32 * self.warps_n * self.warps_k

    def shared_bytes(self, parts: int) -> int:
        """Bytes for the operand in `parts` halves, or for the sums that reuse its memory."""
        operand = self.pixels * (self.chunk * _STEP + 8) * 2 * parts
        sums = self.warps_k * self.pixels * (self.columns + 4) * 4
        return max(operand, sums)


def usable(ctx: LowerContext, weights: _FLOATS, groups: int) -> bool:
    """Whether tensor cores pay for a convolution with `weights` [O, H, W, I]."""
    outputs = weights.shape[0]
    inputs = weights.size // max(outputs, 1)
    return ctx.target.tensor_cores and groups == 1 and outputs >= 8 and inputs >= _STEP


def mma_kernel(
    node: Node,
    ctx: LowerContext,
    weights: _FLOATS,
    bias: _FLOATS | None,
    view: Window,
    depthwise: Depthwise | None = None,
) -> KernelRequest:
    """Return the kernel for `weights` [O, H, W, I]; `depthwise` feeds a 1x1 convolution."""
    dst, src = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
    slices = -(-weights.shape[3] // 4)
    taps = weights.shape[1] * weights.shape[2]
    split_values = src.dtype is DType.FLOAT32
    low = _low_part(weights, ctx)
    parts = 2 if split_values else 1
    tile = choose_tile(dst, -(-taps * slices * 4 // _STEP), parts, low is not None, depthwise, ctx)
    columns = round_up(dst.slices * 4, tile.columns)
    constants: dict[str, npt.NDArray[Any]] = {
        "weights": pack_fragments(weights, tile.steps, columns)
    }
    if low is not None:
        constants["weights_low"] = pack_fragments(low, tile.steps, columns)
    if bias is not None:
        constants["bias"] = _padded(bias, columns)
    variables: dict[str, Any] = {
        "BM": tile.pixels,
        "WN": tile.warps_n,
        "WK": tile.warps_k,
        "NT": tile.groups,
        "CHUNK": tile.chunk,
        "STEPS": tile.steps,
        "CLUSTER": tile.cluster,
        "AHEAD": tile.ahead,
        "ALL_PAIRS": columns // 16,
        "FILL_UNROLL": 2 if depthwise else 8,
        "SPLIT_A": split_values,
        "SPLIT_W": low is not None,
        "input_slices": slices,
        "has_bias": bias is not None,
        "pointwise": view.pointwise,
        "depthwise": depthwise is not None,
        "kernel": view.kernel,
        "stride": view.stride,
        "dilation": view.dilation,
        "pads": view.pads,
    }
    inner: tuple[Stage, ...] = ()
    flops = 2 * dst.rows * int(weights.size)
    if depthwise is not None:
        constants["taps"] = _padded(depthwise.taps, slices * 4)
        if depthwise.bias is not None:
            constants["taps_bias"] = _padded(depthwise.bias, slices * 4)
        variables |= {
            "kernel": depthwise.window.kernel,
            "stride": depthwise.window.stride,
            "dilation": depthwise.window.dilation,
            "pads": depthwise.window.pads,
            "has_taps_bias": depthwise.bias is not None,
            "middle": depthwise.shape,
        }
        inner = depthwise.stages
        flops += 2 * dst.rows * int(depthwise.taps.size)
    shared = tile.shared_bytes(parts)
    return KernelRequest(
        template="cuda/conv_mma",
        grid=(columns // tile.columns * tile.threads, -(-dst.rows // tile.pixels), 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables=variables,
        shared=(("uint4", "scratch", -(-shared // 16)),),
        inner_stages=inner,
        flops=flops,
    )


def choose_tile(
    dst: Storage,
    steps: int,
    parts: int,
    split_weights: bool,
    depthwise: Depthwise | None,
    ctx: LowerContext,
) -> Tile:
    """Return the tile of the least estimated time."""
    reads_per_value = 1.0
    if depthwise is not None:
        reads_per_value = 1 + 0.5 * depthwise.window.kernel[0] * depthwise.window.kernel[1]
    products = parts + split_weights

    def clocks(tile: Tile) -> float:
        blocks = -(-dst.rows // tile.pixels) * -(-dst.slices * 4 // tile.columns)
        per_unit = -(-blocks // ctx.target.compute_units)
        depth = tile.steps * _STEP
        operand = tile.pixels * depth * 4 * reads_per_value / tile.cluster
        operand += tile.pixels * depth * parts  # what the cluster's other blocks store
        weights = tile.columns * depth * 2 * (2 if split_weights else 1)
        multiply = tile.steps * (tile.pixels // 16) * tile.warps_n * tile.groups * products * 2.0
        rounds = tile.steps // tile.chunk
        return per_unit * ((operand + weights) / _BYTES_PER_CLOCK + multiply) + (
            _LATENCY_CLOCKS * (1 + 0.5 * (rounds - 1))
        )

    return min(_tiles(dst, steps, parts, split_weights, ctx), key=clocks)


_WEIGHT_REGISTERS = 64


def _tiles(
    dst: Storage, steps: int, parts: int, split_weights: bool, ctx: LowerContext
) -> Iterator[Tile]:
    widths: Sequence[tuple[int, int]] = ((1, 2), (2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (8, 4))
    for pixels in (16, 32, 64):
        for warps_n, groups in widths:
            columns = warps_n * groups * 8
            if columns >= 2 * round_up(dst.slices * 4, 16) or (pixels == 64 and groups == 2):
                continue
            blocks = -(-dst.slices * 4 // columns)
            cluster = next(c for c in (8, 4, 2, 1) if blocks % c == 0)
            cluster = cluster if ctx.target.clusters else 1
            warps_k = max(8 // warps_n, 1)
            while warps_k > 1 and steps < 2 * warps_k:
                warps_k //= 2
            ahead = _WEIGHT_REGISTERS // (2 * groups * (2 if split_weights else 1))
            unit = max(warps_k * ahead, 2)
            whole = round_up(steps, max(warps_k, 2))
            limit = (_SHARED_LIMIT // (pixels * 2 * parts) - 8) // _STEP
            chunk = whole if whole <= limit else limit // unit * unit
            if chunk:
                padded = round_up(whole, chunk)
                ahead = min(ahead, padded // warps_k)
                yield Tile(pixels, warps_n, warps_k, groups, chunk, padded, cluster, ahead)


def pack_fragments(weights: _FLOATS, steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as the instruction's registers: [step, pair of 8 columns, lane] of 4.

    A lane holds inputs 2 * (lane % 4) + {0, 1} and those 8 further, of column lane / 4.
    """
    outputs, height, width, depth = weights.shape
    slices = -(-depth // 4)
    matrix = np.zeros((columns, height * width, slices * 4), np.float32)
    matrix[:outputs, :, :depth] = weights.reshape(outputs, height * width, depth)
    flat = np.zeros((columns, steps * _STEP), np.float16)
    flat[:, : height * width * slices * 4] = np.clip(matrix, -HALF_MAX, HALF_MAX).reshape(
        columns, -1
    )
    # [pair, tile, column, step, half of the inputs, lane % 4, two inputs]
    split = flat.reshape(columns // 16, 2, 8, steps, 2, 4, 2)
    ordered = np.ascontiguousarray(split.transpose(3, 0, 2, 5, 1, 4, 6))
    return ordered.reshape(-1).view(np.uint32)


def _low_part(weights: _FLOATS, ctx: LowerContext) -> _FLOATS | None:
    """Return what half precision loses of the weights, None when that does not matter."""
    rest = weights - np.clip(weights, -HALF_MAX, HALF_MAX).astype(np.float16)
    return rest if ctx.target.exact_weights(weights.nbytes) and rest.any() else None


def _padded(array: _FLOATS, channels: int) -> _FLOATS:
    """Return an array with its last axis extended by zeros."""
    extra = channels - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)]).astype(np.float32)
