"""CONV_2D and FULLY_CONNECTED of quantized tensors: sums in int32, requantized by channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node, Quantization, Value
from litegpu.ops import checks
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.exact import numbers
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.weights import bias_of
from litegpu.ops.window import POINT, window_of


class _ExactProducts(Exact):
    """Sums over channels; `geometry` checks the shapes, as for floats."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 3),
            checks.operands(graph, node, (1, 2, 3)),
            check_products(graph, node, axis=0),
            lambda: self._geometry(graph, node),
        )


class ExactConv2D(_ExactProducts):
    """CONV_2D: halves are rounded up, with groups away from zero."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        outputs, height, width, depth = weights.shape
        groups = image.shape[3] // depth
        held = window_of(node.params, (height, width), (image.shape[1], image.shape[2]))
        attributes = QuantizedConvAttributes(
            held,
            weights.id,
            bias_of(node),
            (outputs, height, width, depth),
            groups,
            numbers.zero_point(image),
            weight_zero(weights),
        )
        epilogue = requantized(graph, node, new_value, outputs, away=[groups > 1])
        return (_conv_node(node, image.id, attributes, epilogue),)


class ExactFullyConnected(_ExactProducts):
    """FULLY_CONNECTED: halves are rounded up. Each row of the input is a pixel."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, weights = (graph.values[v] for v in node.inputs[:2])
        outputs, inputs = weights.shape
        per_channel = len(_quantization(weights).scale) > 1
        attributes = QuantizedConvAttributes(
            POINT,
            weights.id,
            bias_of(node),
            (outputs, 1, 1, inputs),
            1,
            numbers.zero_point(source),
            0 if per_channel and weights.dtype is DType.INT8 else weight_zero(weights),
        )
        epilogue = requantized(graph, node, new_value, outputs, away=[False])
        result = graph.values[node.outputs[0]]
        if source.shape4 == (*result.shape4[:3], inputs):
            return (_conv_node(node, source.id, attributes, epilogue),)
        rows = source.elements // inputs
        flat, made = (new_value((rows, n), dtype=source.dtype) for n in (inputs, outputs))
        conv = replace(_conv_node(node, flat, attributes, epilogue), outputs=(made,))
        return (
            Node(node.index, "RESHAPE", 1, (source.id,), (flat,)),
            conv,
            Node(node.index, "RESHAPE", 1, (made,), node.outputs),
        )


def check_products(
    graph: Graph, node: Node, axis: int, weights_at: int = 1, bias_at: int = 2
) -> str:
    """Require a quantized input and output, constant weights, and a constant bias of int32.

    The scales of the weights are those along `axis`.
    """
    ends = (node.inputs[0], node.outputs[0])
    return checks.first_of(
        numbers.check_tensors(graph, ends),
        lambda: numbers.check_same_types(graph, (ends[0], node.inputs[weights_at], ends[1])),
        lambda: check_weights(graph.values[node.inputs[weights_at]], axis),
        lambda: _check_bias(graph, node, axis, weights_at, bias_at),
        lambda: numbers.check_activation(node),
    )


def check_weights(weights: Value, axis: int) -> str:
    """Require constant bytes with one scale, or with one for each channel along `axis`."""
    if not weights.is_constant:
        return f"The quantized weights, tensor {weights.id}, are computed."
    found = weights.quantization
    if found is None:
        return f"tensor {weights.id} has no scale."
    count = weights.shape[axis]
    if len(found.scale) not in (1, count) or (len(found.scale) > 1 and found.dimension != axis):
        return (
            f"tensor {weights.id} has {len(found.scale)} scales along dimension {found.dimension}, "
            f"1 or {count} along {axis} are handled."
        )
    if not all(0 < each < math.inf for each in found.scale):
        return f"tensor {weights.id} has scales that are no positive numbers."
    return ""


def _check_bias(graph: Graph, node: Node, axis: int, weights_at: int, bias_at: int) -> str:
    v = bias_of(node, bias_at)
    if v == ABSENT:
        return ""
    bias, outputs = graph.values[v], graph.values[node.inputs[weights_at]].shape[axis]
    if not bias.is_constant or bias.dtype is not DType.INT32 or bias.elements != outputs:
        return f"The bias, tensor {v}, is no constant of {outputs} elements of INT32."
    return ""


def requantized(
    graph: Graph,
    node: Node,
    new_value: NewValue,
    outputs: int,
    away: Sequence[bool],
    weights_at: int = 1,
) -> tuple[EpilogueOp, ...]:
    """Return the steps that make stored integers of the sums of a checked node.

    How the scales are multiplied decides about the last bit of a multiplier: int8 in float64, all
    of uint8 and FULLY_CONNECTED with one scale in float32.
    """
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    scales = _quantization(graph.values[node.inputs[weights_at]]).scale
    single = source.dtype is DType.UINT8 or (node.op == "FULLY_CONNECTED" and len(scales) == 1)
    factor, divisor = numbers.scale(source), numbers.scale(result)

    def of(scale: float) -> Multiplier:
        product = numbers.float32(factor * scale) if single else factor * scale
        return Multiplier.of(product / divisor)

    limits = numbers.bounds(node.params.get("activation", "none"), result)
    multipliers = [of(scale) for scale in scales]
    return numbers.requantize(new_value, multipliers, away, numbers.zero_point(result), limits)


def _quantization(value: Value) -> Quantization:
    assert value.quantization is not None
    return value.quantization


def weight_zero(weights: Value) -> int:
    """Return the zero point of weights; 0 where there is one for each channel."""
    points = _quantization(weights).zero_point
    return points[0] if len(points) == 1 else 0


def _conv_node(
    node: Node, source: int, attributes: QuantizedConvAttributes, epilogue: tuple[EpilogueOp, ...]
) -> Node:
    return Node(
        node.index,
        QUANTIZED_CONV,
        1,
        (source,),
        node.outputs,
        attributes=attributes,
        epilogue=epilogue,
    )
