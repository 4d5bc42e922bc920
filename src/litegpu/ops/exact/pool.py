"""Quantized AVERAGE_POOL_2D and MAX_POOL_2D, computed on the stored integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.types import QUANTIZED_TYPES
from litegpu.ops.common.window import PoolAttributes, window_of
from litegpu.ops.exact import numbers

_NEAR = 1e-6
"""The maximum difference of input and output scales that the CPU accepts."""


class ExactPool(Exact):
    """A pool of stored integers without rescaling; averages round half away from zero."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            numbers.check_tensors(graph, (*node.inputs, *node.outputs), QUANTIZED_TYPES),
            numbers.check_bounds(graph, node),
            lambda: _check_same(graph, node),
            lambda: self._geometry(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, _ = graph.values[node.inputs[0]].shape
        kernel = (node.params["filter_height"], node.params["filter_width"])
        attributes = PoolAttributes(window_of(node.params, kernel, (height, width)))
        limits = numbers.bounds(
            node.params.get("activation", "none"), graph.values[node.outputs[0]]
        )
        return (replace(node, attributes=attributes, epilogue=(numbers.clamp(limits),)),)


def _check_same(graph: Graph, node: Node) -> str:
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    if source.dtype is not result.dtype:
        return f"A pool of {source.dtype.name} into {result.dtype.name}."
    near = abs(numbers.scale(source) - numbers.scale(result)) <= _NEAR
    if near and numbers.zero_point(source) == numbers.zero_point(result):
        return ""
    return "The pool's input and output have different quantizations, but a pool does not rescale."
