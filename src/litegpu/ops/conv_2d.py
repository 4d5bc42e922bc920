"""CONV_2D, and the choice of kernel for everything that is a dense sum over channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.graph import ABSENT, SELF, Graph, Node, Stage
from litegpu.ops import checks, conv_mma, window
from litegpu.ops.base import (
    HALF_MAX,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    as_float32,
    register,
)
from litegpu.ops.elementwise import activation_stages
from litegpu.ops.window import DepthwiseAttributes

_SPLIT_ITEMS = 64
_FLOATS = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DepthwiseStep:
    """A depthwise convolution, its element-wise steps and the shape [N, H, W, C] it makes."""

    attributes: DepthwiseAttributes
    stages: tuple[Stage, ...]
    shape: tuple[int, int, int, int]

    @property
    def constants(self) -> tuple[int, ...]:
        operands = tuple(v for stage in self.stages for v in stage.operands if v != SELF)
        return (self.attributes.weights, self.attributes.bias, *operands)


@dataclass(frozen=True, slots=True)
class ConvAttributes:
    """Window, and weights [O, H, W, I] with the bias [O] (value ids; bias may be ABSENT).

    `depthwise` is computed on the fly as the input of a pointwise convolution.
    """

    window: window.Window
    weights: int
    bias: int
    groups: int = 1
    depthwise: DepthwiseStep | None = None

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias, *(self.depthwise.constants if self.depthwise else ()))


@register
class Conv2D(Op):
    """2-D convolution with constant weights: stride, dilation, groups, bias, activation."""

    name = "CONV_2D"
    max_version = 6

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        outputs, kh, kw, _ = graph.values[node.inputs[1]].shape
        return (window.result_shape(node.params, image, (kh, kw), outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, channels = graph.values[node.inputs[0]].shape
        _, kh, kw, depth = graph.values[node.inputs[1]].shape
        attributes = ConvAttributes(
            window.window_of(node.params, (kh, kw), (height, width)),
            node.inputs[1],
            bias_of(node),
            channels // depth,
        )
        stages = activation_stages(node.params)
        return (replace(node, inputs=node.inputs[:1], attributes=attributes, stages=stages),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: ConvAttributes = node.attributes
        weights = as_float32(ctx.value(attributes.weights))
        bias = None if attributes.bias == ABSENT else as_float32(ctx.value(attributes.bias))
        if attributes.depthwise is not None:
            step = _depthwise_operand(attributes.depthwise, ctx)
            view = attributes.window
            return (conv_mma.mma_kernel(node, ctx, weights, bias, view, step),)
        return (dense_kernel(node, ctx, weights, bias, attributes.window, attributes.groups),)


def _depthwise_operand(step: DepthwiseStep, ctx: LowerContext) -> conv_mma.Depthwise:
    attributes = step.attributes
    bias = None if attributes.bias == ABSENT else as_float32(ctx.value(attributes.bias)).ravel()
    taps = as_float32(ctx.value(attributes.weights))[0]
    return conv_mma.Depthwise(attributes.window, taps, bias, step.stages, step.shape)


def bias_of(node: Node, position: int = 2) -> int:
    """Return the id of an optional bias input."""
    return node.inputs[position] if len(node.inputs) > position else ABSENT


def check_bias(graph: Graph, node: Node, outputs: int, position: int = 2) -> str:
    """Require an absent bias or a constant one of `outputs` floats."""
    bias = bias_of(node, position)
    if bias == ABSENT:
        return ""
    reason = checks.constant(graph, node, position, "The bias")
    found = graph.values[bias].elements
    if not reason and found != outputs:
        reason = f"bias.size != output.c: {found} values for {outputs} output channels."
    return reason


def _check_shapes(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    weights = graph.values[node.inputs[1]].shape
    if len(image) != 4 or len(weights) != 4:
        return f"Input {list(image)} and filter {list(weights)} must have 4 dimensions."
    channels, outputs, depth = image[3], weights[0], weights[3]
    if depth < 1 or channels % depth or outputs % (channels // depth):
        return f"{channels} input channels and a filter of {list(weights)} do not form groups."
    return checks.first_of(
        check_bias(graph, node, outputs),
        window.check_window(node.params, (weights[1], weights[2]), (image[1], image[2])),
    )


def dense_kernel(
    node: Node,
    ctx: LowerContext,
    weights: _FLOATS,
    bias: _FLOATS | None,
    view: window.Window,
    groups: int = 1,
) -> KernelRequest:
    """Return the kernel of a convolution with `weights` [O, H, W, I/groups] and `bias` [O].

    The node's first input and output may have any shape whose rows of channels match the window:
    a fully connected layer is a 1x1 convolution over its rows.
    """
    if conv_mma.usable(ctx, weights, groups):
        return conv_mma.mma_kernel(node, ctx, weights, bias, view)
    dst = ctx.storage(node.outputs[0])
    src_shape = ctx.storage(node.inputs[0]).shape
    if groups > 1 and (weights.shape[3] % 4 or (weights.shape[0] // groups) % 4):
        weights, groups = _spread_groups(weights, groups), 1
    inputs = -(-weights.shape[3] // 4)
    taps = view.kernel[0] * view.kernel[1] * inputs
    flops = 2 * dst.rows * int(weights.size)
    variables = {
        "kernel": view.kernel,
        "stride": view.stride,
        "dilation": view.dilation,
        "pads": view.pads,
        "padded": view.leaves(src_shape[1:3], dst.shape[1:3]),
        "input_slices": inputs,
        "groups": groups,
        "group_outputs": weights.shape[0] // groups,
        "has_bias": bias is not None,
        "pointwise": view.pointwise,
    }
    work = dst.rows * dst.slices
    split = (
        taps >= 2 * _SPLIT_ITEMS
        and work * 4 <= ctx.target.parallel_items
        and ctx.target.max_work_group_size >= _SPLIT_ITEMS
    )
    if split:
        return KernelRequest(
            template="conv_2d_split",
            grid=(dst.slices * _SPLIT_ITEMS, dst.rows, 1),
            local=(_SPLIT_ITEMS, 1, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants=_constants(weights, bias, dst.slices, ctx),
            variables={**variables, "ITEMS": _SPLIT_ITEMS, "weight_slices": dst.slices},
            shared=(("float4", "scratch", _SPLIT_ITEMS),),
            flops=flops,
        )
    pixels, slices = _tile(dst.rows, dst.slices, groups, weights.shape[0] // groups, ctx)
    padded_slices = round_up(dst.slices, slices)
    return KernelRequest(
        template="conv_2d",
        grid=(padded_slices // slices, -(-dst.rows // pixels), 1),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=_constants(weights, bias, padded_slices, ctx),
        variables={
            **variables,
            "PIXELS": pixels,
            "SLICES": slices,
            "weight_slices": padded_slices,
        },
        flops=flops,
    )


def _tile(
    rows: int, slices: int, groups: int, group_outputs: int, ctx: LowerContext
) -> tuple[int, int]:
    """Choose the largest tile (pixels, slices) that still leaves the device enough work items."""
    whole_groups = groups == 1 or group_outputs % 8 == 0
    for pixels, wide in ((4, 2), (4, 1), (2, 2), (2, 1), (1, 2)):
        if wide > slices or pixels > rows or (wide == 2 and not whole_groups):
            continue
        if -(-rows // pixels) * -(-slices // wide) >= ctx.target.parallel_items:
            return pixels, wide
    return 1, 1


def _constants(
    weights: _FLOATS, bias: _FLOATS | None, slices: int, ctx: LowerContext
) -> dict[str, npt.NDArray[Any]]:
    constants = {"weights": in_precision(pack_weights(weights, slices), ctx)}
    if bias is not None:
        constants["bias"] = pad_channels(bias.ravel(), slices * 4)
    return constants


def in_precision(array: _FLOATS, ctx: LowerContext) -> npt.NDArray[Any]:
    """Return weights as the partition stores them; half values keep finite what is finite."""
    if ctx.target.exact_weights(array.nbytes):
        return array
    return np.clip(array, -HALF_MAX, HALF_MAX).astype(np.float16)


def pack_weights(weights: _FLOATS, slices: int) -> _FLOATS:
    """Arrange [O, H, W, I] as [H, W, input slice, output slice, 4 inputs, 4 outputs]."""
    outputs, height, width, depth = weights.shape
    inputs = -(-depth // 4)
    padded = np.zeros((slices * 4, height, width, inputs * 4), np.float32)
    padded[:outputs, :, :, :depth] = weights
    blocks = padded.reshape(slices, 4, height, width, inputs, 4)
    return np.ascontiguousarray(blocks.transpose(2, 3, 4, 0, 5, 1))


def pad_channels(vector: _FLOATS, length: int) -> _FLOATS:
    """Return a vector extended with zeros."""
    padded = np.zeros(length, np.float32)
    padded[: vector.size] = vector
    return padded


def _spread_groups(weights: _FLOATS, groups: int) -> _FLOATS:
    """Write grouped weights out as dense ones, with zeros between the groups.

    Groups that do not begin at whole slices would need lane-wise gathers; zeros cost less.
    """
    outputs, height, width, depth = weights.shape
    each = outputs // groups
    dense = np.zeros((outputs, height, width, depth * groups), np.float32)
    for g in range(groups):
        part = slice(g * each, (g + 1) * each)
        dense[part, :, :, g * depth : (g + 1) * depth] = weights[part]
    return dense
