"""REDUCE_WINDOW: a sum, product, minimum or maximum over each window of a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, Values, constant_list, one_of, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.functions import of_integers
from litegpu.ops.common.types import INTEGER_TYPES, INTEGERS, NUMBERS
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, MixedRadix, Source
from litegpu.ops.reduce import ReduceAttributes
from litegpu.ops.reshape import reshape_node

_FUNCTIONS = {
    1: ("SUM", "ADD"),
    2: ("REDUCE_PROD", "MUL"),
    3: ("REDUCE_MIN", "MINIMUM"),
    4: ("REDUCE_MAX", "MAXIMUM"),
}
"""By their numbers in the file format: the reduction, and what joins it with the first value."""
_MOST_RANK = 6
_MOST_TERMS = 1 << 12


@register
class ReduceWindow(Op):
    """All elements of each window as one; windows have a shape, strides and dilations."""

    name = "REDUCE_WINDOW"
    max_version = 1
    shape_operands = (2, 3, 4)
    takes = (NUMBERS, NUMBERS, INTEGERS)
    gives = None
    accepts: ClassVar[Mapping[str, Values]] = {
        "reduce_function": one_of(*_FUNCTIONS, wrong=(0, 5, 6))
    }

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
            checks.constant(graph, node, 1, "The first value", NUMBERS),
            *(
                checks.integers(graph, node, i, name, kinds=(DType.INT64,))
                for i, name in enumerate(names, 2)
            ),
            lambda: _check_window(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        return (_result_shape(shape, *_window(graph, node)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Gather each window as a row, and reduce the rows."""
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        window, strides, dilations = _window(graph, node)
        rows, terms, rank = result.elements, math.prod(window), len(source.shape)
        gathered = new_value((rows, terms), dtype=source.dtype)
        sources = tuple(
            Source(((axis, stride), (rank + axis, dilation)))
            for axis, (stride, dilation) in enumerate(zip(strides, dilations, strict=True))
        )
        attributes = IndexMapAttributes((MixedRadix(result.shape), MixedRadix(window)), sources)
        gather = Node(node.index, INDEX_MAP, 1, (source.id,), (gathered,), attributes=attributes)
        reduction, join = _FUNCTIONS[node.params["reduce_function"]]
        name = of_integers(join) if source.dtype in INTEGER_TYPES else join
        reduced = new_value((rows, 1), dtype=source.dtype)
        last = Node(
            node.index,
            reduction,
            1,
            (gathered,),
            (reduced,),
            attributes=ReduceAttributes((3,)),
            epilogue=(EpilogueOp(name, (node.inputs[1],)),),
        )
        return gather, last, reshape_node(node, reduced, node.outputs[0])


def _window(graph: Graph, node: Node) -> tuple[Shape, Shape, Shape]:
    shape, strides, dilations = (tuple(constant_list(graph, v)) for v in node.inputs[2:])
    return shape, strides, dilations


def _result_shape(shape: Shape, window: Shape, strides: Shape, dilations: Shape) -> Shape:
    return tuple(
        -(((size - 1) * dilation + 1 - n) // stride) + 1
        for n, size, stride, dilation in zip(shape, window, strides, dilations, strict=True)
    )


def _check_window(graph: Graph, node: Node) -> str:
    source, first = (graph.values[v] for v in node.inputs[:2])
    window = _window(graph, node)
    function = node.params["reduce_function"]
    if function not in _FUNCTIONS:
        return f"Its reduce_function {function} is none of a sum, product, minimum and maximum."
    if function == 2 and source.dtype in INTEGER_TYPES:
        return "Products of integers are not handled."
    rank = len(source.shape)
    if not 1 <= rank <= _MOST_RANK or any(len(each) != rank for each in window):
        return f"A window of {list(window[0])} does not fit a value of {list(source.shape)}."
    if first.elements != 1 or min(map(min, window)) < 1:
        return f"Windows {list(map(list, window))} have sizes below 1, or start from many values."
    shape = _result_shape(source.shape, *window)
    reached = zip(source.shape, shape, *window, strict=True)
    if any(out < 1 or (out - 1) * s + (k - 1) * d >= n for n, out, k, s, d in reached):
        return f"Windows of {list(window[0])} leave a value of {list(source.shape)}."
    if math.prod(window[0]) > _MOST_TERMS:
        return f"Windows of {list(window[0])} have more than {_MOST_TERMS} elements."
    return checks.size(node.outputs[0], (math.prod(shape), math.prod(window[0])))
