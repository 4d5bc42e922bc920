"""Changes the batch size (number of rows) of a model, including constants that contain shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import ModelError
from litegpu.graph.ir import ABSENT
from litegpu.zoo import objects, schema

_SHAPES = {"RESHAPE": 1, "BROADCAST_TO": 1, "TRANSPOSE_CONV": 0, "FILL": 0}
"""Operations that have their output shape as an operand, and the index of that operand."""
_JOINS = ("CONCATENATION", "PACK", "UNPACK", "SPLIT", "SPLIT_V", "GATHER", "REVERSE_V2", "CUMSUM")
"""Operations along an axis, which must not be the axis of rows."""


def with_batch(content: bytes, rows: int) -> bytes:
    """Return a .tflite file whose inputs all have batch size `rows` (the first dimension).

    The function changes all data that depend on the batch size: tensors' shapes, constants that
    RESHAPE, SLICE and others use as shapes, and constants that are concatenated with rows::

        four = with_batch(resolve_model("model.tflite"), 4)

    Raises:
        ModelError: inputs have different numbers of rows, the model has several graphs, or an
            operation cannot process more rows, because it moves or joins rows.
        MissingDependencyError: ai-edge-litert or flatbuffers is not installed.
    """
    model = objects.parse(content)
    if len(model.subgraphs) != 1:
        raise ModelError(
            f"The model has {len(model.subgraphs)} graphs, as models with loops and branches "
            "have; the batch size of such a model cannot be changed. Convert the model with the "
            "batch size that you need."
        )
    return objects.pack(_Rows(model, rows).model)


class _Rows:
    """Changes the rows of a parsed model."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model = model
        self._graph = graph = model.subgraphs[0]
        names = {number: name for name, number in schema.members("BuiltinOperator").items()}
        self._codes = [
            names[max(code.builtinCode, code.deprecatedBuiltinCode)] for code in model.operatorCodes
        ]
        stated = {self._rows_of(int(t)) for t in graph.inputs}
        if len(stated) != 1 or not min(stated, default=0):
            raise ModelError(
                f"The inputs have {sorted(stated)} rows, and a batch needs the same number for "
                "all. Run the model without a batch."
            )
        (self._before,) = stated
        self._after = rows
        self._carriers = {int(t) for t in graph.inputs}
        for t in graph.inputs:
            self._widen(int(t))
        for number, node in enumerate(graph.operators or ()):
            self._change(number, node)

    def _rows_of(self, t: int) -> int:
        shape = self._graph.tensors[t].shape
        return int(shape[0]) if shape is not None and len(shape) else 0

    def _scaled(self, size: int) -> int:
        return size * self._after // self._before

    def _widen(self, t: int) -> None:
        """Set a tensor's number of rows to the new batch size."""
        tensor = self._graph.tensors[t]
        for name in ("shape", "shapeSignature"):
            sizes = getattr(tensor, name)
            if sizes is not None and len(sizes) and sizes[0] > 0:
                setattr(tensor, name, [self._scaled(int(sizes[0])), *map(int, sizes[1:])])

    def _change(self, number: int, node: Any) -> None:
        """Change an operation so that it processes all rows, if it depends on the inputs."""
        inputs, outputs = _numbers(node.inputs), _numbers(node.outputs)
        reached = [t in self._carriers for t in inputs]
        if not any(reached):
            return
        op = self._codes[node.opcodeIndex]
        for t in outputs:
            if not self._rows_of(t) or self._rows_of(t) % self._before:
                raise self._refused(
                    number, op, f"computes {self._shape_of(t)}, without the batch dimension"
                )
        for t in inputs:
            if t != ABSENT and self._graph.tensors[t].isVariable and t not in self._carriers:
                self._carriers.add(t)  # one state per row
                self._widen(t)
        self._check_axes(number, op, node)
        self._change_shapes(number, op, node)
        for place, t in enumerate(inputs):
            if not reached[place] and t != ABSENT and op in ("CONCATENATION", "PACK"):
                self._repeat(number, node, place)
        for t in outputs:
            self._carriers.add(t)
            self._widen(t)

    def _check_axes(self, number: int, op: str, node: Any) -> None:
        options, operands = node.builtinOptions, _numbers(node.inputs)
        if op == "TRANSPOSE" and (order := self._constant(operands[1])) is not None and order[0]:
            raise self._refused(number, op, f"moves the batch dimension, by {order.tolist()}")
        if op not in _JOINS:
            return
        rank = len(self._graph.tensors[max(t for t in operands if t in self._carriers)].shape)
        axis = getattr(options, "axis", None)
        if axis is None:
            place = {"SPLIT": 0, "SPLIT_V": 2}.get(op, 1)
            found = self._constant(operands[place])
            axis = 0 if found is None or op == "GATHER" else int(found.reshape(-1)[0])
        if axis % rank == 0:
            raise self._refused(number, op, "works along the batch dimension")

    def _change_shapes(self, number: int, op: str, node: Any) -> None:
        """Change the operands of an operation that are constant shapes."""
        operands, options = _numbers(node.inputs), node.builtinOptions
        if op == "RESHAPE" and options is not None and options.newShape is not None:
            shape = [int(size) for size in options.newShape]
            if shape and shape[0] > 0:
                options.newShape = [self._scaled(shape[0]), *shape[1:]]
        if op in _SHAPES and len(operands) > _SHAPES[op]:
            self._scale_first(node, _SHAPES[op])
        if op == "SLICE":
            begin = self._constant(operands[1])
            if begin is None or begin[0]:
                raise self._refused(number, op, "takes some of them")
            self._scale_first(node, 2)
        if op == "STRIDED_SLICE":
            begin, step = (self._constant(operands[place]) for place in (1, 3))
            from_first = begin is not None and (not begin[0] or options.beginMask & 1)
            each = step is not None and step[0] == 1
            if not (from_first and each) or options.shrinkAxisMask & 1:
                raise self._refused(number, op, "takes some of them")
            self._scale_first(node, 2)

    def _scale_first(self, node: Any, place: int) -> None:
        """Scale the first dimension of an operand that is a constant shape."""
        values = self._constant(int(node.inputs[place]))
        if values is not None and values.size and values.reshape(-1)[0] > 0:
            changed = values.copy()
            changed.reshape(-1)[0] = self._scaled(int(changed.reshape(-1)[0]))
            self._replace(node, place, changed.tobytes(), None)

    def _repeat(self, number: int, node: Any, place: int) -> None:
        """Repeat a constant operand for each row."""
        t = int(node.inputs[place])
        data = self._data(t)
        one = data[: len(data) // self._before]
        if not data or one * self._before != data:
            raise self._refused(number, "CONCATENATION", "concatenates along the batch dimension")
        tensor = self._graph.tensors[t]
        shape = [self._scaled(int(tensor.shape[0])), *map(int, tensor.shape[1:])]
        self._replace(node, place, one * self._after, shape)

    def _replace(self, node: Any, place: int, data: bytes, shape: Sequence[int] | None) -> None:
        """Give an operation a separate constant, because others may share the current constant."""
        tables = schema.tables()
        old = self._graph.tensors[int(node.inputs[place])]
        new = tables.TensorT()
        vars(new).update(vars(old))
        new.shape = old.shape if shape is None else list(shape)
        new.shapeSignature = None
        new.buffer = len(self.model.buffers)
        self.model.buffers.append(objects.buffer_of(data))
        self._graph.tensors.append(new)
        operands = _numbers(node.inputs)
        operands[place] = len(self._graph.tensors) - 1
        node.inputs = operands

    def _data(self, t: int) -> bytes:
        return objects.content(self.model.buffers[self._graph.tensors[t].buffer])

    def _constant(self, t: int) -> npt.NDArray[Any] | None:
        """Return the integers of a constant; None for a computed tensor."""
        data = self._data(t)
        kinds = {number: name for name, number in schema.members("TensorType").items()}
        name = kinds[self._graph.tensors[t].type].lower()
        return np.frombuffer(data, name) if data and name in ("int32", "int64") else None

    def _shape_of(self, t: int) -> list[int]:
        return _numbers(self._graph.tensors[t].shape)

    def _refused(self, number: int, op: str, why: str) -> ModelError:
        return ModelError(
            f"Node {number}, {op}, does not support another batch size: it {why}. Convert the "
            "model with the batch that you need."
        )


def _numbers(found: Any) -> list[int]:
    """Return a list of numbers, which a file may omit."""
    return [] if found is None else [int(each) for each in found]
