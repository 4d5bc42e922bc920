"""Rewrites the products of single-head attention as batched matrix products.

Converters emit the product of queries and keys of a single head as a FULLY_CONNECTED whose weights
are the keys. With BATCH_MATMUL instead, another pass can fuse the attention into one kernel, which
does not store the scores.
"""

from __future__ import annotations

import math
from dataclasses import replace

from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.ops.reshape import reshape_node
from litegpu.passes.base import Editor, PassResult, label
from litegpu.passes.regroup_matrices import reaches_softmax


def rows_into_matrices(graph: Graph) -> PassResult:
    """Replace each FULLY_CONNECTED with computed weights whose result reaches a softmax."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if not _is_product(graph, node) or not reaches_softmax(graph, consumers, node):
            continue
        lead = (1,) * (len(graph.values[node.outputs[0]].shape) - 2)
        operands = []
        for v in node.inputs[:2]:
            value = graph.values[v]
            shape = (*lead, *value.shape[-2:])
            found = v if value.shape == shape else edit.new_value(value, shape=shape)
            if found != v:
                edit.insert_before(position, reshape_node(node, v, found))
            operands.append(found)
        edit.nodes[position] = replace(
            node,
            op="BATCH_MATMUL",
            version=1,
            inputs=tuple(operands),
            params={"adj_x": False, "adj_y": True, "asymmetric_quantize_inputs": False},
        )
        edit.applied.append(f"{label(node)} by keys that are computed")
    return edit.result()


def _is_product(graph: Graph, node: Node) -> bool:
    """Whether a node only multiplies two computed matrices."""
    if node.op != "FULLY_CONNECTED" or node.params.get("activation", "none") != "none":
        return False
    if any(v != ABSENT for v in node.inputs[2:]):
        return False
    rows, keys, scores = (graph.values[v] for v in (*node.inputs[:2], node.outputs[0]))
    if any(each.is_constant or each.dtype is not DType.FLOAT32 for each in (rows, keys, scores)):
        return False
    if min(len(rows.shape), len(scores.shape)) < 2 or rows.shape[-1] != keys.shape[-1]:
        return False
    one = all(math.prod(each.shape[:-2]) == 1 for each in (rows, scores))
    return one and rows.shape[-2] == scores.shape[-2]
