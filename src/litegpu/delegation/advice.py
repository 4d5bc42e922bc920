"""Advice on a model: which nodes prevent full delegation, and which costs are avoidable."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from litegpu.delegation.partitioner import Selection, nodes_of
from litegpu.delegation.report import Advice, QuantizedSupport, without_tensors
from litegpu.engine.compiled import CompiledPartition
from litegpu.errors import InterpreterError
from litegpu.graph import DType, Graph, Node
from litegpu.graph.partition import NO_LIMIT, PartitionChoice
from litegpu.numeric_policy import FP16, NumericPolicy
from litegpu.ops.base import find
from litegpu.ops.common import types
from litegpu.ops.common.dynamic import UNKNOWN
from litegpu.ops.common.support import SupportCheck, computes_with_bytes, has_byte_constants
from litegpu.wording import about, counted, counts, shown_nodes, shown_ops, shown_size, shown_time

_MAX_BLOCKERS, _MAX_TRIED = 5, 8
_DATA_MOVEMENT = ("concat", "index_map", "reshape")
"""Templates of kernels that only move elements, apart from their epilogues."""
_DATA_MOVEMENT_FROM, _PADDING_FROM = 0.05, 0.1
"""Minimum shares of a partition's bytes for which advice is given."""
_HALVED_FROM = 1 << 20
"""Minimum bytes of weights and values for which storage as float16 is suggested."""
_FLOAT_BYTES = 4


_Obstacle = tuple[str, ...]
"""A reason for which the GPU cannot run nodes; equal for all nodes with this reason."""


@dataclass(frozen=True, slots=True)
class _Obstacles:
    """The nodes that stay on the CPU, by reason.

    `waiting` maps each node whose shapes the CPU computes at run time to the obstacles that cause
    this.
    """

    nodes: Mapping[_Obstacle, Sequence[Node]]
    waiting: Sequence[tuple[int, frozenset[_Obstacle]]]

    def behind(self, gone: Collection[_Obstacle]) -> set[int]:
        """Return the nodes that could run on the GPU without the obstacles in `gone`."""
        own = {node.index for key in gone for node in self.nodes[key]}
        return own | {index for index, keys in self.waiting if keys <= set(gone)}


def advise(
    selection: Selection,
    choice: PartitionChoice,
    compiled: Sequence[CompiledPartition],
    policy: NumericPolicy,
    other_modes: Sequence[QuantizedSupport],
) -> tuple[Advice, ...]:
    """Return advice on a checked graph whose partitions have been chosen and compiled.

    `other_modes` describes the values of the option `quantized` that the delegate did not choose.
    """
    graph = selection.support.graph
    return (
        *_where_divisible(_on_blockers(selection, choice, other_modes)),
        *_on_limit(selection, choice),
        *_on_data_movement(selection, compiled),
        *_on_padding(graph, compiled),
        *_on_precision(graph, choice, compiled, policy),
    )


def _where_divisible(found: Iterator[Advice]) -> Iterator[Advice]:
    """Yield advice until the runtime fails to partition a graph, as it does for a damaged graph."""
    with contextlib.suppress(InterpreterError):
        yield from found


def _on_blockers(
    selection: Selection, choice: PartitionChoice, other_modes: Sequence[QuantizedSupport]
) -> Iterator[Advice]:
    """Yield the obstacles to a complete delegation, the largest saving first.

    The saving of each obstacle assumes that all previous obstacles are removed. The function omits
    obstacles without a saving, unless the whole graph could run on the GPU without them.
    """
    if not selection.support.divisible:
        return
    obstacles = _find_obstacles(selection.support)
    total = len(selection.support.graph.nodes)
    rest = sorted(obstacles.nodes, key=lambda key: -len(obstacles.behind([key])))[:_MAX_TRIED]
    gone: list[_Obstacle] = []
    while rest and len(gone) < _MAX_BLOCKERS:
        tried = [(selection.choose(obstacles.behind([*gone, key])), key) for key in rest]
        then, key = min(tried, key=lambda each: selection.costs.invoke_seconds(each[0].delegated))
        seconds = selection.costs.invoke_seconds
        saved = seconds(choice.delegated) - seconds(then.delegated)
        whole = len(then.delegated) == 1 and len(then.delegated[0].nodes) == total
        before, after = nodes_of(choice.delegated), nodes_of(then.delegated)
        if not whole and (not counts(saved) or after <= before):
            return
        effect = "the whole graph" if whole else _effect(len(before), len(after))
        nodes = obstacles.nodes[key]
        indices = tuple(node.index for node in nodes)
        reasons = [selection.support.reasons[index] for index in indices]
        remedy = _remedy(key[0], indices, other_modes)
        replaced = _them(indices) + " too" * bool(gone)
        yield Advice(
            key[0] or "blocker",
            f"{shown_ops(node.op for node in nodes)} ({shown_nodes(indices)}): "
            f"{_shared_reason(reasons)} {remedy}Replacing {replaced} would put {effect} on the "
            f"GPU, {_saving(saved)}.",
            indices,
            max(saved, 0.0),
        )
        gone.append(key)
        rest.remove(key)
        choice = then


def _effect(before: int, after: int) -> str:
    """Describe the change in delegated nodes; fewer, but other nodes may also save time."""
    if after > before:
        return counted(after - before, "more node")
    return f"other parts of the graph ({counted(after, 'node')} in place of {before})"


def _saving(seconds: float) -> str:
    return f"saving {about(seconds)} per invoke" if counts(seconds) else "without saving time"


def _find_obstacles(support: SupportCheck) -> _Obstacles:
    graph, reasons = support.graph, support.reasons
    nodes: dict[_Obstacle, list[Node]] = {}
    waiting: list[tuple[int, frozenset[_Obstacle]]] = []
    behind: dict[int, frozenset[_Obstacle]] = {}
    for node in graph.nodes:
        if node.index not in reasons:
            continue
        keys = frozenset(key for v in node.inputs for key in behind.get(v, ()))
        if keys:
            waiting.append((node.index, keys))
        else:
            key = _obstacle(graph, node, reasons[node.index])
            nodes.setdefault(key, []).append(node)
            keys = frozenset([key])
        unknown = (v for v in node.outputs if v in graph.values)
        behind.update((v, keys) for v in unknown if graph.values[v].shape == UNKNOWN)
    return _Obstacles(nodes, waiting)


def _shared_reason(reasons: Sequence[str]) -> str:
    """Return the first reason why nodes stay on the CPU, as a sentence."""
    others = len({without_tensors(reason) for reason in reasons}) - 1
    more = f" ({counted(others, 'more reason')} above)" if others else ""
    return f"{reasons[0].rstrip('.')}{more}."


_FLOATS: Mapping[str, str] = {
    "quantized": "A model in float32, or with float16 weights, has no 8-bit integers. ",
    "weights": "Converted with float16 weights, not with dynamic-range quantization, the model has "
    "about the same accuracy and no 8-bit weights. ",
}
"""The remedies for nodes that compute with 8-bit integers, and for nodes with 8-bit weights."""


def _remedy(kind: str, indices: Sequence[int], other_modes: Sequence[QuantizedSupport]) -> str:
    """Return the options or conversions with which the GPU can run quantized nodes."""
    able = [
        f'With quantized="{each.mode}" the GPU could run {_them(indices)}. '
        for each in other_modes
        if not {node.index for node in each.rejected}.intersection(indices)
    ]
    return "".join([*able, _FLOATS[kind]]) if kind else ""


def _them(nodes: Sequence[int]) -> str:
    return "it" if len(nodes) == 1 else "them"


def _obstacle(graph: Graph, node: Node, reason: str) -> _Obstacle:
    if find(node.op) is not None or node.op == "QUANTIZE":
        if computes_with_bytes(graph, node):
            return ("quantized",)
        if has_byte_constants(graph, node):
            return ("weights",)
    return ("", node.op, without_tensors(reason))


def _on_limit(selection: Selection, choice: PartitionChoice) -> Iterator[Advice]:
    """Advise a higher max_delegated_partitions where that saves time."""
    if not choice.left:
        return
    every = selection.choose(limit=NO_LIMIT)
    saved = selection.costs.invoke_seconds(choice.delegated) - selection.costs.invoke_seconds(
        every.delegated
    )
    more = nodes_of(every.delegated) - nodes_of(choice.delegated)
    if more and counts(saved) and len(every.delegated) > max(len(choice.delegated), 1):
        yield Advice(
            "partitions",
            f"max_delegated_partitions={len(every.delegated)} would put "
            f"{counted(len(more), 'more node')} on the GPU, {_saving(saved)}.",
            tuple(sorted(more)),
            saved,
        )


def _on_data_movement(
    selection: Selection, compiled: Sequence[CompiledPartition]
) -> Iterator[Advice]:
    """Yield advice on kernels that only move data, if they move a large share of all data."""
    launches = [launch for each in compiled for launch in each.facts.launches]
    movers = [
        each
        for each in launches
        if each.template in _DATA_MOVEMENT or not (each.flops or each.has_epilogue)
    ]
    # The author of a loop did not choose how its iterations move rows.
    names = {node.index: node.op for node in selection.support.graph.nodes if not node.graphs}
    bytes_of, launched = Counter[str](), Counter[str]()
    for launch in movers:
        if launch.node in names:
            bytes_of[names[launch.node]] += launch.nbytes
            launched[names[launch.node]] += 1
    moved = bytes_of.total()
    if not moved or moved < _DATA_MOVEMENT_FROM * sum(launch.nbytes for launch in launches):
        return
    listed = ", ".join(
        f"{shown_ops([op] * launched[op])} ({shown_size(nbytes)})"
        for op, nbytes in bytes_of.most_common()
    )
    number = launched.total()
    subject = f"{number} of {len(launches)} kernels {'is' if number == 1 else 'are'}"
    if number == len(launches):
        subject = "The only kernel is" if number == 1 else f"All {number} kernels are"
    seconds = number * selection.costs.launch_seconds
    yield Advice(
        "moves",
        f"{subject} there to move data: {listed}. A model without them would save at least "
        f"{shown_time(seconds)} per invoke.",
        _sorted_nodes(launch.node for launch in movers if launch.node in names),
        seconds,
    )


def _on_padding(graph: Graph, compiled: Sequence[CompiledPartition]) -> Iterator[Advice]:
    """Yield advice on channel counts that are stored with much padding."""
    stored = wasted = 0
    padding, producing = Counter[tuple[int, int]](), list[int]()
    for partition in compiled:
        for value in partition.facts.allocations:
            storage = value.storage
            size = storage.dtype.size * storage.rows
            waste = size * (storage.padded_channels - storage.channels)
            stored += size * storage.padded_channels
            wasted += waste
            if waste and value.node is not None:
                padding[storage.channels, storage.padded_channels] += 1
                producing.append(value.node)
    if wasted < _PADDING_FROM * stored or not padding:
        return
    listed = ", ".join(
        f"{counted(channels, 'channel')} stored as {padded_channels} ({counted(count, 'value')})"
        for (channels, padded_channels), count in padding.most_common(4)
    )
    known = {node.index for node in graph.nodes}
    yield Advice(
        "lanes",
        f"{wasted / stored:.0%} of what kernels store is padding: {listed}. Multiples of 4 "
        "channels (8 where values are stored as half) need none.",
        _sorted_nodes(index for index in producing if index in known),
    )


def _on_precision(
    graph: Graph,
    choice: PartitionChoice,
    compiled: Sequence[CompiledPartition],
    policy: NumericPolicy,
) -> Iterator[Advice]:
    """Advise precision="fp16" if it would store many values as float16 (never integers)."""
    if policy.uses_fp16:
        return
    floats = {DType.FLOAT32, DType.FLOAT16, *(types.BYTES if policy.quantized == "float" else ())}
    delegated = nodes_of(choice.delegated)
    read = {v for node in graph.nodes if node.index in delegated for v in node.inputs}
    constants = (value for v, value in graph.values.items() if v in read and value.is_constant)
    sizes = (_FLOAT_BYTES * each.elements for each in constants if each.dtype in floats)
    stored = (value.storage for each in compiled for value in each.facts.allocations)
    values = (each.nbytes for each in stored if each.dtype is DType.FLOAT32)
    halved = {
        "weights": sum(size for size in sizes if not FP16.keeps_fp32_weights(size)),
        "values": sum(size for size in values if FP16.stores_half(size)),
    }
    if sum(halved.values()) >= _HALVED_FROM:
        listed = " and ".join(
            f"{shown_size(size)} of {what}" for what, size in halved.items() if size
        )
        yield Advice(
            "precision",
            f'precision="fp16" would store {listed} as float16, half the bytes to read. Sums stay '
            "float32.",
        )


def _sorted_nodes(indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(indices)))
