"""Extracts parts of a model as models; a part's inputs are the tensors that it reads."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.graph.ir import ABSENT
from litegpu.zoo import objects, schema

Values = Mapping[int, NDArray[Any]]
"""The values of the model's tensors, by index."""


@dataclass(frozen=True)
class Cut:
    """A part of a model, as a .tflite file; tensors have the same indices as in the model."""

    content: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class CuttableModel:
    """The main graph of a model from which parts are extracted."""

    def __init__(self, content: bytes) -> None:
        """Parse the file. Raises MissingDependencyError without the required packages."""
        self._model = objects.parse(content)
        self._graph = self._model.subgraphs[0]
        self._has_data = [len(objects.content(buffer)) > 0 for buffer in self._model.buffers]
        names = {number: name for name, number in schema.members("BuiltinOperator").items()}
        self.ops = [self._op_name(node, names) for node in self._graph.operators]
        self.node_inputs = [_present(node.inputs) for node in self._graph.operators]
        self.node_outputs = [_present(node.outputs) for node in self._graph.operators]

    def _op_name(self, node: Any, names: Mapping[int, str]) -> str:
        code = self._model.operatorCodes[node.opcodeIndex]
        if code.customCode:
            return _text(code.customCode)
        return names[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def name_of(self, tensor: int) -> str:
        """Return the name of a tensor."""
        return _text(self._graph.tensors[tensor].name)

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor in the file."""
        shape = self._graph.tensors[tensor].shape
        return tuple(map(int, () if shape is None else shape))

    def range_of(self, tensor: int) -> tuple[float, float] | None:
        """Return the lowest and highest value of an 8-bit tensor's dtype; None for other dtypes."""
        found = self._graph.tensors[tensor]
        lowest = {_type("UINT8"): 0, _type("INT8"): -128}.get(found.type)
        quantized = found.quantization
        if lowest is None or quantized is None or quantized.scale is None:
            return None
        if len(quantized.scale) != 1 or len(quantized.zeroPoint) != 1:
            return None
        low = lowest - int(quantized.zeroPoint[0])
        scale = float(quantized.scale[0])
        return low * scale, (low + 255) * scale

    def custom_options(self, node: int) -> bytes:
        """Return the options of a custom operation; empty for a builtin operation."""
        options = self._graph.operators[node].customOptions
        return b"" if options is None else bytes(options)

    def attached(self, name: str) -> bytes:
        """Return the metadata with this name in the file; empty if the file has none."""
        for entry in self._model.metadata or ():
            if _text(entry.name) == name and 0 <= entry.buffer < len(self._model.buffers):
                return objects.content(self._model.buffers[entry.buffer])
        return b""

    def is_constant(self, tensor: int) -> bool:
        """Return whether the file contains the tensor's data."""
        buffer: int = self._graph.tensors[tensor].buffer
        return self._has_data[buffer]

    def read_from_outside(self, nodes: Sequence[int]) -> list[int]:
        """Return the tensors that nodes read but do not compute; `nodes` are in execution order."""
        written: set[int] = set()
        found: dict[int, None] = {}
        for node in nodes:
            for tensor in self.node_inputs[node]:
                stored = self.is_constant(tensor) or self._graph.tensors[tensor].isVariable
                if tensor not in written and not stored:
                    found[tensor] = None
            written.update(self.node_outputs[node])
        return list(found)

    def read_by_others(self, nodes: Sequence[int]) -> list[int]:
        """Return the tensors that these nodes compute and that other nodes or the user read."""
        own = set(nodes)
        others = (n for n in range(len(self.ops)) if n not in own)
        wanted = {tensor for node in others for tensor in self.node_inputs[node]}
        wanted.update(map(int, self._graph.outputs))
        return [tensor for tensor in self.written_by(nodes) if tensor in wanted]

    def written_by(self, nodes: Iterable[int]) -> list[int]:
        """Return all tensors that these nodes compute."""
        return [tensor for node in nodes for tensor in self.node_outputs[node]]

    def cut(self, nodes: Sequence[int], outputs: Sequence[int], values: Values) -> Cut:
        """Return a model of some nodes with some of their tensors as outputs.

        Tensors have the shapes of `values`, so that `values` can be the inputs.
        """
        inputs = self.read_from_outside(nodes)
        graph = copy.copy(self._graph)
        graph.operators = [self._graph.operators[node] for node in nodes]
        graph.inputs, graph.outputs = inputs, list(outputs)
        used = {*inputs, *outputs, *(t for n in nodes for t in self.node_inputs[n])}
        graph.tensors = [
            self._tensor(number, values, has_data=number in used)
            for number in range(len(self._graph.tensors))
        ]
        model = copy.copy(self._model)
        model.subgraphs = [graph, *self._model.subgraphs[1:]]
        needed = {tensor.buffer for each in model.subgraphs for tensor in each.tensors}
        empty = objects.buffer_of(b"")
        model.buffers = [
            buffer if number in needed else empty
            for number, buffer in enumerate(self._model.buffers)
        ]
        model.signatureDefs = model.metadata = model.metadataBuffer = None
        return Cut(objects.pack(model), tuple(inputs), tuple(outputs))

    def _tensor(self, number: int, values: Values, has_data: bool) -> Any:
        tensor = copy.copy(self._graph.tensors[number])
        if number in values and not self.is_constant(number):
            tensor.shape = [int(size) for size in np.shape(values[number])]
            tensor.shapeSignature = None
        if not has_data:
            tensor.buffer = 0
        return tensor


def _present(tensors: Any) -> list[int]:
    return [int(t) for t in (() if tensors is None else tensors) if int(t) != ABSENT]


def _type(name: str) -> int:
    return schema.members("TensorType")[name]


def _text(name: bytes | None) -> str:
    return "" if name is None else name.decode(errors="replace")
