"""Moves the scale of attention from queries and keys to the scores.

Converters apply the factor 1 / sqrt(depth) in parts to queries and keys, which then need a separate
kernel each. The product's epilogue scales the scores at no cost, and in float32: the kernel does
not round the sums to half first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import as_float32
from litegpu.passes.base import Editor, PassResult, label, only_consumer
from litegpu.passes.regroup_matrices import reaches_softmax

_MATMUL = "BATCH_MATMUL"
_MOVES = frozenset(("BROADCAST_TO", "RESHAPE", "TILE", "TRANSPOSE"))
_LARGEST = 2.0**12
"""Largest factor that the pass moves: larger factors, and those below its inverse, may be needed to
keep operands in range.
"""


def scales_after_products(graph: Graph) -> PassResult:
    """Move constant factors of the operands of each product before a softmax to its result."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != _MATMUL or graph.values[node.outputs[0]].dtype is not DType.FLOAT32:
            continue
        if not reaches_softmax(graph, consumers, node):
            continue
        factor, scales = 1.0, []
        for operand in node.inputs:
            value, scale = operand, producers.get(operand)
            while scale is not None and only_consumer(value, consumers, graph.outputs):
                if found := _factor(graph, scale):
                    factor *= found[1]
                    scales.append((scale, found[0]))
                if scale.op not in _MOVES:
                    break
                value = scale.inputs[0]
                scale = producers.get(value)
        if not scales:
            continue
        for scale, source in scales:
            edit.nodes[edit.position(scale)] = None
            edit.rename(scale.outputs[0], source)
        current = edit.nodes[position]
        assert current is not None
        scores = edit.new_value(graph.values[node.outputs[0]])
        edit.insert_before(position, replace(current, outputs=(scores,)))
        number = edit.new_constant(f"litegpu_scale_{node.index}", np.array(factor, np.float32))
        edit.nodes[position] = replace(scales[0][0], inputs=(scores, number), outputs=node.outputs)
        edit.applied.append(f"{', '.join(label(each) for each, _ in scales)} after {label(node)}")
    return edit.result()


def _factor(graph: Graph, node: Node) -> tuple[int, float] | None:
    """Return the value that a node scales, and the constant factor, if it is not extreme."""
    if node.op != "MUL" or node.params.get("activation", "none") != "none":
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        number, source = graph.values[other], graph.values[value]
        same = source.shape == graph.values[node.outputs[0]].shape
        if same and not source.is_constant and number.is_constant and number.elements == 1:
            factor = float(as_float32(number).ravel()[0])
            return (value, factor) if 1 / _LARGEST <= abs(factor) <= _LARGEST else None
    return None
