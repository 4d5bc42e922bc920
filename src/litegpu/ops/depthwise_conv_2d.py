"""DEPTHWISE_CONV_2D: each input channel makes `multiplier` output channels of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.codegen import Storage
from litegpu.graph import Graph, Node, Value
from litegpu.ops import checks, facts, weights, window
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    as_float32,
    by_load,
    register,
)
from litegpu.ops.traits import Trait
from litegpu.ops.window import DepthwiseAttributes


@register
class DepthwiseConv2D(Op):
    """Depthwise convolution with stride, dilation, multiplier, bias, activation; any weights."""

    name = "DEPTHWISE_CONV_2D"
    max_version = 6
    traits = Trait.SUMS_PRODUCTS | Trait.WEIGHTED | Trait.WINDOWED

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_output(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        _, kh, kw, outputs = graph.values[node.inputs[1]].shape
        return (window.result_shape(node.params, image, (kh, kw), outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, _ = graph.values[node.inputs[0]].shape
        _, kh, kw, _ = graph.values[node.inputs[1]].shape
        view = window.window_of(node.params, (kh, kw), (height, width))
        bias, stages = weights.normalize_bias(graph, node)
        attributes = DepthwiseAttributes(view, node.inputs[1], bias)
        computed = [v for v in node.inputs[1:2] if not graph.values[v].is_constant]
        inputs = (node.inputs[0], *computed)
        return (replace(node, inputs=inputs, attributes=attributes, stages=stages),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: DepthwiseAttributes = node.attributes
        view = attributes.window
        dst, src = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
        n, height, width, outputs = dst.shape
        constants = {}
        bias = weights.read_bias(ctx, attributes.bias)
        if bias is not None:
            constants["bias"] = weights.pad_channels(bias, dst.slices * 4)
        reads = {"src": node.inputs[0]}
        taps = ctx.value(attributes.weights)
        if taps.is_constant:
            padded = np.zeros((*view.kernel, dst.slices * 4), np.float32)
            padded[:, :, :outputs] = as_float32(taps)[0]
            constants["weights"] = weights.in_precision(padded, ctx)
        else:
            reads["taps"] = taps.id
        fitting = [tile for tile in _TILES if _fits(tile, view, (height, width))]
        made = (n, height, width, dst.slices)
        problem = ("depthwise_conv_2d", src.shape, src.dtype.value, made, view)
        tiles = by_load(fitting, lambda tile: dst.slices * _parts(tile, dst), ctx.target)
        rows, columns = tile = ctx.choose(problem, tiles)
        request = KernelRequest(
            template="cuda/depthwise" if _is_plain(taps, tile, ctx, src) else "depthwise_conv_2d",
            grid=(dst.slices, _parts(tile, dst), 1),
            local=(8, 8, 1),
            output=node.outputs[0],
            reads=reads,
            constants=constants,
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
                "multiplier": outputs // src.channels,
                "has_bias": bias is not None,
                "computed": not taps.is_constant,
                "tap_slices": dst.slices,
                "LOADS_AT_ONCE": window.LOADS_AT_ONCE,
            },
            flops=2 * dst.rows * taps.elements,
            needed={"src": view.taken(dst.rows, src.lanes)},
        )
        return (request,)


_TILES = ((2, 4), (4, 4), (1, 4), (1, 2), (1, 1))
"""Rows x columns that a work item makes.

More than two rows save a fifth of the loads but take twice the registers: they are there to be
measured.
"""
_MOST_TEXT = 512
"""Multiplications that may be written out in a kernel; beyond, one row is made in a loop."""


def _is_plain(taps: Value, tile: tuple[int, int], ctx: LowerContext, src: Storage) -> bool:
    """Whether loads may be left out by a predicate, as CUDA has it, and count as zeros."""
    plain = taps.is_constant and taps.shape[3] == src.channels and src.vector
    if not plain or not ctx.target.model.tensor_cores or tile[0] == 1:
        return False
    return bool(np.isfinite(as_float32(taps)).all())


def _fits(tile: tuple[int, int], view: window.Window, made: tuple[int, int]) -> bool:
    """Whether a tile is no larger than the result, and its kernel not too long."""
    smaller = tile[0] <= max(made[0], 1) and tile[1] <= max(made[1], 1)
    return smaller and (tile[0] == 1 or math.prod((*tile, *view.kernel)) <= _MOST_TEXT)


def _parts(tile: tuple[int, int], dst: Storage) -> int:
    n, height, width, _ = dst.shape
    return n * -(-height // tile[0]) * -(-width // tile[1])


def _check_shapes(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    taps = graph.values[node.inputs[1]].shape
    for what, shape in (("input", image), ("filter", taps)):
        if len(shape) != 4:
            return f"{what}.dims.size != 4: it has the shape {list(shape)}."
    if taps[0] != 1 or taps[3] % image[3]:
        return f"A filter of {list(taps)} does not match {image[3]} input channels."
    return checks.first_of(
        weights.check_bias(graph, node, taps[3]),
        window.check_window(node.params, (taps[1], taps[2]), (image[1], image[2])),
    )
