"""Two inputs of one shape, or broadcast to one as NumPy does: what operations need to know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Shape
from litegpu.ops.broadcast_to import broadcast_node


def check_broadcast(graph: Graph, node: Node) -> str:
    """Require inputs that can be broadcast to one shape."""
    shapes = [graph.values[v].shape for v in node.inputs]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        found = ", ".join(f"input{i}: {listed(shape)}" for i, shape in enumerate(shapes))
        return f"Doesn't support broadcasting - {found}"
    return ""


def check_slopes(graph: Graph, node: Node) -> str:
    """Require a second input that is broadcast to the first one."""
    shape, slopes = (graph.values[v].shape for v in node.inputs)
    if np.broadcast_shapes(shape, slopes) == shape:
        return ""
    return f"Slopes of {listed(slopes)} do not fit an input of {listed(shape)}."


def fitted(graph: Graph, node: Node, new_value: NewValue) -> tuple[list[int], list[Node]]:
    """Return inputs that kernels can broadcast to the output, and the nodes that make them.

    Kernels see all dimensions but the last three as one: those are repeated beforehand unless the
    input has all of them, or none.
    """
    wanted = graph.values[node.outputs[0]].shape
    outer = max(len(wanted) - 3, 0)
    inputs, nodes = list(node.inputs), []
    for position, v in enumerate(inputs):
        shape = (1,) * (len(wanted) - len(graph.values[v].shape)) + graph.values[v].shape
        if outer < 2 or shape[:outer] in ((1,) * outer, wanted[:outer]):
            continue
        whole = (*wanted[:outer], *shape[outer:])
        inputs[position] = new_value(whole, dtype=graph.values[v].dtype)
        repeated = replace(node, inputs=(v,), outputs=(inputs[position],))
        nodes.append(broadcast_node(graph, repeated, whole))
    return inputs, nodes


def running_input(graph: Graph, node: Node) -> int:
    """Return which input runs through the kernel: a computed one, of the output's shape if any."""
    shape = graph.values[node.outputs[0]].shape
    computed = [i for i, v in enumerate(node.inputs) if not graph.values[v].is_constant]
    whole = [i for i in computed if graph.values[node.inputs[i]].shape == shape]
    return (whole or computed)[0]


def listed(shape: Shape) -> str:
    """Return a shape as reasons write it."""
    return f"[{','.join(map(str, shape))}]"
