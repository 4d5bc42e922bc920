"""Inverted residual blocks fused into one kernel, for many pixels: cuda/inverted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import literal, round_up
from litegpu.graph import DType, EpilogueOp, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda import separable
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.halves import halves_of, padded
from litegpu.kernels.cuda.inverted.tile import ROWS, InvertedProblem, InvertedTile, candidates
from litegpu.kernels.cuda.packing import columns_in_fours, pack_halves
from litegpu.kernels.cuda.separable.tile import SeparableProblem
from litegpu.kernels.cuda.tiles import TilePlan, TileTarget, choose
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec, Depthwise, Expand
from litegpu.ops.common.halves import as_halves, holds, largest_of
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.units import Unit

_FLOATS = npt.NDArray[np.float32]
_LIMITS = {"RELU6": 6.0, "RELU_0_TO_1": 1.0}
"""Activations whose results are between zero and a limit."""
_MAX_TAPS = 25
"""Maximum number of taps, since their weights are in registers."""
_MAX_INPUTS, _MAX_OUTPUTS = 64, 128
"""Maximum number of channels, since weights and sums are in registers."""
_MARGIN = 1.3
"""Minimum ratio of the estimated time of two kernels to that of the fused kernel."""


class Inverted(Implementation):
    """A kernel for the expansion, the depthwise and the pointwise convolution of many pixels."""

    name = "cuda/inverted"
    example = ConvExample((16, 112, 112, 16), 24, depthwise=True, expand=96)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        middle = spec.depthwise
        if middle is None or middle.expand is None:
            return IN_MEMORY
        found = obstacle(spec, target) or _obstacle(spec, middle, middle.expand, target)
        if found is not None:
            return found
        problem = InvertedProblem(spec.src.shape, middle.shape, spec.dst.channels, middle.window)
        tiles = choose(candidates(problem), target)
        if isinstance(tiles, Rejected):
            return tiles
        reason = _slower(tiles[0], middle.expand, target)
        if reason:
            return Rejected(reason)
        kernel = partial(_kernel, spec=spec, middle=middle, expand=middle.expand)
        return TilePlan(("inverted", problem), tiles, kernel)


def _obstacle(spec: ConvSpec, middle: Depthwise, expand: Expand, target: Target) -> Rejected | None:
    values = (expand.shape, middle.shape)
    if not expand.window.pointwise or spec.src.shape[:3] != expand.shape[:3]:
        return Rejected("the expansion is not a pointwise convolution, or pads the image")
    if not target.model.warp_groups:
        return Rejected("the kernel is known to be faster only on devices with warp groups")
    if middle.taps is None:
        return Rejected("the node computes a mean")
    if not all(target.policy.stores_half(4 * math.prod(shape)) for shape in values):
        return Rejected("the intermediate values would not be stored as float16")
    if spec.src.dtype is not DType.FLOAT16 or not spec.src.aligned(8):
        return Rejected("the input is not stored as float16 with a multiple of eight channels")
    if _limit(middle.epilogue) is None or _limit(expand.epilogue) is None:
        return Rejected("the intermediate values are not bounded by RELU6 or a similar activation")
    if not middle.window.plain or math.prod(middle.window.kernel) > _MAX_TAPS:
        return Rejected("the window has too many taps, or reads an enlarged or mirrored image")
    if spec.src.channels > _MAX_INPUTS or spec.dst.channels > _MAX_OUTPUTS:
        return Rejected("the input or the output has too many channels")
    largest = (largest_of(expand.weights, (1, 2, 3)), largest_of(middle.taps, (0, 1)))
    finite = all(np.isfinite(each).all() for each in (expand.weights, middle.taps))
    if not finite or not all(holds(each).all() for each in largest):
        return Rejected("float16 cannot represent the weights")
    return None


def _limit(epilogue: tuple[EpilogueOp, ...]) -> float | None:
    return _LIMITS.get(epilogue[0].function) if len(epilogue) == 1 else None


def _slower(tile: InvertedTile, expand: Expand, target: Target) -> str:
    """Return why two kernels should be as fast; an empty text if the fused kernel is faster."""
    problem, clocks = tile.problem, tile.clocks(target) * _MARGIN
    others = clocks_of_two(problem, expand.shape, target)
    if clocks < others:
        return ""
    return f"the estimate is {clocks:.0f} clocks with a margin, but two kernels take {others:.0f}"


def clocks_of_two(
    problem: InvertedProblem, expanded: tuple[int, int, int, int], target: TileTarget
) -> float:
    """Return the estimated clocks of an expanding kernel plus a kernel for the rest."""
    pair = SeparableProblem(expanded, "float16", problem.middle, problem.outputs, problem.window)
    tiles = separable.tiles_for(pair, target)
    if isinstance(tiles, Rejected):
        return math.inf
    moved = 2 * (math.prod(problem.image) + math.prod(expanded))
    bytes_per_clock = target.model.clocks.memory_bytes * target.compute_units
    return moved / bytes_per_clock + tiles[0].clocks(target)


def _kernel(
    node: Node,
    ctx: LowerContext,
    tile: InvertedTile,
    spec: ConvSpec,
    middle: Depthwise,
    expand: Expand,
) -> KernelRequest:
    problem, src = tile.problem, spec.src
    assert middle.taps is not None
    channels, columns = tile.chunks * tile.groups * ROWS, tile.pairs * ROWS
    order = columns_in_fours(ROWS)
    halves = halves_of(spec.array, ctx.target, exact=False)
    inputs = _in_order(halves.parts[0], 3, order, channels)
    packed = Packed(
        pack_halves([_in_order(inputs, 0, order, columns)], channels // ROWS, columns),
        halves.back,
        spec.weights.bias,
        columns,
    )
    # Padding channels repeat the last one and are not multiplied: 0 * infinity would be NaN.
    extra = (0, channels - middle.shape[3])
    rows = np.pad(expand.weights, [extra, (0, 0), (0, 0), (0, 0)], mode="edge")
    rows = _in_order(rows, 0, order, channels)
    constants: dict[str, npt.NDArray[Any] | LazyArray] = {
        "expand_weights": pack_halves([rows], problem.steps, channels),
        "taps": _packed_taps(middle.taps, order, channels),
    }
    if expand.bias is not None:
        constants["expand_bias"] = _in_lanes(np.pad(expand.bias, extra, mode="edge"))
    if middle.bias is not None:
        constants["taps_bias"] = _in_lanes(padded(middle.bias, channels))
    window = problem.window
    variables: dict[str, Any] = {
        "PATCH": tile.patch,
        "TILES": tile.tiles,
        "STRIP": tile.strip,
        "STRIPS": tile.strips,
        "STRIP_LINES": tile.strip_lines,
        "SEEN": tile.seen,
        "PLANE": tile.plane,
        "LINE": tile.line,
        "M_TILES": tile.m_tiles,
        "GROUPS": tile.groups,
        "CHUNKS": tile.chunks,
        "STEPS": problem.steps,
        "PAIRS": tile.pairs,
        "PITCH_A": tile.pitches[0],
        "PITCH_E": tile.pitches[1],
        "INPUT_CHUNKS": src.padded_channels // 8,
        "EXPAND_LIMIT": _words_of_limit(expand.epilogue),
        "MIDDLE_LIMIT": _words_of_limit(middle.epilogue),
        "has_expand_bias": expand.bias is not None,
        "has_taps_bias": middle.bias is not None,
        **window.words(src.shape[1:3]),
    }
    kernel = conv_kernel(Inverted.name, node, spec, tile, ctx.target, packed, variables)
    expanding = 2 * math.prod(expand.shape) * src.channels
    taps = 2 * math.prod(middle.shape) * problem.taps
    return replace(
        kernel,
        constants={**kernel.constants, **constants},
        work={Unit.FP16_MATRIX: spec.flops + expanding + taps},
        needed={"src": math.prod(src.shape[:3]) * src.padded_channels},
    )


def _words_of_limit(epilogue: tuple[EpilogueOp, ...]) -> tuple[str, int]:
    """Return the bound of an activation as a float's text, and as a word of two halves."""
    limit = _limit(epilogue)
    assert limit is not None
    return literal(limit), int(np.float16(limit).view(np.uint16)) * 0x10001


def _in_order(weights: _FLOATS, axis: int, order: npt.NDArray[np.intp], length: int) -> _FLOATS:
    """Return weights zero-padded to a length along an axis, each 16 of them permuted by `order`."""
    widths = [(0, length - weights.shape[axis] if each == axis else 0) for each in range(4)]
    places = np.arange(length).reshape(-1, ROWS)[:, order].reshape(-1)
    return np.take(np.pad(weights, widths), places, axis)


def _in_lanes(bias: _FLOATS) -> _FLOATS:
    """Arrange a bias like the sums of lanes: [16 channels, first or last 8, lane % 4] of 2.

    Each bias value is stored twice, for two rows: otherwise the compiler repeatedly forms four
    numbers from two.
    """
    found = bias.reshape(-1, 4, 2, 2).swapaxes(1, 2)
    return np.concatenate([found, found], axis=-1).reshape(-1)


def _packed_taps(
    taps: _FLOATS, order: npt.NDArray[np.intp], channels: int
) -> npt.NDArray[np.uint32]:
    """Arrange [kh, kw, C] as words of two taps: [16 channels, four words, lane / 4] of 4.

    The words are ordered by pairs of taps, then by the first and the last 8 of 16 permuted
    channels.
    """
    count = taps.shape[0] * taps.shape[1]
    words = round_up(round_up(count, 2), 4)
    flat = padded(as_halves(taps).reshape(count, -1), channels)
    filled = np.pad(flat, [(0, words - count), (0, 0)]).reshape(words, -1, ROWS)[:, :, order]
    # [four words, pair of the four, tap, group, half, lane / 4]
    split = filled.reshape(words // 4, 2, 2, -1, 2, ROWS // 2)
    return np.ascontiguousarray(split.transpose(3, 0, 5, 1, 4, 2)).view(np.uint32).reshape(-1)
