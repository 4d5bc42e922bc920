"""Merges a PAD of H and W with zeros (or zero points) into the convolutions and pools after it."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import PoolAttributes
from litegpu.passes.base import Editor, PassResult, label


def pad_into_window(graph: Graph) -> PassResult:
    """Let each reader read the unpadded image, with zeros outside."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "PAD":
            continue
        readers = consumers.get(node.outputs[0], [])
        reason = _obstacle(graph, node, readers)
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        before = [-b for b in node.attributes.begin]
        for reader in readers:
            view = reader.attributes.window
            pads = (view.pads[0] + before[1], view.pads[1] + before[2])
            attributes = replace(reader.attributes, window=replace(view, pads=pads))
            if isinstance(attributes, PoolAttributes):
                attributes = replace(attributes, outside=node.attributes.fill)
            edit.nodes[edit.position(reader)] = replace(
                reader,
                attributes=attributes,
                inputs=(node.inputs[0], *reader.inputs[1:]),
                merged=(*reader.merged, node.index),
            )
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {', '.join(map(label, readers))}")
    return edit.result()


def _obstacle(graph: Graph, node: Node, readers: list[Node]) -> str:
    source = graph.values[node.inputs[0]].shape4
    padded = graph.values[node.outputs[0]].shape4
    if node.outputs[0] in graph.outputs:
        return "the result is an output of the partition"
    if node.epilogue or not readers or not all(has(r, Trait.WINDOWED) for r in readers):
        return "not only convolutions and pools read its result"
    if any(r.inputs[0] != node.outputs[0] or _reads_twice(r, node.outputs[0]) for r in readers):
        return "a reader also has the result as another operand"
    if source[0] != padded[0] or source[3] != padded[3]:
        return "the node pads the batch or the channels"
    if any(_leaves_out(r, padded, graph.values[r.outputs[0]].shape4) for r in readers):
        return "a window of a pool exceeds the image"
    if any(_zero(r, node.attributes.fill) != node.attributes.fill for r in readers):
        return "the padding value is not the zero point that a reader uses"
    return ""


def _zero(reader: Node, fill: float) -> float:
    """Return the value that a reader assumes outside the image: the zero point for integers."""
    if isinstance(reader.attributes, PoolAttributes):
        return fill  # any value: pools get it as an attribute
    return getattr(reader.attributes, "input_zero", 0)


def _leaves_out(reader: Node, image: tuple[int, ...], output: tuple[int, ...]) -> bool:
    """Whether a pool would ignore positions other than the merged padding, which counts as zero."""
    pool = isinstance(reader.attributes, PoolAttributes)
    return pool and reader.attributes.window.leaves(image[1:3], output[1:3])


def _reads_twice(reader: Node, value: int) -> bool:
    return sum(v == value for v in reader.operands) > 1
