"""Exchanges the operands of products of values and a transposed softmax result.

Converters turn sums over named axes (einsum) into products of [depth, keys] and [queries, keys],
whose results are [depth, queries]. Attention needs the exchanged product; the transpose after it
merges with the transpose of the heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def softmax_before_values(graph: Graph) -> PassResult:
    """Exchange the operands of each product whose second operand is a transposed softmax result."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "BATCH_MATMUL" or not node.params.get("adj_y"):
            continue
        values, weights = node.inputs
        softmax = producers.get(weights)
        result = graph.values[node.outputs[0]]
        if softmax is None or softmax.op != "SOFTMAX" or result.dtype is not DType.FLOAT32:
            continue
        if only_consumer(weights, consumers, graph.outputs) is None:
            edit.declined.append(f"{label(node)}: other nodes also read {label(softmax)}")
            continue
        *lead, rows, columns = result.shape
        product = edit.new_value(result, shape=(*lead, columns, rows))
        params = {**node.params, "adj_x": False, "adj_y": not node.params.get("adj_x")}
        edit.insert_before(
            position,
            replace(node, inputs=(weights, values), outputs=(product,), params=params),
        )
        order = np.array([*range(len(lead)), len(lead) + 1, len(lead)], np.int32)
        turned = edit.new_constant(f"litegpu_turned_{node.index}", order)
        edit.nodes[position] = replace(
            node, op="TRANSPOSE", version=1, inputs=(product, turned), params={}
        )
        edit.applied.append(f"{label(softmax)} before {label(node)}")
    return edit.result()
