"""Fuses a CONCATENATION of a few channels, sliced or upsampled from one value, into one kernel.

Without the fusion, each part needs a separate kernel that writes a value of one channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.channel_maps import CHANNEL_MAPS, MAX_CHANNELS, ChannelMap, ChannelMapsAttributes
from litegpu.ops.common.functions import depends_on_position
from litegpu.ops.common.lookups import lookups
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class _Part:
    """An input of a CONCATENATION: source, index maps of its channels, epilogue and nodes."""

    source: int
    maps: tuple[ChannelMap, ...]
    epilogue: tuple[EpilogueOp, ...]
    nodes: tuple[Node, ...]


def join_channels(graph: Graph) -> PassResult:
    """Visit each CONCATENATION whose inputs have too few channels to be written in place."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "CONCATENATION" or node.attributes.axis != _CHANNELS:
            continue
        if graph.values[node.outputs[0]].shape4[3] > MAX_CHANNELS:
            continue
        found = [_part(graph, v, producers, consumers) for v in node.inputs]
        reasons = [each for each in found if isinstance(each, str)]
        parts = [each for each in found if isinstance(each, _Part)]
        if not reasons and len({(each.source, each.epilogue) for each in parts}) > 1:
            reasons.append("the parts come from several values, or are computed in different ways")
        if reasons:
            edit.declined.append(f"{label(node)}: {reasons[0]}")
            continue
        gone = [each for part in parts for each in part.nodes]
        edit.nodes[position] = replace(
            node,
            op=CHANNEL_MAPS,
            inputs=(parts[0].source,),
            attributes=ChannelMapsAttributes(tuple(m for part in parts for m in part.maps)),
            epilogue=parts[0].epilogue + node.epilogue,
            merged=tuple(dict.fromkeys(i for each in gone for i in (*each.merged, each.index))),
        )
        for each in gone:
            edit.nodes[edit.position(each)] = None
        edit.applied.append(f"{', '.join(map(label, gone))} into {label(node)}")
    return edit.result()


def _part(
    graph: Graph,
    value: int,
    producers: Mapping[int, Node],
    consumers: Mapping[int, list[Node]],
) -> _Part | str:
    """Return how an input is computed, or why the fused kernel cannot compute it."""
    nodes: list[Node] = []
    node = producers.get(value)
    # Ops after the CONCATENATION were moved before it, so all inputs have the same ones.
    if node is not None and _is_element_wise(graph, node):
        nodes.append(node)
        node = producers.get(node.inputs[0])
    if node is None:
        return "a part is an input of the partition"
    epilogue = tuple(each for n in nodes for each in n.epilogue)
    nodes.append(node)
    if any(only_consumer(n.outputs[0], consumers, graph.outputs) is None for n in nodes):
        return f"other nodes also read {label(node)}"
    maps = () if node.epilogue else _maps(graph, node)
    if not maps:
        return f"{label(node)} is not only a slice or an upsampling"
    return _Part(node.inputs[0], maps, epilogue, tuple(reversed(nodes)))


def _is_element_wise(graph: Graph, node: Node) -> bool:
    """Whether a node applies the same function to each element, without operands."""
    plain = node.op == COPY and node.attributes is None and not depends_on_position(node.epilogue)
    same = graph.values[node.inputs[0]].shape == graph.values[node.outputs[0]].shape
    return plain and same and not any(each.operands for each in node.epilogue)


def _maps(graph: Graph, node: Node) -> tuple[ChannelMap, ...]:
    """Return the index map of each channel that a node computes; none for any other node."""
    shape = graph.values[node.outputs[0]].shape
    found = lookups(graph, node)
    if found is None or len(found) != 4 or len(shape) != 4:
        return ()
    batch, rows, columns, channels = found
    if channels.axis not in (None, _CHANNELS):
        return ()
    picked = channels.indices if channels.axis is not None else channels.indices * shape[3]
    maps = tuple(ChannelMap((batch, rows, columns), channel) for channel in picked)
    return maps if all(each.texts() is not None for each in maps) else ()
