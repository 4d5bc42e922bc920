"""ONE_HOT: adds an axis along which only the indexed element is `on`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, Values, constant_list, register
from litegpu.ops.common import checks, types
from litegpu.ops.reshape import reshape_node


@register
class OneHot(Op):
    """Adds an axis of size `depth`, with the value `on` at the index and `off` elsewhere."""

    name = "ONE_HOT"
    shape_operands = (1,)
    accepts: ClassVar = {"axis": Values(about="-rank - 1 to rank", wrong=(7, -8))}
    max_version = 1
    takes = (types.INTEGERS,)
    gives = types.MOVED

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 4, 4),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 0, "The indices", constant=False),
            checks.integers(graph, node, 1, "The depth"),
            lambda: checks.axis(graph, node.inputs[0], node.params["axis"], added=1),
            lambda: _check_values(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape, axis = graph.values[node.inputs[0]].shape, _axis(graph, node)
        (depth,) = constant_list(graph, node.inputs[1])
        return ((*shape[:axis], depth, *shape[axis:]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape, axis = graph.values[node.inputs[0]].shape, _axis(graph, node)
        (depth,) = constant_list(graph, node.inputs[1])
        before, after = shape[:axis], shape[axis:]
        flat = len(shape) > 3
        if flat:
            before, after = (math.prod(before),), (math.prod(after),)
        indices = graph.values[node.inputs[0]].dtype
        column = new_value((*before, 1, *after), dtype=indices)
        target = new_value((*before, depth, *after)) if flat else node.outputs[0]
        classes = (depth, *(1,) * len(after))
        numbers = new_value(classes, np.arange(depth, dtype=indices.value).reshape(classes))
        epilogue = (EpilogueOp("INTEGER_EQUAL", (numbers,)), EpilogueOp("SELECT", node.inputs[2:]))
        return (
            reshape_node(node, node.inputs[0], column),
            Node(node.index, COPY, 1, (column,), (target,), epilogue=epilogue),
            *((reshape_node(node, target, node.outputs[0]),) if flat else ()),
        )


def _axis(graph: Graph, node: Node) -> int:
    axis: int = node.params["axis"]
    return axis % (len(graph.values[node.inputs[0]].shape) + 1)


def _check_values(graph: Graph, node: Node) -> str:
    depth, on, off = (graph.values[v] for v in node.inputs[1:])
    if any(not value.is_constant or value.elements != 1 for value in (depth, on, off)):
        return "Depth, on and off must be constant scalars."
    result = graph.values[node.outputs[0]]
    if len({on.dtype, off.dtype, result.dtype}) > 1:
        return f"On is {on.dtype.name}, off {off.dtype.name}, the result {result.dtype.name}."
    (size,) = constant_list(graph, depth.id)
    if not 0 < size <= 1 << 20:
        return f"A depth of {size} is not supported."
    return ""
