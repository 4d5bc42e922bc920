"""Slices the operand of a transpose where all its readers slice the result.

timm makes queries, keys and values by one layer, transposes them to [3, batch, heads, tokens,
depth] and takes one of the three each time. Slices of the layer's result are views, and each of
the transposes merges with what reads it.
"""

from __future__ import annotations

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import constant_list
from litegpu.passes.base import Editor, PassResult, label


def slices_before_transpose(graph: Graph) -> PassResult:
    """Exchange each transpose and the slices that read it."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        transpose = producers.get(node.inputs[0]) if node.op == "SLICE" else None
        if transpose is None or transpose.op != "TRANSPOSE":
            continue
        readers = consumers[transpose.outputs[0]]
        parts = [_part(graph, each) for each in readers]
        order = _constant(graph, transpose.inputs[1])
        if transpose.outputs[0] in graph.outputs or order is None or None in parts:
            continue
        part = _part(graph, node)
        assert part is not None
        begin, size = ([0] * len(order) for _ in range(2))
        for axis, of_source in enumerate(order):
            place = of_source % len(order)
            begin[place], size[place] = part[0][axis], part[1][axis]
        source = graph.values[transpose.inputs[0]]
        between = edit.new_value(source, shape=tuple(size))
        numbers = [
            edit.new_constant(f"litegpu_{name}_{node.index}", np.array(given, np.int32))
            for name, given in (("begin", begin), ("size", size))
        ]
        sliced = Node(
            *(node.index, "SLICE", node.version, (source.id, *numbers), (between,)),
            params=node.params,
        )
        edit.insert_before(position, sliced)
        edit.nodes[position] = Node(
            *(transpose.index, "TRANSPOSE", transpose.version),
            (between, transpose.inputs[1]),
            node.outputs,
            params=transpose.params,
        )
        edit.drop_unread([transpose])
        edit.applied.append(f"{label(node)} before {label(transpose)}")
    return edit.result()


def _constant(graph: Graph, value: int) -> list[int] | None:
    return constant_list(graph, value) if graph.values[value].is_constant else None


def _part(graph: Graph, node: Node) -> tuple[list[int], list[int]] | None:
    """Return where a slice begins and its sizes, if both are known."""
    if node.op != "SLICE":
        return None
    begin = _constant(graph, node.inputs[1])
    return None if begin is None else (begin, [*graph.values[node.outputs[0]].shape])
