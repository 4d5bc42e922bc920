"""Reads the parts of a model's file that a drawing shows: nodes, tensors and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litegpu.ops.common import flexbuffers
from litegpu.zoo import objects, schema

_ABSENT = -1
_MAX_ITEMS = 8
"""Maximum number of shown items of a list."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in a model's file."""

    name: str
    shape: tuple[int, ...]
    type: str
    constant: bool
    quantization: str = ""


@dataclass(frozen=True)
class Node:
    """A node with its options and the indices of its tensors."""

    index: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelGraph:
    """A graph of a model; `name` is the graph's name in Model Explorer."""

    name: str
    nodes: Sequence[Node]
    tensors: Sequence[Tensor]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def producers(self) -> dict[int, int]:
        """Return the node that computes each tensor."""
        return {tensor: node.index for node in self.nodes for tensor in node.outputs}


def read_graphs(content: bytes) -> list[ModelGraph]:
    """Return all graphs of a .tflite file, the main one first.

    Raises:
        MissingDependencyError: a package for reading models is not installed.
    """
    model = objects.parse(content)
    keys = {each.subgraphIndex: _text(each.signatureKey) for each in model.signatureDefs or ()}
    graphs = enumerate(model.subgraphs)
    return [_graph(model, graph, _name(n, graph, keys.get(n, ""))) for n, graph in graphs]


def _name(number: int, graph: Any, signature: str) -> str:
    """Return the graph's name, else the name of its signature, else a name with its index."""
    return _text(graph.name) or signature or (f"subgraph_{number}" if number else "main")


def _graph(model: Any, graph: Any, name: str) -> ModelGraph:
    ops = {number: op for op, number in schema.members("BuiltinOperator").items()}
    types = {number: each.lower() for each, number in schema.members("TensorType").items()}
    has_data = [len(objects.content(buffer)) > 0 for buffer in model.buffers]
    return ModelGraph(
        name,
        [_node(index, each, model, ops) for index, each in enumerate(_all(graph.operators))],
        [_tensor(each, has_data, types) for each in _all(graph.tensors)],
        _numbers(graph.inputs),
        _numbers(graph.outputs),
    )


def _node(index: int, node: Any, model: Any, ops: Mapping[int, str]) -> Node:
    code = model.operatorCodes[node.opcodeIndex]
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    op = _text(code.customCode) or ops.get(number, f"op code {number}")
    options = dict(schema.options_of(node.builtinOptions))
    options |= dict(schema.options_of(node.builtinOptions2))
    options |= _custom_options(node.customOptions)
    shown = {name: _shown(value) for name, value in options.items()}
    return Node(index, op, _numbers(node.inputs), _numbers(node.outputs), shown)


def _custom_options(content: Any) -> Mapping[str, Any]:
    """Return the options of a custom op, or their size if the options are not a map."""
    given = bytes(bytearray(_all(content)))
    try:
        return flexbuffers.read_map(given) if given else {}
    except ValueError:
        return {"custom_options": f"{len(given)} bytes"}


def _tensor(tensor: Any, has_data: Sequence[bool], types: Mapping[int, str]) -> Tensor:
    shape = tensor.shapeSignature
    if shape is None or not len(shape):
        shape = tensor.shape
    return Tensor(
        _text(tensor.name),
        tuple(int(size) for size in _all(shape)),
        types.get(tensor.type, str(tensor.type)),
        has_data[tensor.buffer] if tensor.buffer < len(has_data) else False,
        _quantization(tensor.quantization),
    )


def _quantization(found: Any) -> str:
    if found is None or found.scale is None or not len(found.scale):
        return ""
    if len(found.scale) > 1:
        return f"{len(found.scale)} scales along dimension {found.quantizedDimension}"
    zero = found.zeroPoint[0] if found.zeroPoint is not None and len(found.zeroPoint) else 0
    return f"scale {found.scale[0]:g}, zero point {zero}"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    if isinstance(value, list | tuple | np.ndarray):
        shown = ", ".join(_shown(item) for item in value[:_MAX_ITEMS])
        return f"[{shown}{', …' if len(value) > _MAX_ITEMS else ''}]"
    return str(value)


def _all(items: Iterable[Any] | None) -> Iterable[Any]:
    return () if items is None else items


def _numbers(items: Any) -> tuple[int, ...]:
    """Return the indices of existing tensors, without -1."""
    return tuple(int(each) for each in _all(items) if int(each) != _ABSENT)


def _text(name: bytes | None) -> str:
    return "" if name is None else name.decode(errors="replace")
