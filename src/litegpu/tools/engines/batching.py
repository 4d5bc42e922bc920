"""Changes the batch of models whose files contain constant sizes that include the batch.

Most converters write RESHAPE nodes with constant shapes such as [1, 1001], which are valid only for
a batch of 1. This module multiplies the first size of these shapes. The module `planning` then
tests that the result of each sample is unchanged.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import MissingDependencyError, ModelError
from litegpu.zoo import objects, schema

_SHAPE_OPERANDS = {
    "RESHAPE": 1,
    "BROADCAST_TO": 1,
    "FILL": 0,
    "SLICE": 2,
    "STRIDED_SLICE": 2,
    "TRANSPOSE_CONV": 0,
}
"""The index of the operand that contains a shape, or the end of a range along each axis."""

_DAMAGED = (ArithmeticError, AttributeError, LookupError, struct.error, TypeError, ValueError)
"""The exceptions of the schema's code for unreadable files."""


def rewritten(model: bytes, own: int, batch: int) -> bytes:
    """Return a model whose batch is changed from `own` to `batch`.

    The function changes the shapes of inputs and states, and constant shapes of tensors that depend
    on the inputs.

    Raises:
        ModelError: the file has several graphs, or cannot be parsed.
    """
    try:
        found = objects.parse(model)
        if len(found.subgraphs) != 1:
            raise ModelError("The model has several graphs.")
        _Rewriting(found, own, batch).run()
        return objects.pack(found)
    except ModelError:
        raise
    except (MissingDependencyError, *_DAMAGED) as error:
        raise ModelError(f"The model's shapes cannot be changed: {error}") from error


class _Rewriting:
    """Changes the batch of one graph from `own` to `batch`."""

    def __init__(self, model: Any, own: int, batch: int) -> None:
        self._model, (self._graph,) = model, model.subgraphs
        self._own, self._batch = own, batch
        codes = {number: name for name, number in schema.members("BuiltinOperator").items()}
        self._names = [
            codes.get(max(each.builtinCode, each.deprecatedBuiltinCode), "")
            for each in model.operatorCodes
        ]

    def run(self) -> None:
        """Change all shapes that depend on the inputs."""
        tensors = self._graph.tensors
        reached = {int(each) for each in self._graph.inputs}
        states = {number for number, each in enumerate(tensors) if each.isVariable}
        for number in reached | states:
            tensors[number].shape = self._sized(np.array(tensors[number].shape))
        for operator in self._graph.operators:
            operands = [int(each) for each in operator.inputs]
            position = _SHAPE_OPERANDS.get(self._names[operator.opcodeIndex])
            name = self._names[operator.opcodeIndex]
            if not reached.isdisjoint(operands) or name == "FILL":
                if position is not None and position < len(operands):
                    operator.inputs = operands
                    operator.inputs[position] = self._resized(operands[position])
                if name == "RESHAPE" and operator.builtinOptions is not None:
                    written = operator.builtinOptions.newShape
                    if written is not None and len(written):
                        operator.builtinOptions.newShape = self._sized(np.array(written))
                reached.update(int(each) for each in operator.outputs)

    def _resized(self, number: int) -> int:
        """Return the index of a constant with the shape for the new batch, or `number`."""
        tensor = self._graph.tensors[number]
        data = objects.content(self._model.buffers[tensor.buffer])
        type_names = {each: name for name, each in schema.members("TensorType").items()}
        kind = type_names[tensor.type].lower()
        if not data or kind not in ("int32", "int64"):
            return number
        values: NDArray[Any] = np.frombuffer(data, kind)
        sized = self._sized(values)
        if values.shape != tuple(tensor.shape) or np.array_equal(sized, values):
            return number
        fresh = schema.tables().TensorT()
        fresh.name, fresh.type, fresh.shape = tensor.name, tensor.type, tensor.shape
        fresh.buffer = len(self._model.buffers)
        self._model.buffers.append(objects.buffer_of(sized.astype(kind).tobytes()))
        self._graph.tensors.append(fresh)
        return len(self._graph.tensors) - 1

    def _sized(self, shape: NDArray[Any]) -> NDArray[Any]:
        """Return a shape whose first size fits the new batch; -1 is unchanged."""
        sized = shape.copy()
        if len(shape) and shape[0] > 0 and shape[0] % self._own == 0:
            sized[0] = shape[0] // self._own * self._batch
        return sized
