"""Lets ARG_MAX and ARG_MIN resize the channels that they compare, without the large image."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.arg_max import ArgAttributes
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_CHANNELS = 3


def resize_into_arg(graph: Graph) -> PassResult:
    """Merge each bilinear resize whose only reader is an ARG_MAX or ARG_MIN over the channels."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "RESIZE_BILINEAR":
            continue
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        reason = _obstacle(node, reader)
        if reader is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        edit.nodes[edit.position(reader)] = replace(
            reader,
            inputs=node.inputs,
            attributes=replace(reader.attributes, resize=node.attributes),
            merged=(*node.merged, node.index, *reader.merged),
        )
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _obstacle(node: Node, reader: Node | None) -> str:
    if reader is None or not isinstance(reader.attributes, ArgAttributes):
        return "not read by one ARG_MAX or ARG_MIN alone"
    if reader.attributes.axis != _CHANNELS:
        return f"{label(reader)} does not search along the channels"
    return "epilogue ops follow it" if node.epilogue else ""
