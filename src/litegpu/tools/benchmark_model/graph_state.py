"""Reads the current graphs of an interpreter: tensors, nodes, and each node's delegate."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litegpu.zoo import objects, schema

CONSTANT, PERSISTENT, ARENA, DYNAMIC = (
    *("kTfLiteMmapRo", "kTfLiteArenaRwPersistent", "kTfLiteArenaRw"),
    "kTfLiteDynamic",
)
"""The allocation types of tensors, with the runtime's names."""


@dataclass(frozen=True)
class TensorState:
    """A tensor; `kind` is the name of its dtype in the file format."""

    index: int
    name: str
    kind: str
    shape: tuple[int, ...]
    bytes: int
    allocation: str


@dataclass(frozen=True)
class NodeState:
    """A node of the model, or a delegate kernel.

    For a delegate kernel, `code` is None, and `replaces` lists the nodes that the kernel runs.

    For a node of the model, `code` is the builtin op code (32 for custom ops), and `delegated_to`
    is the delegate kernel that runs the node.
    """

    index: int
    name: str
    code: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    delegated_to: int | None = None
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphState:
    """One graph of a model; `plan` lists the nodes in execution order."""

    index: int
    name: str
    tensors: tuple[TensorState, ...]
    nodes: tuple[NodeState, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    plan: tuple[int, ...]

    def size(self, tensors: Iterable[int]) -> int:
        """Return the total size of some tensors in bytes; index -1 means no tensor."""
        return sum(self.tensors[each].bytes for each in tensors if 0 <= each < len(self.tensors))


def read_state(
    target: Any, model: bytes, kernels: Mapping[tuple[int, ...], str], other: str
) -> list[GraphState]:
    """Return all graphs of an interpreter.

    The runtime's Python API lists only the nodes of the first graph, including delegate kernels.
    The nodes of other subgraphs and the allocation types of tensors are read from the model.

    Args:
        target: the interpreter, with allocated tensors.
        model: the model's .tflite file.
        kernels: names of delegate kernels by the nodes that the kernels run.
        other: the name of all other delegate kernels.

    Raises:
        MissingDependencyError: a package for reading files is not installed.
    """
    root = objects.parse(model)
    found = []
    for index, graph in enumerate(root.subgraphs):
        tensors = _tensors(target, root, graph, index)
        nodes = _file_nodes(root, graph)
        if index == 0:
            nodes = _with_kernels(nodes, target._get_ops_details(), kernels, other)
        name = graph.name.decode() if graph.name else ""
        ends = _ints(graph.inputs), _ints(graph.outputs)
        found.append(GraphState(index, name, tensors, nodes, *ends, execution_plan(nodes)))
    return found


def _tensors(target: Any, root: Any, graph: Any, index: int) -> tuple[TensorState, ...]:
    names = _names("TensorType")
    found = []
    for position, tensor in enumerate(graph.tensors):
        content = objects.content(root.buffers[tensor.buffer])
        shape = _ints(tensor.shape)
        with contextlib.suppress(ValueError):  # the runtime has no information on it
            shape = _ints(target._get_tensor_details(position, index)["shape"])
        kind = names[tensor.type]
        size = len(content) or _bytes(kind, shape)
        found.append(
            TensorState(
                *(position, tensor.name.decode() if tensor.name else "", kind, shape, size),
                _allocation(tensor, kind, content),
            )
        )
    return tuple(found)


def _allocation(tensor: Any, kind: str, content: bytes) -> str:
    if content:
        return CONSTANT
    if tensor.isVariable:
        return PERSISTENT
    return DYNAMIC if kind in ("STRING", "RESOURCE", "VARIANT") else ARENA


_BITS = {"BOOL": 8, "INT4": 4, "UINT4": 4, "INT2": 2, "COMPLEX64": 64, "COMPLEX128": 128}


def _bytes(kind: str, shape: Sequence[int]) -> int:
    """Return the size of a tensor in bytes; 0 if its elements have no fixed size."""
    digits = "".join(char for char in kind if char.isdigit())
    bits = _BITS.get(kind, int(digits or 0))
    return (int(np.prod([max(size, 0) for size in shape], dtype=np.int64)) * bits + 7) // 8


def _names(enumeration: str) -> dict[int, str]:
    members = vars(getattr(schema.tables(), enumeration))
    return {value: name for name, value in members.items() if isinstance(value, int)}


def _file_nodes(root: Any, graph: Any) -> tuple[NodeState, ...]:
    names = _names("BuiltinOperator")
    found = []
    for index, node in enumerate(graph.operators or ()):
        code = root.operatorCodes[node.opcodeIndex]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        name = code.customCode.decode() if code.customCode else names.get(number, str(number))
        found.append(NodeState(index, name, number, _ints(node.inputs), _ints(node.outputs)))
    return tuple(found)


def _ints(values: Iterable[int] | None) -> tuple[int, ...]:
    return () if values is None else tuple(map(int, values))


# Delegates


def covered_by(kernel: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the nodes that a delegate kernel replaces: all nodes between its inputs and outputs.

    Args:
        kernel: the runtime's details of the delegate kernel: `inputs` and `outputs`.
        ops: the runtime's details of all nodes, with `index` and `op_name`.
    """
    produced_by = {
        int(tensor): int(op["index"])
        for op in ops
        if op["op_name"] != "DELEGATE"
        for tensor in op["outputs"]
    }
    bounds = set(map(int, kernel["inputs"]))
    covered: set[int] = set()
    waiting = list(map(int, kernel["outputs"]))
    while waiting:
        tensor = waiting.pop()
        node = produced_by.get(tensor)
        if tensor not in bounds and node is not None and node not in covered:
            covered.add(node)
            waiting += [int(each) for each in ops[node]["inputs"]]
    return covered


def _with_kernels(
    nodes: Sequence[NodeState],
    ops: Sequence[Mapping[str, Any]],
    kernels: Mapping[tuple[int, ...], str],
    other: str,
) -> tuple[NodeState, ...]:
    """Return the nodes of a file and the nodes that delegates have added."""
    found = {node.index: node for node in nodes}
    for op in ops[len(nodes) :]:
        index, replaced = int(op["index"]), tuple(sorted(covered_by(op, ops)))
        name = kernels.get(replaced, other)
        ends = _ints(op["inputs"]), _ints(op["outputs"])
        found[index] = NodeState(index, name, None, ends[0], ends[1], replaces=replaced)
        for each in replaced:
            found[each] = replace(found[each], delegated_to=index)
    return tuple(found.values())


def execution_plan(nodes: Sequence[NodeState]) -> tuple[int, ...]:
    """Return the nodes that run, in file order; a node follows the producers of its inputs."""
    running = {node.index: node for node in nodes if node.delegated_to is None}
    producer = {tensor: node.index for node in running.values() for tensor in node.outputs}
    waits = {
        index: {producer[t] for t in node.inputs if producer.get(t, index) != index}
        for index, node in running.items()
    }
    users: dict[int, list[int]] = {}
    for index, producers in waits.items():
        for each in producers:
            users.setdefault(each, []).append(index)
    position = {index: min((index, *node.replaces)) for index, node in running.items()}
    ready = [(position[index], index) for index, producers in waits.items() if not producers]
    heapq.heapify(ready)
    plan = []
    while ready:
        _, index = heapq.heappop(ready)
        plan.append(index)
        for user in users.get(index, ()):
            waits[user].discard(index)
            if not waits[user]:
                heapq.heappush(ready, (position[user], user))
    return tuple(plan)
