"""Stores the results of updates in place: in the allocation of the input that a node updates."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace

from litegpu.codegen import Storage
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import has
from litegpu.ops.common.traits import Trait

_FLOATS = (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


def place_updates(graph: Graph, storages: MutableMapping[int, Storage], repeats: bool) -> None:
    """Store results of nodes with UPDATES_INPUT in their input, if no reader needs the old data.

    A node with UPDATES_INPUT must be the last reader of the input, and the input must not be an
    output. If runs may be repeated (`repeats`: values may overflow half), the repeated run starts
    with updated inputs. With `repeats`, the update must be idempotent. An update is idempotent if
    no node reads an input of the partition before its update, and if the position of the update
    depends on integers only.
    """
    if not any(has(node, Trait.UPDATES_INPUT) for node in graph.nodes):
        return
    first, last = dict[int, int](), dict[int, int]()
    for position, node in enumerate(graph.nodes):
        for base in {storages[v].base for v in node.operands}:
            first.setdefault(base, position)
            last[base] = position
    parts: dict[int, list[int]] = {}
    for v, storage in storages.items():
        parts.setdefault(storage.base, []).append(v)
    results = {storages[v].base for v in graph.outputs}
    producers = {v: node for node in graph.nodes for v in node.outputs}
    given = {*graph.inputs} if repeats else set[int]()
    updated: set[int] = set()
    for position, node in enumerate(graph.nodes):
        if not has(node, Trait.UPDATES_INPUT) or not _may_share_storage(graph, storages, node):
            continue
        base, result = storages[node.inputs[0]].base, node.outputs[0]
        if base in results or last[base] > position:
            continue
        # Later readers see the updated input, also in a repeated run.
        read_before = base not in updated and first[base] < position
        if base in given and (read_before or not _from_integers(graph, producers, node)):
            continue
        for v in parts[result]:
            storages[v] = replace(storages[v], base=base)
        parts[base] += parts.pop(result)
        last[base] = max(last.get(result, position), position)
        updated.add(base)
        if result in results:
            results.add(base)


def _may_share_storage(graph: Graph, storages: Mapping[int, Storage], node: Node) -> bool:
    """Whether the result would have the input's storage, and the node reads the input only once."""
    source, *others = node.inputs
    stored, result = storages[source], storages[node.outputs[0]]
    return (
        not node.epilogue
        and not graph.values[source].is_constant
        and result.base == node.outputs[0]
        and replace(result, base=stored.base) == stored
        and storages[stored.base].nbytes == stored.nbytes
        and all(storages[v].base != stored.base for v in others)
    )


def _from_integers(graph: Graph, producers: Mapping[int, Node], node: Node) -> bool:
    """Whether the position of the update depends on integers only."""
    waiting, seen = [node.inputs[2]], set[int]()
    while waiting:
        v = waiting.pop()
        if graph.values[v].dtype in _FLOATS:
            return False
        if v in producers and v not in seen:
            waiting += producers[v].operands
        seen.add(v)
    return True
