"""Folds nodes whose results are constants, such as DEQUANTIZE of float16 weights."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph
from litegpu.ops.common import fold
from litegpu.passes.base import Editor, PassResult, label


def fold_constants(graph: Graph) -> PassResult:
    """Replace the outputs of foldable nodes by constants, and remove the nodes."""
    edit, budget = Editor(graph), fold.Budget.of(graph)
    for position, node in enumerate(graph.nodes):
        if fold.is_folded(node, edit.values):
            edit.nodes[position] = None
            edit.applied.append(f"{label(node)} folded")
            continue
        known = fold.evaluate(replace(graph, values=edit.values), node, budget)
        if known is None:
            if node.op == "DEQUANTIZE":
                edit.declined.append(f"{label(node)}: its input is no float16 constant")
            continue
        for v, array in zip(node.outputs, known, strict=True):
            edit.values[v] = fold.constant(edit.values[v], array)
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} folded")
    return edit.result()
