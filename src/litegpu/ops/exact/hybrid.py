"""Dynamic-range quantization: products of float activations and quantized constant weights.

Kernels quantize the activations at run time, and scale integer sums back to float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, PACKED_TYPES, DType, EpilogueOp, Graph, Node, Quantization, Value
from litegpu.host.large_arrays import LEAST
from litegpu.ops.base import Exact, NewValue, as_float32, constant_list
from litegpu.ops.blockwise_product import BLOCKWISE_PRODUCT, BlockwiseProductAttributes
from litegpu.ops.common import checks
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.nibble_words import NIBBLES
from litegpu.ops.common.types import check_variable
from litegpu.ops.common.weights import bias_of
from litegpu.ops.common.window import POINT, window_of
from litegpu.ops.exact import nibbles, numbers
from litegpu.ops.exact.conv import (
    ExactProducts,
    check_bias,
    check_bits,
    check_weights,
    conv_attributes,
    products_of_groups,
    quantized_node,
)
from litegpu.ops.exact.float_rows import FloatRows
from litegpu.ops.exact.loops import Body
from litegpu.ops.exact.transpose_conv import as_convolution
from litegpu.ops.hybrid_transpose_conv import (
    HYBRID_TRANSPOSE_CONV,
    HybridTransposeAttributes,
)
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes

_IMAGE = 3
"""Number of axes of an image [H, W, C], which dynamic quantization treats as one row."""
_MAX_IN_BLOCK = 8192
"""Maximum block size, for which float32 represents the sum of products exactly."""


class OrHybrid(Exact):
    """Selects between the fully quantized and the dynamic-range implementation of an op."""

    def __init__(self, of_bytes: Exact, of_floats: Exact, position: int = 0) -> None:
        """Store both implementations; the type of the input at `position` selects one of them."""
        self._of_bytes, self._of_floats, self._position = of_bytes, of_floats, position

    def check(self, graph: Graph, node: Node) -> str:
        return self._way(graph, node).check(graph, node)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return self._way(graph, node).normalize(graph, node, new_value)

    def _way(self, graph: Graph, node: Node) -> Exact:
        source = graph.values[node.inputs[self._position]]
        return self._of_floats if source.dtype is DType.FLOAT32 else self._of_bytes


class _Hybrid(ExactProducts):
    """Base of ops that multiply floats by constant quantized weights."""

    packed: ClassVar[frozenset[DType]] = frozenset()

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 3),
            checks.operands(graph, node, (1, 2, 3)),
            lambda: check_floats(graph, (node.inputs[0], *node.outputs)),
            lambda: check_bits(graph.values[node.inputs[1]], self.packed),
            lambda: _check_weights(graph.values[node.inputs[1]], self.axis),
            lambda: check_bias(graph, node, self.axis, DType.FLOAT32),
            lambda: numbers.check_activation(node),
            lambda: self._geometry(graph, node),
            lambda: self._check_numbers(graph, node),
        )

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        """Return a reason if the CPU rejects the node or computes wrong results."""
        return ""


class HybridConv2D(_Hybrid):
    """CONV_2D: quantizes each image as one row, symmetrically if all weights have one scale."""

    packed = frozenset({DType.INT4})

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        attributes = conv_attributes(graph, node)
        rows = FloatRows(node.index, image, _IMAGE, _is_symmetric(graph, node), new_value)
        stored, view = rows.image(attributes.window, graph.values[node.outputs[0]].shape)
        attributes = replace(attributes, window=view)
        way = "SCALE_BY_WEIGHTS" if attributes.groups > 1 else "SCALE_SUM"
        scaled = scaled_sums(rows, _quantization(weights).scale, (way,))
        epilogue = (
            *less_zero_point(rows, _sums(weights)),
            *scaled,
            *_ended(graph, node, new_value),
        )
        products = products_of_groups(graph, node, stored, attributes, epilogue, new_value)
        return (*rows.nodes, *products)

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        if image.shape[3] != weights.shape[3]:
            return _check_each(weights, weights.shape[0])
        negates = _is_symmetric(graph, node) and weights.shape[0] % 4 > 0
        return _check_least(weights) if negates else ""


class HybridDepthwise(_Hybrid):
    """DEPTHWISE_CONV_2D: quantizes each image as one row, and subtracts zero points first."""

    axis = 3

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        _, height, width, outputs = weights.shape
        rows = FloatRows(node.index, image, _IMAGE, False, new_value)
        source = rows.centred()
        geometry = window_of(node.params, (height, width), (image.shape[1], image.shape[2]))
        attributes = QuantizedDepthwiseAttributes(geometry, weights.id, ABSENT, 0, 0)
        ways = ("SCALE_BY_WEIGHTS", "SCALE_BY_ROWS")
        scaled = scaled_sums(
            rows, _quantization(weights).scale, ways, Body(outputs, outputs // 4 * 4)
        )
        epilogue = (*scaled, *_ended(graph, node, new_value))
        return (
            *rows.nodes,
            quantized_node(node, QUANTIZED_DEPTHWISE, source, attributes, epilogue),
        )

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        weights = graph.values[node.inputs[1]]
        return _check_each(weights, weights.shape[3])


class HybridTransposeConv(Exact):
    """TRANSPOSE_CONV: quantizes each image as one row, and sums products as floats."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        seen = as_convolution(node)
        return checks.first_of(
            checks.input_count(node, 3, 4),
            checks.operands(graph, node, (1, 2, 3, 4)),
            lambda: check_floats(graph, (seen.inputs[0], *node.outputs)),
            lambda: check_bits(graph.values[seen.inputs[1]], packed=frozenset()),
            lambda: _check_weights(graph.values[seen.inputs[1]], 0),
            lambda: check_bias(graph, seen, 0, DType.FLOAT32),
            lambda: numbers.check_activation(node),
            lambda: self._geometry(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        seen = as_convolution(node)
        image, weights = (graph.values[v] for v in seen.inputs[:2])
        _, rows_of_taps, columns_of_taps, _ = weights.shape
        _, height, width, _ = constant_list(graph, node.inputs[0])
        rows = FloatRows(node.index, image, _IMAGE, False, new_value)
        source = rows.centred()
        window = window_of(node.params, (rows_of_taps, columns_of_taps), (height, width))
        scales = _quantization(weights).scale
        attributes = HybridTransposeAttributes(window, weights.id, scales)
        epilogue = _ended(graph, seen, new_value)
        last = quantized_node(node, HYBRID_TRANSPOSE_CONV, source, attributes, epilogue)
        return (*rows.nodes, replace(last, inputs=(source, rows.scale)))


class HybridFullyConnected(_Hybrid):
    """FULLY_CONNECTED: quantizes each row, symmetrically unless `is_asymmetric`.

    The CPU's kernel for 4-bit weights always quantizes rows symmetrically and rounds by scalar
    code. For blockwise weights, quantization of rows is never symmetric.
    """

    packed = PACKED_TYPES

    def check(self, graph: Graph, node: Node) -> str:
        if len(node.inputs) < 2 or graph.values[node.inputs[1]].blockwise is None:
            return super().check(graph, node)
        return checks.first_of(
            checks.input_count(node, 2, 3),
            checks.operands(graph, node, (1,)),
            lambda: check_floats(graph, (node.inputs[0], *node.outputs)),
            lambda: check_bias(graph, node, self.axis, DType.FLOAT32),
            lambda: self._geometry(graph, node),
            lambda: _check_blocks(graph.values[node.inputs[1]]),
            lambda: _check_no_activation(node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, weights = (graph.values[v] for v in node.inputs[:2])
        result = graph.values[node.outputs[0]]
        outputs, inputs = weights.shape
        nodes: tuple[Node, ...]
        flat = source.shape4 != (*result.shape4[:3], inputs)
        ends: list[Node] = []
        if flat:
            shape = (source.elements // inputs, inputs)
            view = new_value(shape, dtype=DType.FLOAT32)
            ends.append(Node(node.index, "RESHAPE", 1, (source.id,), (view,)))
            source = replace(source, id=view, shape=shape)
        if weights.blockwise is not None:
            rows = FloatRows(node.index, source, 1, False, new_value)
            nodes = (_by_blocks(graph, node, rows),)
        elif nibbles.multiplies_nibbles(weights):
            rows = FloatRows(
                *(node.index, source, 1, True, new_value),
                vector=inputs + 1,
                factor_of_sums=nibbles.SUBTRACTED,
            )
            nodes = (_by_nibbles(graph, node, rows),)
        else:
            rows = FloatRows(node.index, source, 1, not is_asymmetric(node), new_value)
            epilogue = (
                *less_zero_point(rows, _sums(weights)),
                *scaled_sums(rows, _quantization(weights).scale, ("SCALE_SUM",)),
                *_ended(graph, node, new_value),
            )
            nodes = (_matrix_product(node, rows.stored(), weights, weights.id, epilogue),)
        if not flat:
            return (*rows.nodes, *nodes)
        product = new_value((source.shape[0], outputs), dtype=DType.FLOAT32)
        last = Node(node.index, "RESHAPE", 1, (product,), node.outputs)
        return (*ends, *rows.nodes, *nodes[:-1], replace(nodes[-1], outputs=(product,)), last)

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        weights = graph.values[node.inputs[1]]
        if nibbles.multiplies_nibbles(weights):
            return nibbles.check_nibbles(weights)
        return _check_least(weights)


def _check_blocks(weights: Value) -> str:
    """Require blockwise weights that the CPU supports, and block sizes that kernels support."""
    assert weights.blockwise is not None
    if not nibbles.multiplies_nibbles(weights):
        return (
            f"Its weights, tensor {weights.id}, are {weights.dtype.name} {list(weights.shape)} "
            "with a scale for each block; the CPU multiplies INT4 of at least [4, 32] that way."
        )
    size = weights.blockwise.size
    if size % NIBBLES or size > _MAX_IN_BLOCK:
        return (
            f"The blocks have {size} weights; multiples of {NIBBLES} up to {_MAX_IN_BLOCK} are "
            "supported."
        )
    return ""


def _check_no_activation(node: Node) -> str:
    """Reject a fused activation, since the CPU kernel ignores fused activations."""
    found = node.params.get("activation", "none")
    if found == "none":
        return ""
    return f"The CPU ignores the fused activation {found} if weights have blocks."


def _by_blocks(graph: Graph, node: Node, rows: FloatRows) -> Node:
    """Return the node that multiplies rows by weights with blockwise quantization."""
    attributes = BlockwiseProductAttributes(node.inputs[1])
    epilogue = _ended(graph, node, rows.new_value)
    product = quantized_node(node, BLOCKWISE_PRODUCT, rows.stored(), attributes, epilogue)
    return replace(product, inputs=(*product.inputs, rows.scale, rows.zero))


def _by_nibbles(graph: Graph, node: Node, rows: FloatRows) -> Node:
    """Return the node that multiplies rows by 4-bit weights."""
    weights, new_value = graph.values[node.inputs[1]], rows.new_value
    scales = _quantization(weights).scale
    factors = constant_operand(new_value, np.array(scales, np.float32))
    bias = bias_of(node)
    function, operands = "ADD_PRODUCT", [rows.scaled_sums, factors]
    by_one = len(set(scales)) == 1
    if by_one:
        function += "_BY_ONE"
    if bias != ABSENT:
        function += "_AND_BIAS"
        operands.append(constant_operand(new_value, as_float32(graph.values[bias]).ravel()))
    if by_one:
        operands.append(rows.scale)
    epilogue = (
        *scaled_sums(rows, scales, ("SCALE_BY_ROWS",)),
        EpilogueOp(function, tuple(operands)),
        *activation_epilogue(node.params),
    )
    raised = nibbles.raised(weights, new_value)
    return _matrix_product(node, rows.stored(), weights, raised, epilogue)


def _matrix_product(
    node: Node, stored: int, weights: Value, multiplied: int, epilogue: tuple[EpilogueOp, ...]
) -> Node:
    """Return the product of `stored` rows and `multiplied`, of the shape of `weights`."""
    outputs, inputs = weights.shape
    attributes = QuantizedConvAttributes(
        POINT, multiplied, ABSENT, (outputs, 1, 1, inputs), 1, 0, 0
    )
    return quantized_node(node, QUANTIZED_CONV, stored, attributes, epilogue)


def check_floats(graph: Graph, tensors: Sequence[int]) -> str:
    """Require tensors (value ids) of float32."""
    for v in tensors:
        value = graph.values[v]
        if value.dtype is not DType.FLOAT32:
            return f"tensor {v} is {value.dtype.name} instead of FLOAT32."
        if reason := check_variable(value):
            return reason
    return ""


def _check_weights(weights: Value, axis: int) -> str:
    if weights.dtype is not DType.INT8 and weights.dtype not in PACKED_TYPES:
        return f"Its weights, tensor {weights.id}, are {weights.dtype.name} instead of INT8."
    return check_weights(weights, axis) or check_even(weights)


def check_even(weights: Value) -> str:
    """Require quantized weights whose zero points are 0."""
    if not any(_quantization(weights).zero_point):
        return ""
    return f"Its weights, tensor {weights.id}, have zero points other than 0."


def _check_each(weights: Value, outputs: int) -> str:
    if len(_quantization(weights).scale) == outputs:
        return ""
    return (
        f"Its weights, tensor {weights.id}, have 1 scale for {outputs} channels, which the CPU "
        "rejects with floats."
    )


def _check_least(weights: Value) -> str:
    """Reject weights of -128, whose negation overflows in the CPU's kernel."""
    if LEAST.of(np.asarray(weights.data)) > numbers.LIMITS[DType.INT8][0]:
        return ""
    return "Some weights are -128, whose products with floats have a wrong sign on the CPU."


def _is_symmetric(graph: Graph, node: Node) -> bool:
    image, weights = (graph.values[v] for v in node.inputs[:2])
    return len(set(_quantization(weights).scale)) == 1 and image.shape[3] == weights.shape[3]


def _quantization(value: Value) -> Quantization:
    assert value.quantization is not None
    return value.quantization


def is_asymmetric(node: Node) -> bool:
    """Whether an attribute of the node requests asymmetric rows, which have zero points."""
    return bool(node.params.get("asymmetric_quantize_inputs", False))


def _sums(weights: Value) -> npt.NDArray[np.int32]:
    """Return the sum of the weights of each output channel; weights are [O, ...]."""
    data = np.asarray(weights.data).reshape(weights.shape[0], -1)
    sums: npt.NDArray[np.int32] = data.sum(axis=1, dtype=np.int64).astype(np.int32)
    return sums


def less_zero_point(rows: FloatRows, sums: npt.NDArray[np.int32]) -> tuple[EpilogueOp, ...]:
    """Return the epilogue op that subtracts the contribution of zero points to the sums.

    `sums` are the weight sums of each output channel: [O], or a shape that broadcasts to the
    result.
    """
    if rows.symmetric:
        return ()
    return (EpilogueOp("LESS_ZERO_POINT", (rows.zero, constant_operand(rows.new_value, sums))),)


def scaled_sums(
    rows: FloatRows, scales: Sequence[float], ways: tuple[str, ...], body: Body | None = None
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue op that scales sums to float, by one function or by two (body, tail).

    `scales` has one scale of the weights, or one for each output channel.
    """
    factors = np.array(scales, np.float32)
    operands = (rows.scale, constant_operand(rows.new_value, factors))
    epilogue_ops = [EpilogueOp(way, operands) for way in ways]
    return body.epilogue(ways[0], *epilogue_ops) if body else tuple(epilogue_ops)


def _ended(graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    bias, activation = bias_of(node), activation_epilogue(node.params)
    if bias == ABSENT:
        return activation
    terms = as_float32(graph.values[bias]).ravel()
    return (EpilogueOp("ADD", (constant_operand(new_value, terms),)), *activation)


def constant_operand(new_value: NewValue, array: npt.NDArray[Any]) -> int:
    """Return a constant operand of epilogue ops, with a single element if all are equal."""
    if len(set(array.ravel().tolist())) == 1:
        return new_value((), array.ravel()[:1].reshape(()))
    return new_value(array.shape, array, precise=True)
