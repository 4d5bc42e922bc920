"""REDUCE_WINDOW: computes the sum, product, minimum or maximum of each window of a value.

STABLEHLO_REDUCE_WINDOW also pads the value, and defines the function by a graph with one node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import NewValue, Op, Shape, Values, constant_list, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import OpFacts
from litegpu.ops.common.functions import of_integers, wraps
from litegpu.ops.common.types import INTEGERS, NUMBERS, QUANTIZED_TYPES, Types
from litegpu.ops.dilate import Spacing, spread_node, spread_shape
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, MixedRadix, Source
from litegpu.ops.reduce import ReduceAttributes
from litegpu.ops.reshape import reshape_node

_FUNCTIONS = {
    1: ("SUM", "ADD"),
    2: ("REDUCE_PROD", "MUL"),
    3: ("REDUCE_MIN", "MINIMUM"),
    4: ("REDUCE_MAX", "MAXIMUM"),
}
"""The reduction, and the function that adds the initial value, by number in the file format."""
_ALL, _ANY = ("REDUCE_ALL", "LOGICAL_AND"), ("REDUCE_ANY", "LOGICAL_OR")
_BOOL_REDUCTIONS = {1: _ANY, 2: _ALL, 3: _ALL, 4: _ANY, 5: _ALL, 6: _ANY}
"""The reduction and the function for bools, by number in the file format."""
_OF_BODIES = {
    **{"ADD": 1, "MUL": 2, "MULTIPLY": 2, "MINIMUM": 3, "MAXIMUM": 4},
    **{"AND": 5, "LOGICAL_AND": 5, "OR": 6, "LOGICAL_OR": 6},
}
"""The number of each reduction by the op of the graph's only node, without the prefix STABLEHLO_.
"""
_ELEMENTS = Types(NUMBERS.dtypes | QUANTIZED_TYPES | {DType.UINT16, DType.BOOL}, common=True)
_MAX_RANK = 6
_MAX_TERMS = 1 << 12


@register
class ReduceWindow(Op):
    """Reduces each window of a value to one element; windows have strides and dilations."""

    name = "REDUCE_WINDOW"
    max_version = 1
    shape_operands: ClassVar[tuple[int, ...]] = (2, 3, 4)
    takes: ClassVar[tuple[Types, ...]] = (_ELEMENTS, _ELEMENTS, INTEGERS)
    gives = None
    accepts: ClassVar[Mapping[str, Values]] = {
        "reduce_function": Values(about="1 to 4; of bools 5 and 6, too", wrong=(0, 5, 6))
    }

    def windows(self, graph: Graph, node: Node) -> _Windows:
        """Return the windows that the node describes."""
        shape, strides, dilations = (tuple(constant_list(graph, v)) for v in node.inputs[2:])
        spacing = (Spacing(1),) * len(graph.values[node.inputs[0]].shape)
        return _Windows(node.params["reduce_function"], shape, strides, dilations, spacing)

    def flops(self, graph: Graph, node: Node) -> int:
        window = graph.values.get(facts.operand(node.inputs, 2))
        known = window is not None and window.is_constant
        terms = math.prod(constant_list(graph, node.inputs[2])) if known else 1
        return super().flops(graph, node) * int(terms)

    def check(self, graph: Graph, node: Node) -> str:
        names = ("The window's shape", "The strides", "The dilations")
        return checks.first_of(
            checks.input_count(node, 5, 5),
            checks.operands(graph, node, (1,)),
            checks.constant(graph, node, 1, "The first value", _ELEMENTS),
            *(
                checks.integers(graph, node, i, name, kinds=(DType.INT64,))
                for i, name in enumerate(names, 2)
            ),
            lambda: _check_windows(graph, node, self.windows(graph, node)),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        windows = self.windows(graph, node)
        return (windows.result(graph.values[node.inputs[0]].shape),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Gather each window as a row, and reduce the rows."""
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        windows = self.windows(graph, node)
        nodes = list[Node]()
        spread, shape = source.id, spread_shape(source.shape, windows.spacing)
        if shape != source.shape or any(space != Spacing(1) for space in windows.spacing):
            spread = new_value(shape, dtype=source.dtype)
            first = replace(node, outputs=(spread,))
            nodes.append(spread_node(graph, first, windows.spacing, node.inputs[1]))
        rows, terms, rank = result.elements, math.prod(windows.shape), len(shape)
        gathered = new_value((rows, terms), dtype=source.dtype)
        steps = zip(windows.strides, windows.dilations, strict=True)
        sources = tuple(
            Source(((axis, stride), (rank + axis, dilation)))
            for axis, (stride, dilation) in enumerate(steps)
        )
        digits = (MixedRadix(result.shape), MixedRadix(windows.shape))
        attributes = IndexMapAttributes(digits, sources)
        nodes.append(Node(node.index, INDEX_MAP, 1, (spread,), (gathered,), attributes=attributes))
        reduction, join = _functions(source)[windows.function]
        real = source.dtype in (DType.FLOAT32, DType.BOOL)
        name = join if real else of_integers(join)
        reduced = new_value((rows, 1), dtype=source.dtype)
        nodes.append(
            Node(
                node.index,
                reduction,
                1,
                (gathered,),
                (reduced,),
                attributes=ReduceAttributes((3,)),
                epilogue=(EpilogueOp(name, (node.inputs[1],)), *wraps(source.dtype)),
            )
        )
        return (*nodes, reshape_node(node, reduced, node.outputs[0]))


@register
class StablehloReduceWindow(ReduceWindow):
    """Reduces each window of a padded value to one element: sums, products, minima or maxima."""

    name = "STABLEHLO_REDUCE_WINDOW"
    shape_operands = ()
    takes = (_ELEMENTS, _ELEMENTS)
    accepts: ClassVar[Mapping[str, Values]] = {
        "padding": Values(about="any: before and after each dimension; negative values crop"),
        **dict.fromkeys(
            ("window_dimensions", "window_strides", "base_dilations", "window_dilations"),
            Values(about="≥ 1 in each dimension"),
        ),
        "body_subgraph_index": Values(about="a graph of one sum, product, minimum or maximum"),
    }

    def windows(self, graph: Graph, node: Node) -> _Windows:
        rank = len(graph.values[node.inputs[0]].shape)
        names = ("window_dimensions", "window_strides", "window_dilations", "base_dilations")
        shape, strides, dilations, steps = (node.params[name][:rank] for name in names)
        pads = node.params["padding"][: 2 * rank]
        spacing = tuple(map(Spacing, steps, pads[::2], pads[1::2]))
        ops = [each.op for body in node.graphs for each in body.nodes]
        number = _OF_BODIES.get(ops[0].removeprefix("STABLEHLO_"), 0) if len(ops) == 1 else 0
        return _Windows(number, shape, strides, dilations, spacing)

    def flops(self, graph: Graph, node: Node) -> int:
        terms: int = math.prod(node.params.get("window_dimensions", ())[: _rank(graph, node)])
        return OpFacts.flops(self, graph, node) * terms

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.constant(graph, node, 1, "The first value", _ELEMENTS),
            lambda: _check_windows(graph, node, self.windows(graph, node)),
        )


@dataclass(frozen=True, slots=True)
class _Windows:
    """The function, the windows, and the padding between and around elements."""

    function: int
    shape: Shape
    strides: Shape
    dilations: Shape
    spacing: tuple[Spacing, ...]

    def result(self, shape: Shape) -> Shape:
        """Return the number of windows along each axis of a value with this shape."""
        whole = spread_shape(shape, self.spacing)
        return _result_shape(whole, self.shape, self.strides, self.dilations)


def _rank(graph: Graph, node: Node) -> int:
    value = graph.values.get(facts.operand(node.inputs, 0))
    return len(value.shape) if value is not None else 0


def _result_shape(shape: Shape, window: Shape, strides: Shape, dilations: Shape) -> Shape:
    return tuple(
        (n - (size - 1) * dilation - 1) // stride + 1
        for n, size, stride, dilation in zip(shape, window, strides, dilations, strict=True)
    )


def _functions(source: Value) -> Mapping[int, tuple[str, str]]:
    return _BOOL_REDUCTIONS if source.dtype is DType.BOOL else _FUNCTIONS


def _check_windows(graph: Graph, node: Node, found: _Windows) -> str:
    source, first = (graph.values[v] for v in node.inputs[:2])
    window = (found.shape, found.strides, found.dilations)
    if found.function not in _functions(source):
        return f"The reduce_function {found.function} is not a sum, product, minimum or maximum."
    rank = len(source.shape)
    if not 1 <= rank <= _MAX_RANK or any(len(each) != rank for each in window):
        return f"A window of {list(window[0])} does not fit a value of {list(source.shape)}."
    steps = [space.step for space in found.spacing]
    if first.elements != 1 or min(*map(min, window), *steps) < 1:
        return (
            f"Windows {list(map(list, window))} have sizes below 1, or the initial value is not a "
            "scalar."
        )
    whole, shape = spread_shape(source.shape, found.spacing), found.result(source.shape)
    if min(shape) < 1:
        return f"Windows of {list(window[0])} are too large for a value of {list(whole)}."
    if math.prod(window[0]) > _MAX_TERMS:
        return f"Windows of {list(window[0])} have more than {_MAX_TERMS} elements."
    return checks.size(node.outputs[0], (math.prod(shape), math.prod(window[0])))
