"""Fuses normalizations over channels into the kernels that quantize their results."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.normalize import NORMALIZE, NormalizeAttributes
from litegpu.ops.quantize_rows import QUANTIZE_ROWS, QuantizeRowsAttributes, RowNormalization
from litegpu.passes.base import Editor, PassResult, label, numbered, only_consumer

_CHANNELS = (3,)


def normalize_into_rows(graph: Graph) -> PassResult:
    """Let QUANTIZE_ROWS normalize its rows, if nothing else reads the normalized values."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != NORMALIZE:
            continue
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        if reader is None or reader.op != QUANTIZE_ROWS:
            continue
        attributes: NormalizeAttributes = node.attributes
        if attributes.axes != _CHANNELS or attributes.parts > 1 or reader.attributes.pixels > 1:
            edit.declined.append(f"{label(node)}: it does not normalize each row")
            continue
        edit.nodes[edit.position(reader)] = _merged(node, reader)
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _merged(node: Node, reader: Node) -> Node:
    normalization: NormalizeAttributes = node.attributes
    rows: QuantizeRowsAttributes = reader.attributes
    inputs, epilogue = numbered(node.epilogue, node.inputs)
    attributes = replace(
        rows,
        normalization=RowNormalization(normalization.epsilon, normalization.centred, epilogue),
    )
    merged = (*node.merged, node.index, *reader.merged)
    return replace(reader, inputs=inputs, attributes=attributes, merged=merged)
