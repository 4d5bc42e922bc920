"""Quantized TRANSPOSE_CONV, with int32 sums requantized per output channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import Exact, NewValue, constant_list
from litegpu.ops.common import checks
from litegpu.ops.common.weights import bias_of
from litegpu.ops.common.window import window_of
from litegpu.ops.exact import numbers
from litegpu.ops.exact.conv import check_products, node_of, sums_of_products, weight_zero
from litegpu.ops.exact.depthwise import round_half_away
from litegpu.ops.quantized_conv import QuantizedConvAttributes
from litegpu.ops.quantized_transpose_conv import QUANTIZED_TRANSPOSE_CONV

_BLOCK = 16
"""Number of uint8 elements that the CPU requantizes as one vector."""


class ExactTransposeConv(Exact):
    """TRANSPOSE_CONV: vectors of channels (int8) or elements (uint8) round half up.

    Elements that do not fill a vector round half away from zero.
    """

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 4),
            checks.operands(graph, node, (1, 2, 3, 4)),
            lambda: check_products(graph, as_convolution(node), axis=0),
            lambda: self._geometry(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        seen = as_convolution(node)
        image, weights = (graph.values[v] for v in seen.inputs[:2])
        outputs, height, width, depth = weights.shape
        size = constant_list(graph, node.inputs[0])
        attributes = QuantizedConvAttributes(
            window_of(node.params, (height, width), (size[1], size[2])),
            weights.id,
            bias_of(seen),
            (outputs, height, width, depth),
            1,
            numbers.zero_point(image),
            weight_zero(weights) if image.dtype is DType.UINT8 else 0,  # as the CPU, which drops it
        )
        away = round_half_away(image.dtype, outputs)
        nodes = sums_of_products(
            graph, seen, new_value, node_of(QUANTIZED_TRANSPOSE_CONV), attributes, away
        )
        if image.dtype is not DType.UINT8:
            return nodes
        (product,) = nodes
        first, *others = product.epilogue
        first = _round_up_in_blocks(first, graph.values[node.outputs[0]])
        return (replace(product, epilogue=(first, *others)),)


def as_convolution(node: Node) -> Node:
    """Return a node with its operands in the order of a CONV_2D."""
    _, weights, image, *bias = node.inputs
    return replace(node, inputs=(image, weights, *bias))


def _round_up_in_blocks(requantize: EpilogueOp, result: Value) -> EpilogueOp:
    """Return the epilogue op that rounds half up in all full vectors of a result."""
    end = result.elements // _BLOCK * _BLOCK
    return EpilogueOp("REQUANTIZE_BODY", requantize.operands[:3], attributes=(("end", end),))
