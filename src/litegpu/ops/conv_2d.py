"""CONV_2D, and code shared by all operations that are dense sums over channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, SpecContext, as_float32, register
from litegpu.ops.common import checks, facts, weights, window
from litegpu.ops.common.conv_spec import ConvSpec, Depthwise, Expand
from litegpu.ops.common.groups import Groups, depthwise_taps
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.weights import check_bias
from litegpu.ops.common.window import DepthwiseAttributes
from litegpu.ops.exact.conv import ExactConv2D
from litegpu.ops.exact.hybrid import HybridConv2D, OrHybrid


@dataclass(frozen=True, slots=True)
class ExpandOperand:
    """A convolution computed on the fly, with its epilogue and output shape [N, H, W, O].

    `middle` is the value id of the convolution's output before the fusion.
    """

    attributes: ConvAttributes
    epilogue: tuple[EpilogueOp, ...]
    shape: Shape4
    middle: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (*self.attributes.constants, *_operands(self.epilogue))


@dataclass(frozen=True, slots=True)
class DepthwiseOperand:
    """A depthwise convolution computed on the fly, with its epilogue and output shape [N, H, W, C].

    Without weights, the op computes the mean over its window. `middle` is the value id of the op's
    output before the fusion. `expand` is a convolution that computes the op's input on the fly.
    """

    attributes: DepthwiseAttributes
    epilogue: tuple[EpilogueOp, ...]
    shape: tuple[int, int, int, int]
    middle: int
    expand: ExpandOperand | None = None

    @property
    def constants(self) -> tuple[int, ...]:
        before = self.expand.constants if self.expand else ()
        own = (self.attributes.weights, self.attributes.bias, *_operands(self.epilogue))
        return (*before, *own)


def _operands(epilogue: tuple[EpilogueOp, ...]) -> tuple[int, ...]:
    return tuple(v for each in epilogue for v in each.operands if v != SELF)


@dataclass(frozen=True, slots=True)
class ConvAttributes:
    """The window, and value ids of weights of `shape` [O, H, W, I / groups] and of the bias [O].

    The value id of computed weights refers to packed weights. `bias` is ABSENT if the node has no
    bias or a computed bias. `depthwise` computes the input of a pointwise convolution on the fly.
    """

    window: window.Window
    weights: int
    bias: int
    shape: Shape4
    groups: int = 1
    depthwise: DepthwiseOperand | None = None

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias, *(self.depthwise.constants if self.depthwise else ()))


@register
class Conv2D(Op):
    """2-D convolution with stride, dilation, groups, bias, activation, and any weights."""

    name = "CONV_2D"
    max_version = 8
    traits = Trait.SUMS_PRODUCTS | Trait.WEIGHTED | Trait.CONTRACTION | Trait.WINDOWED
    exact = OrHybrid(
        ExactConv2D(lambda graph, node: _check_geometry(graph, node)),
        HybridConv2D(lambda graph, node: _check_geometry(graph, node)),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_output(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        outputs, kh, kw, _ = graph.values[node.inputs[1]].shape
        return (window.result_shape(node.params, image, (kh, kw), outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, channels = graph.values[node.inputs[0]].shape
        outputs, kh, kw, depth = graph.values[node.inputs[1]].shape
        groups = Groups((outputs, kh, kw, depth), channels // depth)
        view = window.window_of(node.params, (kh, kw), (height, width))
        if groups.is_depthwise:
            return _depthwise_nodes(graph, node, view, new_value)
        if groups.is_padded:
            return _padded_nodes(graph, node, view, groups, new_value)
        normalized = weights.normalize(graph, node, new_value, groups.shape, groups.count)
        return conv_nodes(node, node.inputs[0], view, normalized)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec]:
        return (conv_spec(node, ctx, image=True),)


def conv_nodes(
    node: Node, image: int, view: window.Window, normalized: weights.Normalized
) -> tuple[Node, ...]:
    """Return the nodes of a convolution: packing of weights, if computed, and the convolution."""
    attributes = ConvAttributes(
        view, normalized.weights, normalized.bias, normalized.shape, normalized.groups
    )
    inputs = (image, *normalized.inputs)
    return (
        *normalized.nodes,
        replace(node, inputs=inputs, attributes=attributes, epilogue=normalized.epilogue),
    )


def _depthwise_nodes(
    graph: Graph, node: Node, view: window.Window, new_value: NewValue
) -> tuple[Node, ...]:
    """Return the nodes of a convolution with one channel per group: a depthwise convolution."""
    taps, nodes = depthwise_taps(node, graph.values[node.inputs[1]], new_value)
    bias, epilogue = weights.normalize_bias(graph, node)
    inputs = (node.inputs[0], *(taps for _ in nodes))
    attributes = DepthwiseAttributes(view, taps, bias)
    conv = replace(node, inputs=inputs, attributes=attributes, epilogue=epilogue)
    return (*nodes, replace(conv, op="DEPTHWISE_CONV_2D", version=1))


def _padded_nodes(
    graph: Graph, node: Node, view: window.Window, groups: Groups, new_value: NewValue
) -> tuple[Node, ...]:
    """Return the nodes of a convolution whose groups are padded to whole channel blocks."""
    image, nodes = groups.pad_image(node, graph.values[node.inputs[0]], new_value)
    operand, computed = groups.pad_weights(node, graph.values[node.inputs[1]], new_value)
    inputs: tuple[int, ...] = (image,)
    if computed:
        shape, count = groups.padded_shape, groups.count
        operand, pack = weights.pack_node(node, operand, shape, count, new_value)
        computed.append(pack)
        inputs = (image, operand)
    bias, epilogue = weights.normalize_bias(graph, node)
    bias = groups.pad_bias(graph, bias, new_value)
    attributes = ConvAttributes(view, operand, bias, groups.padded_shape, groups.count)
    conv = replace(node, inputs=inputs, attributes=attributes, epilogue=epilogue)
    result = graph.values[node.outputs[0]]
    return (*nodes, *computed, *groups.unpad_result(conv, result, new_value))


def merged_values(node: Node) -> tuple[int, ...]:
    """Return the values that a node computes on the fly because of its most recent fusion."""
    inner = getattr(node.attributes, "depthwise", None) or node.attributes
    inner = getattr(inner, "expand", None) or inner
    return (inner.middle,) if hasattr(inner, "middle") else ()


def conv_spec(node: Node, ctx: SpecContext, image: bool) -> ConvSpec:
    """Return the spec of a node with ConvAttributes; ConvSpec describes `image`.

    The first input and the output may have any shape whose rows of channels match the window. For
    example, a fully connected layer is a 1x1 convolution over the rows of its input.
    """
    attributes: ConvAttributes = node.attributes
    siblings = ctx.value(node.outputs[0]).siblings
    operand = replace(weights.read(ctx, attributes), siblings=siblings)
    inner = None if attributes.depthwise is None else _depthwise_operand(attributes.depthwise, ctx)
    src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
    return ConvSpec(src, dst, operand, attributes.window, image, inner)


def _depthwise_operand(inner: DepthwiseOperand, ctx: SpecContext) -> Depthwise:
    attributes = inner.attributes
    bias = weights.read_bias(ctx, attributes.bias)
    is_mean = attributes.weights == ABSENT
    taps = None if is_mean else as_float32(ctx.value(attributes.weights))[0]
    expand = None if inner.expand is None else _expand_operand(inner.expand, ctx)
    return Depthwise(attributes.window, taps, bias, inner.epilogue, inner.shape, expand)


def _expand_operand(inner: ExpandOperand, ctx: SpecContext) -> Expand:
    operand = weights.read(ctx, inner.attributes)
    assert operand.array is not None
    return Expand(inner.attributes.window, operand.array, operand.bias, inner.epilogue, inner.shape)


def _check_shapes(graph: Graph, node: Node) -> str:
    return checks.first_of(
        _check_geometry(graph, node),
        lambda: check_bias(graph, node, graph.values[node.inputs[1]].shape[0]),
    )


def _check_geometry(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    kernel = graph.values[node.inputs[1]].shape
    if len(image) != 4 or len(kernel) != 4:
        return f"Input {list(image)} and filter {list(kernel)} must have 4 dimensions."
    channels, outputs, depth = image[3], kernel[0], kernel[3]
    if depth < 1 or channels % depth or outputs % (channels // depth):
        return f"{channels} input channels and a filter of {list(kernel)} do not form groups."
    return window.check_window(node.params, (kernel[1], kernel[2]), (image[1], image[2]))
