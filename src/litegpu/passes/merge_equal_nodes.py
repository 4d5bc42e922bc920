"""Merges equal nodes: same operation, same attributes, same inputs.

Converters emit the same reshape, mask or mean for each reader, and normalization may turn different
operations into equal nodes. After merging, all readers use one result.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from litegpu.graph import Graph, Node, Value
from litegpu.ops.base import COPY, has
from litegpu.ops.common.traits import Trait
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_MAX_BYTES = 256
"""Maximum size of constants, such as shapes, axes and scales, that the pass compares by their
contents.
"""

_MAX_PARTS = 8
"""Maximum number of inputs of a CONCATENATION that may read a value twice: it then copies its
inputs.
"""


def merge_equal_nodes(graph: Graph) -> PassResult:
    """Let readers of equal nodes read the first node's results; graph outputs remain."""
    edit = Editor(graph)
    consumers = graph.consumers()
    names: dict[int, Hashable] = {
        v: name for v, value in graph.values.items() if (name := _contents(value)) is not None
    }
    """For each value that is equal to another one, a key that identifies its contents."""
    first: dict[Hashable, Node] = {}
    apart: list[Node] = []
    for position, node in enumerate(graph.nodes):
        kind = _kind(graph, node, names)
        equal = node if kind is None else first.setdefault(kind, node)
        if equal is node:
            continue
        results = tuple(zip(node.outputs, equal.outputs, strict=True))
        names.update(results)
        if reason := _obstacle(graph, node, consumers):
            edit.declined.append(f"{label(node)}: {reason}")
            apart.append(node)
            continue
        for old, new in results:
            if edit.values[old].precise:
                edit.values[new] = replace(edit.values[new], precise=True)
            edit.rename(old, new)
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} is equal to {label(equal)}")
    edit.drop_unread(reversed(apart))  # where their readers are equal, too
    return edit.result()


def _obstacle(graph: Graph, node: Node, consumers: Mapping[int, list[Node]]) -> str:
    if any(v in graph.outputs for v in node.outputs):
        return "the node computes an output of the partition"
    readers = (reader for v in node.outputs for reader in consumers.get(v, ()))
    if any(has(each, Trait.HOLDS_INPUTS) and len(each.inputs) > _MAX_PARTS for each in readers):
        return "the node's result is stored in place in a concatenation of many parts"
    (output, *more) = node.outputs
    reader = None if more else only_consumer(output, consumers, graph.outputs)
    size = graph.values[output].elements
    if (
        reader is not None
        and reader.op == COPY
        and reader.inputs == (output,)
        and reader.epilogue
        and graph.values[reader.outputs[0]].shape == graph.values[output].shape
        and not has(node, Trait.SUMS_PRODUCTS)
        and all(graph.values[v].elements <= size for v in node.operands)
    ):
        return (
            f"{label(reader)} becomes an epilogue of the node, which costs no more than reading "
            "its result"
        )
    return ""


def _contents(value: Value) -> Hashable:
    """Return a key that identifies a small constant's contents; None for other values."""
    if value.data is None or value.data.nbytes > _MAX_BYTES or value.blockwise is not None:
        return None
    return value.dtype, value.shape, value.quantization, value.data.tobytes()


def _kind(graph: Graph, node: Node, names: Mapping[int, Hashable]) -> Hashable | None:
    """Return the key that equal nodes share; None for nodes with subgraphs or state."""
    values = graph.values
    if node.graphs or any(values[v].is_variable for v in (*node.operands, *node.outputs)):
        return None
    epilogue = tuple(
        replace(each, operands=tuple(names.get(v, v) for v in each.operands))  # type: ignore[misc]
        for each in node.epilogue
    )
    outputs = tuple(
        (value.shape, value.dtype, value.quantization, value.siblings)
        for value in (values[v] for v in node.outputs)
    )
    kind = (
        *(node.op, node.version, node.custom, outputs),
        *(tuple(names.get(v, v) for v in node.inputs), epilogue),
        *(node.attributes, tuple(sorted(node.params.items()))),
    )
    try:
        hash(kind)
    except TypeError:  # attributes with arrays
        return None
    return kind
