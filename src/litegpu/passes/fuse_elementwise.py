"""Fuses elementwise ops, including residual additions, into the kernel before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litegpu.graph import SELF, Graph, Node, Value
from litegpu.ops.base import COPY, has
from litegpu.ops.common.functions import depends_on_position
from litegpu.ops.common.traits import Trait
from litegpu.passes.base import Editor, PassResult, label, only_consumer

MAX_OPERANDS = 8
"""Maximum number of buffers that the epilogue ops of a kernel read: devices limit the total."""
_MAX_OPS = 64
"""Maximum number of epilogue ops of a kernel: compilers are slow for thousands of ops."""


def fuse_elementwise(graph: Graph) -> PassResult:
    """Walk in execution order, so that chains of ops collapse into their first kernel."""
    edit = Editor(graph)
    consumers = graph.consumers()
    producers: dict[int, int] = {}  # value id -> position of its current producer
    for position, node in enumerate(graph.nodes):
        producers.update(dict.fromkeys(node.outputs, position))
        if node.op != COPY or not node.epilogue:
            continue
        found = []
        for reader in _orientations(graph, node):
            source = producers.get(reader.inputs[0])
            producer = None if source is None else edit.nodes[source]
            if source is not None and producer and _fits(graph, producer, reader, consumers):
                found.append((source, producer, reader))
        if not found:
            edit.declined.append(
                f"{label(node)} ({_names(node)}): no earlier kernel can include the operation"
            )
            continue
        # A product, which attention may need whole; else the later of two producers, so that the
        # earlier one is not delayed.
        source, producer, reader = max(found, key=lambda e: (e[1].op == "BATCH_MATMUL", e[0]))
        # The fused node takes the epilogue op's position, where its other operands are available.
        edit.nodes[position] = replace(
            producer,
            outputs=reader.outputs,
            epilogue=producer.epilogue + reader.epilogue,
            merged=(*producer.merged, *reader.merged, reader.index),
        )
        edit.nodes[source] = None
        edit.applied.append(f"{_names(reader)} {reader.index} into {label(producer)}")
    return edit.result()


def _fits(graph: Graph, producer: Node, reader: Node, consumers: Mapping[int, list[Node]]) -> bool:
    """Whether the kernel that computes the running value can include the epilogue op."""
    value = reader.inputs[0]
    if has(producer, Trait.HOLDS_INPUTS) or len(producer.outputs) > 1:
        return False
    if has(producer, Trait.TRANSPOSED) and depends_on_position(reader.epilogue):
        return False  # its kernels each see only a part of the result
    if only_consumer(value, consumers, graph.outputs) is None or reader.operands.count(value) > 1:
        return False
    source, result = graph.values[value], graph.values[reader.outputs[0]]
    if not _has_shape(source, result):
        return False
    if source.shape != result.shape and not has(producer, Trait.WEIGHTED):
        return False  # its attributes tell one dimension from another
    if len(producer.epilogue) + len(reader.epilogue) > _MAX_OPS:
        return False
    return _buffers(graph, producer) + _buffers(graph, reader) <= MAX_OPERANDS


def _has_shape(value: Value, result: Value) -> bool:
    """Whether a value has the shape of a result, apart from leading axes of size 1."""
    low = max(len(value.shape), len(result.shape)) <= 4
    return value.shape == result.shape or (low and value.shape4 == result.shape4)


def _buffers(graph: Graph, node: Node) -> int:
    """Return the number of buffers that a node's ops read; scalars become kernel text."""
    values = [
        graph.values[v] for epilogue_op in node.epilogue for v in epilogue_op.operands if v != SELF
    ]
    return sum(not (value.is_constant and value.elements == 1) for value in values)


def _orientations(graph: Graph, node: Node) -> list[Node]:
    """Return the node, and the node with exchanged running value and first operand."""
    first = node.epilogue[0]
    if len(first.operands) != 1 or first.operands[0] == SELF or first.extend:
        return [node]
    operand = graph.values[first.operands[0]]
    if operand.is_constant or not _has_shape(operand, graph.values[node.outputs[0]]):
        return [node]
    swapped = replace(first, operands=node.inputs, position=1 - first.position)
    return [node, replace(node, inputs=first.operands, epilogue=(swapped, *node.epilogue[1:]))]


def _names(node: Node) -> str:
    return "+".join(epilogue_op.function for epilogue_op in node.epilogue)
