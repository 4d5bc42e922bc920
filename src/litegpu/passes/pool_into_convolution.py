"""Fuses a maximum pool into the convolution before it.

The result of the convolution, which is larger than that of the pool, stays on the chip, and the
fusion saves a launch.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import DType, Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.pooled_conv import POOLED_CONV, PooledConvAttributes
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def pool_into_convolution(graph: Graph, fusions: Fusions) -> PassResult:
    """Merge each convolution with the maximum pool that is its only reader.

    The implementations decide whether a kernel can compute both operations and is faster.
    """
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        readers = consumers.get(node.outputs[0], [])
        if node.op != "CONV_2D" or all(each.op != "MAX_POOL_2D" for each in readers):
            continue
        reason = _obstacle(graph, node, reader)
        if reader is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        merged = _merged(graph, node, reader)
        reason = fusions.obstacle(graph, merged, node.outputs[0])
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        edit.nodes[edit.position(reader)] = merged
        edit.nodes[position] = None
        edit.applied.append(f"{label(reader)} into {label(node)}")
    return edit.result()


def _merged(graph: Graph, node: Node, reader: Node) -> Node:
    output = node.outputs[0]
    attributes = PooledConvAttributes(
        node.attributes, node.epilogue, graph.values[output].shape4, output, reader.attributes
    )
    return replace(
        reader,
        op=POOLED_CONV,
        inputs=node.inputs,
        attributes=attributes,
        merged=(*node.merged, node.index, *reader.merged),
    )


def _obstacle(graph: Graph, node: Node, reader: Node | None) -> str:
    output = node.outputs[0]
    if reader is None or reader.inputs[0] != output or output in reader.operands[1:]:
        return "not read by one pool alone"
    if graph.values[output].dtype is not DType.FLOAT32:
        return "the result is not float32"
    if node.attributes.depthwise is not None:
        return "the convolution computes its operand on the fly"
    if any(not graph.values[v].is_constant for v in node.operands[1:]):
        return "the weights are computed, or the epilogue reads computed values"
    return ""
