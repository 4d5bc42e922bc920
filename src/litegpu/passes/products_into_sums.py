"""Moves a product into the sum that reads it, if no kernel before the product can include it.

Rotary position embeddings multiply a value twice and add the products; only one product can be the
epilogue of the kernel that moves the channels. A slice has no kernel that could include the
product, since sums read slices in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def products_into_sums(graph: Graph) -> PassResult:
    """Visit each ADD that is the only reader of both its operands."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != COPY or not node.epilogue or node.epilogue[0].function != "ADD":
            continue
        pair = (node.inputs[0], *node.epilogue[0].operands)
        for value, other in (pair, pair[::-1]):
            product = producers.get(value)
            if (
                product is None
                or other == SELF
                or not _fits(graph, product, node, producers, consumers)
            ):
                continue
            if graph.values[other].shape != graph.values[node.outputs[0]].shape:
                continue
            if only_consumer(other, consumers, graph.outputs) is None or other not in producers:
                edit.declined.append(f"{label(product)}: other nodes also read the other summand")
                continue
            (factor,) = product.epilogue[0].operands
            summed = EpilogueOp("MULTIPLY_ADD", (product.inputs[0], factor))
            edit.nodes[position] = replace(
                node,
                inputs=(other,),
                epilogue=(summed, *node.epilogue[1:]),
                merged=(*node.merged, *product.merged, product.index),
            )
            edit.nodes[edit.position(product)] = None
            edit.applied.append(f"{label(product)} into {label(node)}")
            break
    return edit.result()


def _fits(
    graph: Graph,
    node: Node,
    reader: Node,
    producers: Mapping[int, Node],
    consumers: Mapping[int, list[Node]],
) -> bool:
    """Whether a node only multiplies a slice or a shared value, and has a single reader."""
    if node.op != COPY or node.attributes is not None or len(node.epilogue) != 1:
        return False
    (epilogue_op,) = node.epilogue
    plain = epilogue_op.function == "MUL" and not epilogue_op.extend
    if not plain or len(epilogue_op.operands) != 1 or epilogue_op.operands[0] == SELF:
        return False
    source, target = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    if target.dtype is not DType.FLOAT32 or source.shape != target.shape:
        return False
    if target.shape != graph.values[reader.outputs[0]].shape:
        return False
    alone = only_consumer(target.id, consumers, graph.outputs) is not None
    producer = producers.get(source.id)
    cut = producer is not None and producer.op == STRIDED_SLICE and not producer.epilogue
    return alone and (cut or len(consumers[source.id]) > 1)
