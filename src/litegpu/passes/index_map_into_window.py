"""Lets convolutions read a mirrored border or an upsampled image without storing it."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.common.window import Pair, Window
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, plain
from litegpu.ops.quantized_conv import QUANTIZED_CONV
from litegpu.passes.base import Editor, PassResult, label

_CONVOLUTIONS = ("CONV_2D", QUANTIZED_CONV)


def index_map_into_window(graph: Graph) -> PassResult:
    """Walk backwards, so that a border is merged before the upsampling that precedes it."""
    edit = Editor(graph)
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        if node.op != INDEX_MAP:
            continue
        moved = node.outputs[0]
        readers = {i: n for i in edit.nodes.readers(moved) if (n := edit.nodes[i])}
        view, reason = _view(graph, node)
        reason = reason or _obstacle(graph, node, view, [*readers.values()])
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        for at, reader in readers.items():
            before: Window = reader.attributes.window
            pads = (before.pads[0] + view.pads[0], before.pads[1] + view.pads[1])
            mirror = before.mirror if view.mirror is None else view.mirror
            window = replace(before, pads=pads, mirror=mirror, zoom=view.zoom)
            edit.nodes[at] = replace(
                reader,
                attributes=replace(reader.attributes, window=window),
                inputs=(node.inputs[0], *reader.inputs[1:]),
                merged=(*reader.merged, node.index),
            )
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {', '.join(map(label, readers.values()))}")
    return edit.result()


def _view(graph: Graph, node: Node) -> tuple[Window, str]:
    """Return the window that reads the image through an index map, or why there is none."""
    attributes: IndexMapAttributes = node.attributes
    shape, moved = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    window = Window((1, 1), (1, 1))
    if len(shape) != 4 or attributes.digits != plain(moved):
        return window, "the index map changes the order of elements"
    if any(attributes.sources[axis] != Source(((axis, 1),)) for axis in (0, 3)):
        return window, "the index map moves elements along other axes than rows and columns"
    rows = attributes.sources[1:3]
    edges = {source.mirror for source in rows} - {None}
    if len(edges) == 1 and all(
        source == Source(((axis, 1),), source.offset, mirror=source.mirror)
        for axis, source in enumerate(rows, 1)
    ):
        return replace(window, pads=(-rows[0].offset, -rows[1].offset), mirror=edges.pop()), ""
    zoom: Pair = (max(moved[1] // shape[1], 1), max(moved[2] // shape[2], 1))
    for axis, source in enumerate(rows, 1):
        table = tuple(i // zoom[axis - 1] for i in range(shape[axis] * zoom[axis - 1]))
        read = source.table or tuple(range(moved[axis]))
        if source != Source(((axis, 1),), table=source.table) or read != table:
            return window, "the index map neither mirrors nor upsamples rows and columns"
    return replace(window, zoom=zoom), ""


def _obstacle(graph: Graph, node: Node, view: Window, readers: list[Node]) -> str:
    moved = node.outputs[0]
    if moved in graph.outputs:
        return "the result is an output of the partition"
    if not readers or any(reader.op not in _CONVOLUTIONS for reader in readers):
        return "not only convolutions read the result"
    if any(reader.operands.count(moved) > 1 or reader.inputs[0] != moved for reader in readers):
        return "a reader also has the result as another operand"
    windows: list[Window] = [reader.attributes.window for reader in readers]
    if any(window.zoom != (1, 1) for window in windows):
        return "a reader already upsamples the result"
    image = graph.values[moved].shape4[1:3]
    outputs = [graph.values[reader.outputs[0]].shape4[1:3] for reader in readers]
    if view.mirror is not None and any(
        window.mirror is not None or window.leaves(image, out)
        for window, out in zip(windows, outputs, strict=True)
    ):
        return "a window of a reader exceeds the image"
    return ""
