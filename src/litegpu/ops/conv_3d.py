"""CONV_3D and CONV_3D_TRANSPOSE, as 2-D convolutions over images whose channels include depth.

All depth slices that a window covers become channels of one image [N, H, W, slices * channels].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, as_float32, constant_list, register
from litegpu.ops.common import checks, facts, weights, window
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Pair
from litegpu.ops.conv_2d import conv_nodes
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, MixedRadix, Source, plain
from litegpu.ops.reshape import reshape_node

_SHAPE, _IMAGE, _BIAS = 0, 2, 3
_MAX_WEIGHTS = 1 << 22
"""Maximum number of weights, including the zeros that are added for missing taps of an output."""


@dataclass(frozen=True, slots=True)
class _Depth:
    """A convolution window along the depth axis."""

    taps: int
    stride: int
    dilation: int
    pad: int

    @classmethod
    def of(cls, params: Mapping[str, Any], taps: int, size: int) -> _Depth:
        """Return the window of a node over `size` slices."""
        stride, dilation = params["stride_depth"], params["dilation_depth_factor"]
        pad = 0
        if params["padding"] == "same":
            out = window.output_size(size, taps, stride, dilation, "same")
            pad = window.leading_pad(size, out, taps, stride, dilation)
        return cls(taps, stride, dilation, pad)


@register
class Conv3D(Op):
    """3-D convolution with stride, dilation, padding, bias, activation; weights may be computed."""

    name = "CONV_3D"
    max_version = 1
    traits = Trait.SUMS_PRODUCTS

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_output(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        taps = graph.values[node.inputs[1]].shape
        return (_result_shape(node, graph.values[node.inputs[0]].shape, taps[:3], taps[4]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, filters = (graph.values[v] for v in node.inputs[:2])
        n, slices, height, width, channels = image.shape
        taps, kh, kw, _, outputs = filters.shape
        result = graph.values[node.outputs[0]].shape
        depth = _Depth.of(node.params, taps, slices)
        gathered = (n * result[1], height, width, taps * channels)
        digits = (
            MixedRadix((n, result[1])),
            *plain((height, width)),
            MixedRadix((taps, channels)),
        )
        slice_source = Source(((1, depth.stride), (4, depth.dilation)), -depth.pad, bounded=True)
        sources = (Source(((0, 1),)), slice_source, *(Source(((i, 1),)) for i in (2, 3, 5)))
        source, nodes = _gathered(node, image.id, gathered, digits, sources, new_value)
        shape = (outputs, kh, kw, taps * channels)
        if filters.is_constant:
            data = as_float32(filters).transpose(4, 1, 2, 0, 3).reshape(shape)
            operand = new_value(shape, np.ascontiguousarray(data))
            packed: tuple[int, ...] = ()
        else:
            order = IndexMapAttributes(
                (*plain(shape[:3]), MixedRadix((taps, channels))),
                tuple(Source(((i, 1),)) for i in (3, 1, 2, 4, 0)),
            )
            moved = new_value(shape)
            nodes += (Node(node.index, INDEX_MAP, 1, (filters.id,), (moved,), attributes=order),)
            operand, pack = weights.pack_node(node, moved, shape, 1, new_value)
            nodes, packed = (*nodes, pack), (operand,)
        bias, epilogue = weights.normalize_bias(graph, node)
        view = window.window_of(node.params, (kh, kw), (height, width))
        normalized = weights.Normalized(nodes, packed, operand, bias, shape, 1, epilogue)
        flat = new_value((n * result[1], *result[2:]))
        conv = replace(node, op="CONV_2D", outputs=(flat,))
        return (
            *conv_nodes(conv, source, view, normalized),
            reshape_node(node, flat, node.outputs[0]),
        )


@register
class Conv3DTranspose(Op):
    """3-D transposed convolution with stride, dilation, padding, bias, activation."""

    name = "CONV_3D_TRANSPOSE"
    max_version = 1
    shape_operands = (_SHAPE,)
    traits = Trait.SUMS_PRODUCTS

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, _IMAGE, (1,))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.weighted(graph, node, "The filter", _check_transposed, _IMAGE),
            lambda: checks.constant(graph, node, 1, "The filter"),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(constant_list(graph, node.inputs[_SHAPE])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Compute `phases` depth slices of the result at once, as groups of output channels."""
        image, filters = (graph.values[v] for v in (node.inputs[_IMAGE], node.inputs[1]))
        n, _, height, width, channels = image.shape
        result = graph.values[node.outputs[0]].shape
        taps = _Phases.of(node, filters.shape[0], result[1])
        steps = -(-result[1] // taps.phases)
        gathered = (n * steps, height, width, taps.slices * channels)
        digits = (
            MixedRadix((n, steps)),
            *plain((height, width)),
            MixedRadix((taps.slices, channels)),
        )
        slice_source = Source(((1, 1), (4, 1)), taps.first, bounded=True)
        sources = (Source(((0, 1),)), slice_source, *(Source(((i, 1),)) for i in (2, 3, 5)))
        source, nodes = _gathered(node, image.id, gathered, digits, sources, new_value)
        data = taps.weights(as_float32(filters), _dilations(node))
        bias, epilogue = weights.normalize_bias(graph, node, _BIAS)
        if bias != ABSENT:
            terms = np.tile(as_float32(graph.values[bias]).ravel(), taps.phases)
            bias = new_value(terms.shape, terms)
        shape = (data.shape[0], data.shape[1], data.shape[2], data.shape[3])
        params = {**node.params, "dilation_height_factor": 1, "dilation_width_factor": 1}
        view = window.window_of(params, (shape[1], shape[2]), (result[2], result[3]))
        parts = new_value((n * steps, *result[2:4], shape[0]))
        conv = replace(node, op="TRANSPOSE_CONV", outputs=(parts,))
        operand = new_value(shape, data)
        if taps.phases == 1:
            normalized = weights.Normalized(nodes, (), operand, bias, shape, 1, epilogue)
            found = conv_nodes(conv, source, view, normalized)
            return (*found, reshape_node(node, parts, node.outputs[0]))
        normalized = weights.Normalized(nodes, (), operand, bias, shape, 1, ())
        # Slices that the last phases compute beyond the result are dropped.
        moved = IndexMapAttributes(
            (MixedRadix((n,)), MixedRadix((steps, taps.phases)), *plain(result[2:])),
            (
                Source(((0, steps), (1, 1)), bounded=result[1] < steps * taps.phases),
                *(Source(((i, 1),)) for i in (3, 4)),
                Source(((2, result[4]), (5, 1))),
            ),
        )
        last = Node(node.index, INDEX_MAP, 1, (parts,), node.outputs, attributes=moved)
        return (
            *conv_nodes(conv, source, view, normalized),
            replace(last, epilogue=epilogue),
        )


@dataclass(frozen=True, slots=True)
class _Phases:
    """The mapping from taps to input slices for a transposed window along the depth axis.

    The input slices from `step + first` on determine result slice `step * phases + phase`.
    """

    depth: _Depth
    phases: int
    first: int
    slices: int

    @classmethod
    def of(cls, node: Node, taps: int, size: int) -> _Phases:
        """Return the phases of a node whose result has `size` slices."""
        depth = _Depth.of(node.params, taps, size)
        phases = min(depth.stride, size)
        found = [place for _, _, place in cls(depth, phases, 0, 0)._meetings()] or [0]
        return cls(depth, phases, min(found), max(found) - min(found) + 1)

    def _meetings(self) -> list[tuple[int, int, int]]:
        """Return (phase, tap, input slice minus step) for all combinations that contribute."""
        depth = self.depth
        found = [
            (phase, tap, divmod(phase + depth.pad - tap * depth.dilation, depth.stride))
            for phase in range(self.phases)
            for tap in range(depth.taps)
        ]
        return [(phase, tap, place) for phase, tap, (place, rest) in found if rest == 0]

    def weights(self, filters: weights.Floats, dilations: Pair) -> weights.Floats:
        """Arrange weights as [phase and O, H, W, slice and I], with zeros between taps."""
        _, kh, kw, outputs, channels = filters.shape
        extents = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
        shape = (self.phases, outputs, *extents, self.slices, channels)
        found = np.zeros(shape, np.float32)
        rows, columns = (slice(None, None, d) for d in dilations)
        for phase, tap, place in self._meetings():
            found[phase, :, rows, columns, place - self.first] = filters[tap].transpose(2, 0, 1, 3)
        return found.reshape(self.phases * outputs, *extents, self.slices * channels)

    def elements(self, filters: Shape, dilations: Pair) -> int:
        """Return the number of weights, including zeros."""
        _, kh, kw, outputs, channels = filters
        extents = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
        return self.phases * self.slices * math.prod(extents) * outputs * channels


def _gathered(
    node: Node,
    image: int,
    shape: Shape,
    digits: tuple[MixedRadix, ...],
    sources: tuple[Source, ...],
    new_value: NewValue,
) -> tuple[int, tuple[Node, ...]]:
    """Return the value id of an image with all slices of a window, and the node that gathers it."""
    v = new_value(shape)
    attributes = IndexMapAttributes(digits, sources)
    return v, (Node(node.index, INDEX_MAP, 1, (image,), (v,), attributes=attributes),)


def _dilations(node: Node) -> Pair:
    return node.params["dilation_height_factor"], node.params["dilation_width_factor"]


def _result_shape(node: Node, image: Shape, taps: Shape, channels: int) -> Shape:
    """Return the output shape [N, D, H, W, C] of a window over an image [N, D, H, W, ...]."""
    n, slices, height, width, _ = image
    stride, dilation = node.params["stride_depth"], node.params["dilation_depth_factor"]
    depth = window.output_size(slices, taps[0], stride, dilation, node.params["padding"])
    size = window.output_shape(node.params, (taps[1], taps[2]), (height, width))
    return n, depth, *size, channels


def _check_window(node: Node, taps: Shape, image: Shape) -> str:
    """Require that the window [D, H, W] fits the image [D, H, W]."""
    params = node.params
    depth = {
        **params,
        "stride_height": params["stride_depth"],
        "dilation_height_factor": params["dilation_depth_factor"],
    }
    return checks.first_of(
        window.check_window(params, (taps[1], taps[2]), (image[1], image[2])),
        lambda: window.check_window(depth, (taps[0], taps[2]), (image[0], image[2])),
    )


def _check_shapes(graph: Graph, node: Node) -> str:
    image, taps = (graph.values[v].shape for v in node.inputs[:2])
    if len(image) != 5 or len(taps) != 5:
        return f"Input {list(image)} and filter {list(taps)} must have 5 dimensions."
    if image[4] != taps[3]:
        return f"A filter of {list(taps)} does not match {image[4]} input channels."
    if reason := _check_window(node, taps[:3], image[1:4]):
        return reason
    rows = math.prod(_result_shape(node, image, taps[:3], taps[4])[:2])
    return checks.first_of(
        checks.size(node.inputs[0], (rows, *image[2:4], taps[0] * image[4])),
        lambda: weights.check_bias(graph, node, taps[4]),
    )


def _check_transposed(graph: Graph, node: Node) -> str:
    if reason := checks.integers(graph, node, _SHAPE, "The output shape"):
        return reason
    size = constant_list(graph, node.inputs[_SHAPE])
    taps, image = (graph.values[node.inputs[i]].shape for i in (1, _IMAGE))
    if not len(size) == len(taps) == len(image) == 5:
        return f"Output shape {size}, filter {list(taps)}, input {list(image)}: all must be 5-D."
    if taps[4] != image[4] or taps[3] != size[4] or min(size) < 1:
        return f"A filter of {list(taps)} does not produce {size} from {list(image)}."
    if reason := _check_window(node, taps[:3], tuple(size[1:4])):
        return reason
    convolved = _result_shape(node, tuple(size), taps[:3], image[4])
    if convolved != image:
        return (
            f"The output shape {size} does not belong to an input of {list(image)} with "
            f"padding {node.params['padding']}: a convolution reduces it to {list(convolved)}."
        )
    phases = _Phases.of(node, taps[0], size[1])
    elements = phases.elements(taps, _dilations(node))
    if elements > max(_MAX_WEIGHTS, 4 * math.prod(taps)):
        return f"The expanded weights, with zeros between taps, would have {elements} floats."
    steps = -(-size[1] // phases.phases)
    return checks.first_of(
        checks.size(node.inputs[_IMAGE], (size[0] * steps, *image[2:4], phases.slices * image[4])),
        lambda: weights.check_bias(graph, node, taps[3], _BIAS),
    )
