"""TRANSPOSE_CONV: computes a transposed convolution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from litegpu.codegen import Storage, round_up
from litegpu.graph import SELF, Graph, Node
from litegpu.ops.base import (
    Exact,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    SpecContext,
    constant_list,
    register,
)
from litegpu.ops.common import checks, facts, weights, window
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.conv_2d import conv_nodes
from litegpu.ops.exact.hybrid import HybridTransposeConv, OrHybrid
from litegpu.ops.exact.transpose_conv import ExactTransposeConv

_SHAPE, _IMAGE, _BIAS = 0, 2, 3


@register
class TransposeConv(Op):
    """Transposed convolution with stride, padding, bias, activation; weights may be computed."""

    name = "TRANSPOSE_CONV"
    max_version = 5
    shape_operands: ClassVar[tuple[int, ...]] = (_SHAPE,)
    traits = Trait.SUMS_PRODUCTS | Trait.WEIGHTED | Trait.TRANSPOSED
    exact: ClassVar[Exact | None] = OrHybrid(
        ExactTransposeConv(lambda graph, node: _check_geometry(graph, node)),
        HybridTransposeConv(lambda graph, node: _check_geometry(graph, node)),
        _IMAGE,
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, _IMAGE, (1,))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes, _IMAGE)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(constant_list(graph, node.inputs[0])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        outputs, kh, kw, depth = graph.values[node.inputs[1]].shape
        _, height, width, _ = constant_list(graph, node.inputs[0])
        view = window.window_of(node.params, (kh, kw), (height, width))
        shape = (outputs, kh, kw, depth)
        operand = weights.normalize(graph, node, new_value, shape, bias_position=_BIAS)
        return conv_nodes(node, node.inputs[_IMAGE], view, operand)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec]:
        """Return a spec for each phase if tensor cores can compute all phases, else no specs."""
        operand = weights.read(ctx, node.attributes)
        if not ctx.target.model.tensor_cores or operand.array is None or _varies(node, ctx):
            return ()
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        found = [
            ConvSpec(src, part.dst, _only(part.weights, operand.bias), part.window, image=True)
            for part in phases(operand.array, node.attributes.window, dst)
        ]
        return () if any(spec.obstacle(ctx.target) for spec in found) else found

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        plans = ctx.plans(node)
        if plans:
            return [plan.lower(node, ctx) for plan in plans]
        operand = weights.read(ctx, node.attributes)
        return (transpose_kernel(node, ctx, operand, node.attributes.window),)


@dataclass(frozen=True, slots=True)
class Phase:
    """Output pixels one stride apart, which a convolution with stride 1 computes."""

    weights: weights.Floats
    """Weights [O, H, W, I] of the phase."""
    window: window.Window
    dst: Storage


def phases(array: weights.Floats, view: window.Window, dst: Storage) -> Iterator[Phase]:
    """Divide the transposed convolution of `dst` with weights [O, H, W, I] into its phases."""
    sizes = dst.shape[1:3]
    firsts = (range(min(step, size)) for step, size in zip(view.stride, sizes, strict=True))
    for y, x in product(*firsts):
        phase_dst = dst.every(view.stride, (y, x))
        rows, top = _taps(view, 0, y)
        columns, left = _taps(view, 1, x)
        taps = np.ascontiguousarray(array[:, rows][:, :, columns])
        pads = (top, left)
        if taps.size == 0:
            # No tap reaches these pixels: use a tap of zeros that reads above the image.
            taps = np.zeros((array.shape[0], 1, 1, array.shape[3]), np.float32)
            pads = (phase_dst.shape[1], 0)
        yield Phase(
            taps, window.Window((taps.shape[1], taps.shape[2]), (1, 1), pads=pads), phase_dst
        )


def _taps(view: window.Window, axis: int, start: int) -> tuple[list[int], int]:
    """Return the taps that contribute to output `start` along an axis, and their window's padding.

    Tap k contributes the product with input i to output o if i * stride + k = o + pad. Taps of one
    output are therefore one stride apart, and larger taps belong to earlier inputs. The padding is
    negative if the first output does not read the first inputs.
    """
    last, first = divmod(start + view.pads[axis], view.stride[axis])
    taps = range(first, view.kernel[axis], view.stride[axis])
    return list(reversed(taps)), len(taps) - 1 - last


def _only(array: weights.Floats, bias: weights.Floats | None) -> weights.Weights:
    outputs, height, width, inputs = array.shape
    return weights.Weights((outputs, height, width, inputs), array=array, bias=bias)


def _varies(node: Node, ctx: SpecContext) -> bool:
    """Whether the epilogue has operands that differ by pixel, which a phase cannot index."""
    reads = (v for epilogue_op in node.epilogue for v in epilogue_op.operands if v != SELF)
    return any(ctx.storage(v).shape[1:3] != (1, 1) for v in reads)


def transpose_kernel(
    node: Node, ctx: LowerContext, operand: weights.Weights, view: window.Window
) -> KernelRequest:
    """Return the kernel of a transposed convolution.

    `view` is the window from the node's output to its input. The kernel gathers all taps that
    contribute to an output pixel. A work item computes output pixels one stride apart, which use
    the same weights.
    """
    dst, src = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
    n, height, width, _ = dst.shape
    step = view.stride[1]
    most = -(-width // step)
    terms = (*view.kernel, *view.stride, operand.shape[3])
    problem = TileProblem("transpose_conv", dst.rows, dst.channel_blocks, terms, src.dtype.value)
    pixels, channel_blocks = choose_tile(problem, ctx)
    pixels = min(pixels, most)
    columns = -(-most // pixels) * step
    padded_blocks = round_up(dst.channel_blocks, channel_blocks)
    bound = weights.bind(operand, padded_blocks, ctx)
    taps = -(-view.kernel[0] // view.stride[0]) * -(-view.kernel[1] // step)
    return KernelRequest(
        template="transpose_conv",
        # The third grid dimension is limited to 65535 work groups.
        grid=(padded_blocks // channel_blocks, columns * n * height, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0], **bound.reads},
        constants=bound.constants,
        variables={
            **bound.variables,
            "PIXELS": pixels,
            "CHANNEL_BLOCKS": channel_blocks,
            "columns": columns,
            "kernel": view.kernel,
            "stride": view.stride,
            "pads": view.pads,
            "input_blocks": -(-operand.shape[3] // 4),
        },
        work={Unit.FP32: 2 * dst.rows * operand.shape[0] * operand.shape[3] * taps},
    )


def _check_shapes(graph: Graph, node: Node) -> str:
    return checks.first_of(
        _check_geometry(graph, node),
        lambda: weights.check_bias(graph, node, graph.values[node.inputs[1]].shape[0], _BIAS),
    )


def _check_geometry(graph: Graph, node: Node) -> str:
    reason = checks.integers(graph, node, 0, "The output shape")
    if reason:
        return reason
    size = constant_list(graph, node.inputs[0])
    taps = graph.values[node.inputs[1]].shape
    image = graph.values[node.inputs[_IMAGE]].shape
    if not len(size) == len(taps) == len(image) == 4:
        return f"Output shape {size}, filter {list(taps)}, input {list(image)}: all must be 4-D."
    if taps[3] != image[3] or min(size) < 1:
        return f"A filter of {list(taps)} does not produce {size} from {list(image)}."
    reason = window.check_window(node.params, (taps[1], taps[2]), (size[1], size[2]))
    if reason:
        return reason
    convolved = window.result_shape(node.params, tuple(size), (taps[1], taps[2]), image[3])
    if convolved != image or size[3] != taps[0]:
        return (
            f"The output shape {size} does not belong to an input of {list(image)} with "
            f"padding {node.params['padding']}: a convolution reduces it to {list(convolved)}."
        )
    return ""
