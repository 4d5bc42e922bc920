"""Quantized CONV_2D and FULLY_CONNECTED, with integer sums requantized per output channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from litegpu.graph import ABSENT, PACKED_TYPES, DType, EpilogueOp, Graph, Node, Quantization, Value
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.groups import Groups, depthwise_taps
from litegpu.ops.common.types import QUANTIZED_TYPES, TYPE_CODES
from litegpu.ops.common.weights import bias_of
from litegpu.ops.common.window import POINT, window_of
from litegpu.ops.exact import numbers, wide_sums
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes

_WITH_PACKED = frozenset({DType.INT8, DType.INT16})
"""The activation types that the CPU multiplies by weights of fewer than 8 bits."""


class Products(Protocol):
    """A function that returns the nodes that multiply an `image` of bytes by constant weights."""

    def __call__(
        self,
        graph: Graph,
        node: Node,
        image: Value,
        attributes: Any,
        epilogue: tuple[EpilogueOp, ...],
        new_value: NewValue,
    ) -> Sequence[Node]: ...


class ExactProducts(Exact):
    """Base of convolutions with constant quantized weights; `geometry` checks the shapes."""

    axis: ClassVar[int] = 0
    """The weights' axis of output channels."""
    packed: ClassVar[frozenset[DType]] = frozenset({DType.INT4})
    """The weight types of fewer than 8 bits that the CPU accepts and unpacks to int8."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 3),
            checks.operands(graph, node, (1, 2, 3)),
            lambda: check_products(graph, node, self.axis, self.packed),
            lambda: self._geometry(graph, node),
        )


class ExactConv2D(ExactProducts):
    """Quantized CONV_2D: rounds half up, or half away from zero for grouped convolutions."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        zero = numbers.zero_point(image)
        attributes = conv_attributes(graph, node, bias_of(node), zero, weight_zero(weights))
        away = [attributes.groups > 1]
        return sums_of_products(graph, node, new_value, products_of_groups, attributes, away)


def conv_attributes(
    graph: Graph, node: Node, bias: int = ABSENT, input_zero: int = 0, weight_zero: int = 0
) -> QuantizedConvAttributes:
    """Return the attributes of a CONV_2D: window, weights, groups, bias and zero points."""
    image, weights = (graph.values[v] for v in node.inputs[:2])
    outputs, height, width, depth = weights.shape
    view = window_of(node.params, (height, width), (image.shape[1], image.shape[2]))
    return QuantizedConvAttributes(
        view,
        weights.id,
        bias,
        (outputs, height, width, depth),
        image.shape[3] // depth,
        input_zero,
        weight_zero,
    )


def products_of_groups(
    graph: Graph,
    node: Node,
    image: Value,
    attributes: QuantizedConvAttributes,
    epilogue: tuple[EpilogueOp, ...],
    new_value: NewValue,
) -> Sequence[Node]:
    """Return the nodes of a convolution of an `image` of bytes, with one or several groups."""
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
    """FULLY_CONNECTED as a 1x1 convolution over input rows; rescaling rounds half up."""

    packed = PACKED_TYPES

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
        result = graph.values[node.outputs[0]]
        if source.shape4 == (*result.shape4[:3], inputs):
            return sums_of_products(graph, node, new_value, _CONV, attributes, [False])
        rows = source.elements // inputs
        flat, product_rows = (
            replace(end, id=new_value((rows, n), dtype=end.dtype), shape=(rows, n))
            for end, n in ((source, inputs), (result, outputs))
        )
        rowwise = replace(
            graph, values={**graph.values, flat.id: flat, product_rows.id: product_rows}
        )
        product = replace(node, inputs=(flat.id, *node.inputs[1:]), outputs=(product_rows.id,))
        return (
            Node(node.index, "RESHAPE", 1, (source.id,), (flat.id,)),
            *sums_of_products(rowwise, product, new_value, _CONV, attributes, [False]),
            Node(node.index, "RESHAPE", 1, (product_rows.id,), node.outputs),
        )


def check_products(
    graph: Graph, node: Node, axis: int, packed: frozenset[DType] = frozenset()
) -> str:
    """Require a quantized input and output, constant weights, and a constant bias of int32.

    The weights must have one scale, or one scale for each channel along `axis`. The weight type
    must be int8 or one of the `packed` types, which the CPU unpacks to int8.
    """
    weights, ends = graph.values[node.inputs[1]], (node.inputs[0], node.outputs[0])
    is_short, is_wide = weights.dtype in PACKED_TYPES, is_of_16_bits(graph, node)
    alike = ends if is_short or is_wide else (ends[0], weights.id, ends[1])
    return checks.first_of(
        numbers.check_tensors(graph, ends, _WITH_PACKED if is_short else QUANTIZED_TYPES),
        lambda: check_bits(weights, packed),
        lambda: numbers.check_same_types(graph, alike),
        lambda: check_weights(weights, axis),
        lambda: _check_wide(graph, node) if is_wide else check_bias(graph, node, axis),
        lambda: numbers.check_bounds(graph, node),
        lambda: checks.first_of(*map(_multiplier_check(graph, node), set(_factors(graph, node)))),
    )


def is_of_16_bits(graph: Graph, node: Node) -> bool:
    """Whether the first input of a node is INT16."""
    return graph.values[node.inputs[0]].dtype is DType.INT16


def check_bits(weights: Value, packed: frozenset[DType]) -> str:
    """Require weights of 8 bits or more, or of a `packed` type that the CPU unpacks."""
    bits = weights.dtype.packed_bits
    if not bits or weights.dtype in packed:
        return ""
    return (
        f"Its weights, tensor {weights.id}, have {bits} bits ({weights.dtype.name}), which the "
        "CPU rejects here."
    )


def check_weights(weights: Value, axis: int) -> str:
    """Require constant 8-bit weights with one scale, or with a scale per channel along `axis`."""
    if not weights.is_constant:
        return f"The quantized weights, tensor {weights.id}, are computed."
    if weights.is_sparse:
        return (
            f"The quantized weights, tensor {weights.id}, are sparse; the CPU multiplies them in "
            "another way than dense weights."
        )
    found = weights.quantization
    if found is None:
        return f"tensor {weights.id} has no scale."
    count = weights.shape[axis]
    if len(found.scale) not in (1, count) or (len(found.scale) > 1 and found.dimension != axis):
        return (
            f"tensor {weights.id} has {len(found.scale)} scales along dimension {found.dimension} "
            f"instead of 1 or {count} along {axis}."
        )
    if not (min(found.scale) > 0 and sum(found.scale) < math.inf):  # a NaN makes the sum one
        return f"tensor {weights.id} has scales that are no positive numbers."
    if weights.dtype in PACKED_TYPES:
        if any(found.zero_point):
            return f"Its weights, tensor {weights.id}, have zero points other than 0."
        return ""
    low, high = numbers.LIMITS[weights.dtype]
    if beyond := [zero for zero in found.zero_point if not low <= zero <= high]:
        return f"tensor {weights.id} has the zero point {beyond[0]}, beyond its type."
    return ""


def check_bias(graph: Graph, node: Node, axis: int, dtype: DType = DType.INT32) -> str:
    """Require that the bias is absent, or a constant of dtype `dtype`."""
    v = bias_of(node)
    if v == ABSENT:
        return ""
    bias, outputs = graph.values[v], graph.values[node.inputs[1]].shape[axis]
    if not bias.is_constant or bias.dtype is not dtype or bias.elements != outputs:
        return f"The bias, tensor {v}, is no constant of {outputs} elements of {dtype.name}."
    return ""


def _check_wide(graph: Graph, node: Node) -> str:
    """Require zero points of 0, a supported bias type, and a limited number of products."""
    weights, bias = graph.values[node.inputs[1]], bias_of(node)
    by_channel = node.op == "DEPTHWISE_CONV_2D"
    axis = 3 if by_channel else 0
    outputs = weights.shape[axis]
    if reason := numbers.check_no_zeros(graph, (node.inputs[0], *node.outputs)):
        return reason
    if weights.dtype is not DType.INT8 and (weights.dtype not in PACKED_TYPES or by_channel):
        return f"Its weights, tensor {weights.id}, are {weights.dtype.name} instead of INT8."
    if any(_quantization(weights).zero_point):
        return f"Its weights, tensor {weights.id}, have zero points other than 0."
    channels = graph.values[node.inputs[0]].shape[-1]
    if node.params.get("depth_multiplier", outputs // channels) != outputs // channels:
        return "The parameter depth_multiplier, which the CPU uses, does not fit the weights."
    dtype = _type_of_sums(graph, node)
    unknown = node.op == "FULLY_CONNECTED" and node.params.get("quantized_bias_type") == 0
    if bias == ABSENT and unknown:
        return "Without a bias, the type of the sums is not known."
    value = None if bias == ABSENT else graph.values[bias]
    return checks.first_of(
        check_bias(graph, node, axis, dtype),
        lambda: wide_sums.check_bias(value),
        lambda: wide_sums.check_terms(weights.elements // outputs),
    )


def _type_of_sums(graph: Graph, node: Node) -> DType:
    """Return the CPU's accumulator type for INT16 products, which is also the bias type."""
    stated = TYPE_CODES.get(node.params.get("quantized_bias_type", 0))
    if stated is not None:
        return stated
    if node.op != "FULLY_CONNECTED":
        return DType.INT64
    bias = bias_of(node)
    is_long = bias != ABSENT and graph.values[bias].dtype is DType.INT64
    return DType.INT64 if is_long else DType.INT32


def _adds_longs(graph: Graph, node: Node) -> bool:
    """Whether the CPU accumulates in 64 bits."""
    return is_of_16_bits(graph, node) and _type_of_sums(graph, node) is DType.INT64


def sums_of_products(
    graph: Graph,
    node: Node,
    new_value: NewValue,
    products: Products,
    attributes: QuantizedConvAttributes | QuantizedDepthwiseAttributes,
    away: Sequence[bool],
) -> tuple[Node, ...]:
    """Return the nodes of a checked convolution; `numbers.requantize` describes `away`."""
    image, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    epilogue = _requantized(graph, node, new_value, away)
    if not is_of_16_bits(graph, node):
        return (*products(graph, node, image, attributes, epilogue, new_value),)
    halves = wide_sums.split(node.index, image, new_value)
    total = replace(result, id=new_value(result.shape, dtype=DType.INT32), dtype=DType.INT32)
    first: tuple[EpilogueOp, ...] = (EpilogueOp("ADD_HIGH_SUM", (total.id,)),)
    no_bias = replace(attributes, bias=ABSENT)
    if _adds_longs(graph, node):
        bias = bias_of(node)
        terms = None if bias == ABSENT else graph.values[bias]
        first, attributes = wide_sums.long_sums(total.id, new_value, terms), no_bias
    low = replace(attributes, input_zero=wide_sums.LOW_ZERO)
    wide = replace(graph, values={**graph.values, total.id: total})
    summing = replace(node, outputs=(total.id,))
    return (
        *halves.nodes,
        *products(wide, summing, halves.high, no_bias, (), new_value),
        *products(wide, node, halves.low, low, (*first, *epilogue), new_value),
    )


def _requantized(
    graph: Graph, node: Node, new_value: NewValue, away: Sequence[bool]
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that requantize the sums of a checked node."""
    result = graph.values[node.outputs[0]]
    limits = numbers.bounds(node.params.get("activation", "none"), result)
    factors = _factors(graph, node)
    if not _adds_longs(graph, node):
        multipliers = [Multiplier.of(factor) for factor in factors]
        return numbers.requantize(new_value, multipliers, away, numbers.zero_point(result), limits)
    if node.op == "FULLY_CONNECTED":
        scaled = wide_sums.round_product(new_value, factors)
    else:
        scaled = wide_sums.requantize_long(new_value, [Multiplier.of(each) for each in factors])
    return (scaled, numbers.clamp(limits))


def _multiplier_check(graph: Graph, node: Node) -> Callable[[float], str]:
    """Return a check of a node's rescale factors in the CPU's fixed-point format."""
    if not _adds_longs(graph, node):
        return lambda factor: numbers.check_multiplier(Multiplier.of(factor))
    if node.op == "FULLY_CONNECTED":
        return wide_sums.check_factor
    return lambda factor: wide_sums.check_multiplier(Multiplier.of(factor))


def _factors(graph: Graph, node: Node) -> list[float]:
    """Return the factors from sums to the result's scale: one factor, or one per channel.

    The precision of the product of scales affects the last bit of a multiplier. The CPU multiplies
    scales in float32 for uint8 and for FULLY_CONNECTED with one scale, unless sums have 64 bits.
    For other types and ops, the CPU multiplies scales in float64.
    """
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    scales = _quantization(graph.values[node.inputs[1]]).scale
    single = source.dtype is DType.UINT8 or (node.op == "FULLY_CONNECTED" and len(scales) == 1)
    single = single and not _adds_longs(graph, node)
    factor, divisor = numbers.scale(source), numbers.scale(result)
    products = (factor * scale for scale in scales)
    return [(numbers.float32(each) if single else each) / divisor for each in products]


def _quantization(value: Value) -> Quantization:
    assert value.quantization is not None
    return value.quantization


def weight_zero(weights: Value) -> int:
    """Return the zero point of weights; 0 if they are quantized per channel."""
    points = _quantization(weights).zero_point
    return points[0] if len(points) == 1 else 0


def node_of(op: str) -> Products:
    """Return a `Products` that creates a single node of the op `op`."""

    def products(
        graph: Graph,
        node: Node,
        image: Value,
        attributes: Any,
        epilogue: tuple[EpilogueOp, ...],
        new_value: NewValue,
    ) -> Sequence[Node]:
        return (quantized_node(node, op, image.id, attributes, epilogue),)

    return products


_CONV = node_of(QUANTIZED_CONV)


def quantized_node(
    node: Node, op: str, source: int, attributes: Any, epilogue: tuple[EpilogueOp, ...]
) -> Node:
    """Return `node` as the operation `op` with one computed input."""
    return Node(
        node.index,
        op,
        1,
        (source,),
        node.outputs,
        attributes=attributes,
        epilogue=epilogue,
    )
