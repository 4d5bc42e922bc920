"""CONV_2D and FULLY_CONNECTED of quantized tensors: sums in int32, requantized by channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node, Quantization, Value
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.groups import Groups, depthwise_taps
from litegpu.ops.common.types import BYTES
from litegpu.ops.common.weights import bias_of
from litegpu.ops.common.window import POINT, window_of
from litegpu.ops.exact import numbers
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes


class ExactProducts(Exact):
    """Sums of products with constant weights; `geometry` checks the shapes, as for floats."""

    axis: ClassVar[int] = 0
    """Where the weights have the output channels."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 3),
            checks.operands(graph, node, (1, 2, 3)),
            lambda: check_products(graph, node, self.axis, four_bits=True),
            lambda: self._geometry(graph, node),
        )


class ExactConv2D(ExactProducts):
    """CONV_2D: halves are rounded up, with groups away from zero."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        outputs, height, width, depth = weights.shape
        groups = image.shape[3] // depth
        view = window_of(node.params, (height, width), (image.shape[1], image.shape[2]))
        attributes = QuantizedConvAttributes(
            view,
            weights.id,
            bias_of(node),
            (outputs, height, width, depth),
            groups,
            numbers.zero_point(image),
            weight_zero(weights),
        )
        epilogue = requantized(graph, node, new_value, away=[groups > 1])
        return products_of_groups(graph, node, image, attributes, epilogue, new_value)


def products_of_groups(
    graph: Graph,
    node: Node,
    image: Value,
    attributes: QuantizedConvAttributes,
    epilogue: tuple[EpilogueOp, ...],
    new_value: NewValue,
) -> Sequence[Node]:
    """Return what computes a convolution of bytes, an `image`, with any groups."""
    groups = Groups(attributes.shape, attributes.groups)
    weights = graph.values[attributes.weights]
    if groups.is_depthwise:
        taps, _ = depthwise_taps(node, weights, new_value)
        depthwise = QuantizedDepthwiseAttributes(
            attributes.window, taps, attributes.bias, attributes.input_zero, attributes.weight_zero
        )
        return (quantized_node(node, QUANTIZED_DEPTHWISE, image.id, depthwise, epilogue),)
    if not groups.is_padded:
        return (quantized_node(node, QUANTIZED_CONV, image.id, attributes, epilogue),)
    source, nodes = groups.pad_image(node, image, new_value)
    operand, _ = groups.pad_weights(node, weights, new_value, attributes.weight_zero)
    padded = replace(
        attributes,
        weights=operand,
        bias=groups.pad_bias(graph, attributes.bias, new_value),
        shape=groups.padded_shape,
    )
    conv = quantized_node(node, QUANTIZED_CONV, source, padded, epilogue)
    sums = replace(graph.values[node.outputs[0]], dtype=DType.INT32)
    return (*nodes, *groups.unpad_result(conv, sums, new_value))


class ExactFullyConnected(ExactProducts):
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
        epilogue = requantized(graph, node, new_value, away=[False])
        result = graph.values[node.outputs[0]]
        conv = quantized_node(node, QUANTIZED_CONV, source.id, attributes, epilogue)
        if source.shape4 == (*result.shape4[:3], inputs):
            return (conv,)
        rows = source.elements // inputs
        flat, result_rows = (new_value((rows, n), dtype=source.dtype) for n in (inputs, outputs))
        return (
            Node(node.index, "RESHAPE", 1, (source.id,), (flat,)),
            replace(conv, inputs=(flat,), outputs=(result_rows,)),
            Node(node.index, "RESHAPE", 1, (result_rows,), node.outputs),
        )


def check_products(graph: Graph, node: Node, axis: int, four_bits: bool = False) -> str:
    """Require a quantized input and output, constant weights, and a constant bias of int32.

    The scales of the weights are those along `axis`. These may have `four_bits` instead of int8:
    the CPU converts them to bytes, too.
    """
    weights, ends = graph.values[node.inputs[1]], (node.inputs[0], node.outputs[0])
    is_short = weights.dtype is DType.INT4
    alike = ends if is_short else (ends[0], weights.id, ends[1])
    return checks.first_of(
        numbers.check_tensors(graph, ends, frozenset({DType.INT8}) if is_short else BYTES),
        lambda: check_bits(weights, four_bits),
        lambda: numbers.check_same_types(graph, alike),
        lambda: check_weights(weights, axis),
        lambda: check_bias(graph, node, axis),
        lambda: numbers.check_bounds(graph, node),
        lambda: checks.first_of(*map(numbers.check_multiplier, set(_multipliers(graph, node)))),
    )


def check_bits(weights: Value, four_bits: bool) -> str:
    """Require weights of whole bytes, unless the CPU computes with `four_bits` as with these."""
    if four_bits or weights.dtype is not DType.INT4:
        return ""
    return f"Its weights, tensor {weights.id}, have 4 bits (INT4), which the CPU refuses here."


def check_weights(weights: Value, axis: int) -> str:
    """Require constant bytes with one scale, or with one for each channel along `axis`."""
    if not weights.is_constant:
        return f"The quantized weights, tensor {weights.id}, are computed."
    if weights.is_sparse:
        return (
            f"The quantized weights, tensor {weights.id}, are sparse, which the CPU multiplies in "
            "another way than dense ones."
        )
    found = weights.quantization
    if found is None:
        return f"tensor {weights.id} has no scale."
    count = weights.shape[axis]
    if len(found.scale) not in (1, count) or (len(found.scale) > 1 and found.dimension != axis):
        return (
            f"tensor {weights.id} has {len(found.scale)} scales along dimension {found.dimension}, "
            f"1 or {count} along {axis} are handled."
        )
    if not (min(found.scale) > 0 and sum(found.scale) < math.inf):  # a NaN makes the sum one
        return f"tensor {weights.id} has scales that are no positive numbers."
    low, high = numbers.LIMITS.get(weights.dtype, (-8, 7))
    if beyond := [zero for zero in found.zero_point if not low <= zero <= high]:
        return f"tensor {weights.id} has the zero point {beyond[0]}, beyond its type."
    return ""


def check_bias(graph: Graph, node: Node, axis: int, dtype: DType = DType.INT32) -> str:
    """Require an absent bias, or a constant one of a type."""
    v = bias_of(node)
    if v == ABSENT:
        return ""
    bias, outputs = graph.values[v], graph.values[node.inputs[1]].shape[axis]
    if not bias.is_constant or bias.dtype is not dtype or bias.elements != outputs:
        return f"The bias, tensor {v}, is no constant of {outputs} elements of {dtype.name}."
    return ""


def requantized(
    graph: Graph, node: Node, new_value: NewValue, away: Sequence[bool]
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that make stored integers of the sums of a checked node."""
    result = graph.values[node.outputs[0]]
    limits = numbers.bounds(node.params.get("activation", "none"), result)
    multipliers = _multipliers(graph, node)
    return numbers.requantize(new_value, multipliers, away, numbers.zero_point(result), limits)


def _multipliers(graph: Graph, node: Node) -> list[Multiplier]:
    """Return the multiplier from sums to the result's scale; of each channel, or of all.

    How the scales are multiplied decides about the last bit of a multiplier: int8 in float64, all
    of uint8 and FULLY_CONNECTED with one scale in float32.
    """
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    scales = _quantization(graph.values[node.inputs[1]]).scale
    single = source.dtype is DType.UINT8 or (node.op == "FULLY_CONNECTED" and len(scales) == 1)
    factor, divisor = numbers.scale(source), numbers.scale(result)

    def of(scale: float) -> Multiplier:
        product = numbers.float32(factor * scale) if single else factor * scale
        return Multiplier.of(product / divisor)

    return [of(scale) for scale in scales]


def _quantization(value: Value) -> Quantization:
    assert value.quantization is not None
    return value.quantization


def weight_zero(weights: Value) -> int:
    """Return the zero point of weights; 0 where there is one for each channel."""
    points = _quantization(weights).zero_point
    return points[0] if len(points) == 1 else 0


def quantized_node(
    node: Node, op: str, source: int, attributes: Any, epilogue: tuple[EpilogueOp, ...]
) -> Node:
    """Return what becomes of a node: the operation `op` on one computed input."""
    return Node(
        node.index,
        op,
        1,
        (source,),
        node.outputs,
        attributes=attributes,
        epilogue=epilogue,
    )
