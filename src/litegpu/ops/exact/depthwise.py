"""Quantized DEPTHWISE_CONV_2D, with int32 sums requantized per output channel."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue
from litegpu.ops.common.weights import bias_of
from litegpu.ops.common.window import window_of
from litegpu.ops.exact import numbers
from litegpu.ops.exact.conv import ExactProducts, node_of, sums_of_products, weight_zero
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes

_BLOCK = 8
"""Number of channels that the CPU requantizes as one vector."""


class ExactDepthwise(ExactProducts):
    """DEPTHWISE_CONV_2D: rounds half away from zero, but half up in full int8 vectors."""

    axis = 3

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        image, weights = (graph.values[v] for v in node.inputs[:2])
        _, height, width, outputs = weights.shape
        attributes = QuantizedDepthwiseAttributes(
            window_of(node.params, (height, width), (image.shape[1], image.shape[2])),
            weights.id,
            bias_of(node),
            numbers.zero_point(image),
            weight_zero(weights) if image.dtype is DType.UINT8 else 0,  # as the CPU, which drops it
        )
        away = round_half_away(image.dtype, outputs)
        return sums_of_products(
            graph, node, new_value, node_of(QUANTIZED_DEPTHWISE), attributes, away
        )


def round_half_away(dtype: DType, outputs: int) -> list[bool]:
    """Return for each output channel whether to round half away from zero (True) or up."""
    whole = 0 if dtype is DType.UINT8 else outputs // _BLOCK * _BLOCK
    return [channel >= whole for channel in range(outputs)]
