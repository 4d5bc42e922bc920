"""Removes a RESHAPE of the part that DYNAMIC_UPDATE_SLICE writes, which is read in row-major order.

Caches of values are [depth, positions]. The part of one position has one channel per row, so that
the RESHAPE would be a kernel that pads each row.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.dynamic_update_slice import UpdateAttributes
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label


def reshape_into_update(graph: Graph) -> PassResult:
    """Let updates read the value before the RESHAPE; others may read the RESHAPE as well."""
    edit = Editor(graph)
    producers = graph.producers()
    passed: dict[int, Node] = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node.attributes, UpdateAttributes):
            continue
        value, update, begin = node.inputs
        reshape = producers.get(update)
        while reshape is not None and reshape.op == RESHAPE and not reshape.epilogue:
            passed[reshape.outputs[0]] = reshape
            update = reshape.inputs[0]
            edit.applied.append(f"{label(reshape)} into {label(node)}")
            reshape = producers.get(update)
        if update != node.inputs[1]:
            edit.nodes[position] = replace(node, inputs=(value, update, begin))
    edit.drop_unread([node for node in reversed(graph.nodes) if node.outputs[0] in passed])
    return edit.result()
