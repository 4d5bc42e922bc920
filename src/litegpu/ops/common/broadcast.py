"""Code for ops that broadcast two inputs as in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Shape
from litegpu.ops.broadcast_to import broadcast_node
from litegpu.ops.reshape import merge_axes, merged_shape, reshape_node, reshaped


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
    """Require a second input that can be broadcast to the first input."""
    shape, slopes = (graph.values[v].shape for v in node.inputs)
    if np.broadcast_shapes(shape, slopes) == shape:
        return ""
    return f"Slopes of {listed(slopes)} do not fit an input of {listed(shape)}."


@dataclass(frozen=True, slots=True)
class Fitted:
    """Reshaped inputs that kernels can broadcast, and the nodes before and after the op."""

    inputs: Sequence[int]
    output: int
    before: Sequence[Node] = ()
    after: Sequence[Node] = ()

    def around(self, node: Node) -> Sequence[Node]:
        """Return all nodes in order, including `node` itself, which writes `output`."""
        return (*self.before, replace(node, outputs=(self.output,)), *self.after)


def fitted(graph: Graph, node: Node, new_value: NewValue) -> Fitted:
    """Return inputs that kernels can broadcast to the output.

    Kernels merge all axes before the last three into one axis. An input is either complete along
    the merged axis or broadcast along all of it. If an input is broadcast along only some of the
    merged axes, the function merges adjacent axes with the same broadcasting. If more than 4 axes
    remain, a node stores the broadcast input.
    """
    wanted = graph.values[node.outputs[0]].shape
    outer = max(len(wanted) - 3, 0)
    shapes = [graph.values[v].shape for v in node.inputs]
    shapes = [(1,) * (len(wanted) - len(shape)) + shape for shape in shapes]
    partial = [shape[:outer] not in ((1,) * outer, wanted[:outer]) for shape in shapes]
    if not any(partial):
        return Fitted(node.inputs, node.outputs[0])
    runs = merge_axes(
        wanted, [tuple(size == 1 for size in sizes) for sizes in zip(*shapes, strict=True)]
    )
    if runs is not None:
        merged = [merged_shape(shape, runs) for shape in shapes]
        inputs, before = reshaped(graph, node, node.inputs, merged, new_value)
        dtype = graph.values[node.outputs[0]].dtype
        output = new_value(merged_shape(wanted, runs), dtype=dtype)
        return Fitted(inputs, output, before, (reshape_node(node, output, node.outputs[0]),))
    inputs, before = list(node.inputs), []
    for position in itertools.compress(range(len(inputs)), partial):
        whole = (*wanted[:outer], *shapes[position][outer:])
        v = inputs[position]
        inputs[position] = new_value(whole, dtype=graph.values[v].dtype)
        repeated = replace(node, inputs=(v,), outputs=(inputs[position],))
        before.append(broadcast_node(graph, repeated, whole))
    return Fitted(inputs, node.outputs[0], before)


def running_input(graph: Graph, node: Node, first: int = 0) -> int:
    """Return the position of the running input: a computed input, preferably of the output's shape.

    The function returns a position before `first` only if no other input is suitable.
    """
    shape = graph.values[node.outputs[0]].shape
    order: list[int] = [*range(first, len(node.inputs)), *range(first)]
    computed = [i for i in order if not graph.values[node.inputs[i]].is_constant]
    whole = [i for i in computed if graph.values[node.inputs[i]].shape == shape]
    return (whole or computed)[0]


def listed(shape: Shape) -> str:
    """Return a shape as text for messages."""
    return f"[{','.join(map(str, shape))}]"
