"""TRANSPOSE_CONV: a convolution's way back from its output to its input."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.codegen import round_up
from litegpu.graph import Graph, Node
from litegpu.ops import checks, weights, window
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    constant_list,
    register,
)
from litegpu.ops.conv_2d import ConvAttributes, choose_tile, conv_nodes

_IMAGE, _BIAS = 2, 3


@register
class TransposeConv(Op):
    """Transposed convolution: stride, padding, bias, activation; weights may be computed."""

    name = "TRANSPOSE_CONV"
    max_version = 4

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes, _IMAGE)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(constant_list(graph, node.inputs[0])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        outputs, kh, kw, depth = graph.values[node.inputs[1]].shape
        _, height, width, _ = constant_list(graph, node.inputs[0])
        view = window.window_of(node.params, (kh, kw), (height, width))
        shape = (outputs, kh, kw, depth)
        held = weights.normalize(graph, node, new_value, shape, bias_position=_BIAS)
        return conv_nodes(node, node.inputs[_IMAGE], view, held)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: ConvAttributes = node.attributes
        return (transpose_kernel(node, ctx, weights.read(ctx, attributes), attributes.window),)


def transpose_kernel(
    node: Node, ctx: LowerContext, held: weights.Weights, view: window.Window
) -> KernelRequest:
    """Return the kernel of a transposed convolution.

    `view` is the window that makes the node's input of its output. Each output pixel gathers the
    taps that reach it; a work item makes pixels one stride apart, which share their weights.
    """
    dst = ctx.storage(node.outputs[0])
    n, height, width, _ = dst.shape
    step = view.stride[1]
    columns = -(-width // step)
    pixels, slices = choose_tile(dst.rows, dst.slices, 1, held.shape[0], ctx)
    pixels = min(pixels, columns)
    padded_slices = round_up(dst.slices, slices)
    bound = weights.bind(held, padded_slices, ctx)
    taps = -(-view.kernel[0] // view.stride[0]) * -(-view.kernel[1] // step)
    return KernelRequest(
        template="transpose_conv",
        grid=(padded_slices // slices, -(-columns // pixels) * step, n * height),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0], **bound.reads},
        constants=bound.constants,
        variables={
            **bound.variables,
            "PIXELS": pixels,
            "SLICES": slices,
            "kernel": view.kernel,
            "stride": view.stride,
            "pads": view.pads,
            "input_slices": -(-held.shape[3] // 4),
        },
        flops=2 * dst.rows * held.shape[0] * held.shape[3] * taps,
    )


def _check_shapes(graph: Graph, node: Node) -> str:
    reason = checks.integers(graph, node, 0, "The output shape")
    if reason:
        return reason
    size = constant_list(graph, node.inputs[0])
    taps = graph.values[node.inputs[1]].shape
    image = graph.values[node.inputs[_IMAGE]].shape
    if not len(size) == len(taps) == len(image) == 4:
        return f"Output shape {size}, filter {list(taps)}, input {list(image)}: all must be 4-D."
    if taps[3] != image[3] or min(size) < 1:
        return f"A filter of {list(taps)} does not make {size} of {list(image)}."
    reason = checks.first_of(
        weights.check_bias(graph, node, taps[0], _BIAS),
        window.check_window(node.params, (taps[1], taps[2]), (size[1], size[2])),
    )
    if reason:
        return reason
    made = window.result_shape(node.params, tuple(size), (taps[1], taps[2]), image[3])
    if made != image or size[3] != taps[0]:
        return (
            f"The output shape {size} does not belong to an input of {list(image)} with "
            f"padding {node.params['padding']}: a convolution makes {list(made)} of it."
        )
    return ""
