"""Merges slices that are adjacent both in a CONCATENATION and in their source.

Without the pass, each slice needs a kernel that copies it. After the pass, one slice remains, or
none if the slices cover the whole source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops.copy import CopyAttributes, four
from litegpu.ops.reshape import reshape_node
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label, only_consumer


@dataclass(frozen=True, slots=True)
class _Part:
    """One or several inputs of a CONCATENATION: `begin` to `end` of `source` along the axis."""

    source: int
    begin: int
    end: int
    slices: tuple[Node, ...]
    """The slice nodes of this part; none if the input is not a slice."""

    def and_then(self, other: _Part) -> _Part | None:
        """Return the merged part if `other` starts where this part ends; otherwise None."""
        adjacent = self.slices and other.slices and self.end == other.begin
        if not adjacent or self.source != other.source:
            return None
        return replace(self, end=other.end, slices=self.slices + other.slices)


def join_slices(graph: Graph) -> PassResult:
    """Let each CONCATENATION read the source of its slices where they are adjacent."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, original in enumerate(graph.nodes):
        node = edit.nodes[position]
        if node is None or original.op != "CONCATENATION":
            continue
        parts = _joined([_part(edit, producers.get(v), node, v) for v in node.inputs])
        if len(parts) == len(node.inputs):
            continue
        slices = [each for part in parts if len(part.slices) > 1 for each in part.slices]
        shared = [
            each for each in slices if not only_consumer(each.outputs[0], consumers, graph.outputs)
        ]
        if shared and len(parts) > 1:
            edit.declined.append(f"{label(node)}: other nodes also read {label(shared[0])}")
            continue
        _rewrite(edit, position, node, parts)
        edit.drop_unread(sorted(set(slices), key=edit.position, reverse=True))
        edit.applied.append(f"{', '.join(map(label, slices))} joined before {label(node)}")
    return edit.result()


def _part(edit: Editor, producer: Node | None, node: Node, value: int) -> _Part:
    """Return an input of a CONCATENATION as a range of its source along the axis."""
    graph, axis = edit.graph, node.attributes.axis
    shape = graph.values[value].shape4
    whole = _Part(value, 0, shape[axis], ())
    if producer is None or producer.op != STRIDED_SLICE or producer.epilogue:
        return whole
    current = edit.nodes[edit.position(producer)] or producer  # the source may have been renamed
    attributes: CopyAttributes = producer.attributes
    source = graph.values[current.inputs[0]].shape4
    others = [i for i in range(4) if i != axis]
    if any(source[i] != shape[i] for i in others) or attributes.step != (1, 1, 1, 1):
        return whole
    begin = attributes.begin[axis]
    return _Part(current.inputs[0], begin, begin + shape[axis], (producer,))


def _joined(parts: list[_Part]) -> list[_Part]:
    found = parts[:1]
    for part in parts[1:]:
        both = found[-1].and_then(part)
        found[-1:] = [found[-1], part] if both is None else [both]
    return found


def _rewrite(edit: Editor, position: int, node: Node, parts: list[_Part]) -> None:
    """Replace a CONCATENATION by one with fewer inputs, by a single slice, or by its source."""
    target = node.outputs[0]
    inputs, added = [], []
    for part in parts:
        slice_node = _slice(edit, node, part) if len(part.slices) > 1 else None
        inputs.append(part.slices[0].outputs[0] if len(part.slices) == 1 else part.source)
        if slice_node is not None:
            added.append(slice_node)
            inputs[-1] = slice_node.outputs[0]
    edit.nodes[position] = replace(node, inputs=tuple(inputs))
    if len(parts) > 1:
        for each in added:
            edit.insert_before(position, each)
    elif added:
        edit.nodes[position] = replace(added[0], outputs=(target,))
    elif target in edit.graph.outputs:
        edit.nodes[position] = reshape_node(node, inputs[0], target)
    else:
        edit.nodes[position] = None
        edit.rename(target, inputs[0])


def _slice(edit: Editor, node: Node, part: _Part) -> Node | None:
    """Return the node that slices a part; None if it is the whole source."""
    source, axis = edit.graph.values[part.source], node.attributes.axis
    if part.begin == 0 and part.end == source.shape4[axis]:
        return None
    own = axis - 4 + len(source.shape)
    size = part.end - part.begin
    output = edit.new_value(source, shape=(*source.shape[:own], size, *source.shape[own + 1 :]))
    begin = four([part.begin if i == axis else 0 for i in range(4)])
    attributes = CopyAttributes(begin)
    return Node(node.index, STRIDED_SLICE, 1, (part.source,), (output,), attributes=attributes)
