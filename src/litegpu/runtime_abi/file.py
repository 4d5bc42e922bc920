"""Reads the inputs and outputs of a model's graphs, in order, from its file.

The C interface gives a delegate the nodes of the graphs that a WHILE runs, but not which of their
tensors are inputs and outputs, nor their order. The file is found in memory through the
runtime's constants, or opened.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import ModelError
from litegpu.graph import Node
from litegpu.runtime_abi.structs import TfLiteTensor

GraphIo = tuple[tuple[int, ...], tuple[int, ...]]
"""The inputs and the outputs of a graph, as tensor indices."""

ModelSource = str | os.PathLike[str] | bytes
"""A .tflite file: its path, or its bytes."""

_IDENTIFIER = b"TFL3"
_SUBGRAPHS = 2
_INPUTS, _OUTPUTS, _OPERATORS = 1, 2, 3
_OPERATOR_INPUTS, _OPERATOR_OUTPUTS = 1, 2


class _Allocation(ctypes.Structure):
    """The memory of a file in the runtime, `TfLiteTensor.allocation` of each constant in it.

    It is a C++ object. All its kinds begin with the same members since tflite-runtime 2.14; what
    is read is used only if it is a file with the constant in it.
    """

    _fields_ = (
        ("vtable", ctypes.c_void_p),
        ("error_reporter", ctypes.c_void_p),
        ("kind", ctypes.c_int),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A flatbuffer of the schema's; it is read on demand."""

    data: bytes | mmap.mmap | memoryview

    @classmethod
    def open(cls, source: ModelSource) -> ModelFile:
        """Return a file. Raises ModelError when it cannot be read.

        >>> ModelFile.open(b"").graph_io(0, ()) is None
        True
        """
        if isinstance(source, bytes):
            return cls(source)
        try:
            with Path(source).open("rb") as file:
                return cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise ModelError(f"The delegate's model '{source}' cannot be read: {error}.") from error

    @classmethod
    def around(cls, tensor: TfLiteTensor) -> ModelFile | None:
        """Return the file that a constant of the runtime is part of, as it is in memory.

        None where the runtime does not say where its file is. The file must not outlive the
        interpreter.
        """
        if not tensor.allocation or not tensor.data:
            return None
        found = _Allocation.from_address(tensor.allocation)
        begin, size = found.base or 0, found.bytes
        if not begin <= tensor.data <= tensor.data + tensor.bytes <= begin + size:
            return None
        data = memoryview((ctypes.c_uint8 * size).from_address(begin)).cast("B")
        return cls(data) if bytes(data[4:8]) == _IDENTIFIER else None

    def graph_io(self, index: int, nodes: Sequence[Node]) -> GraphIo | None:
        """Return the inputs and outputs of graph `index`, which consists of these nodes.

        None if the file has no such graph, which means that it is another model.
        """
        try:
            graph = self._entry(self._field(self._at(0), _SUBGRAPHS), index)
            operators = self._field(graph, _OPERATORS)
            found = [self._entry(operators, number) for number in range(self._at_most(operators))]
            if len(found) != len(nodes):
                return None
            for operator, node in zip(found, nodes, strict=True):
                inputs = self._numbers(operator, _OPERATOR_INPUTS)
                if (inputs, self._numbers(operator, _OPERATOR_OUTPUTS)) != (
                    node.inputs,
                    node.outputs,
                ):
                    return None
            return self._numbers(graph, _INPUTS), self._numbers(graph, _OUTPUTS)
        except (struct.error, IndexError):
            return None

    def _number(self, place: int, kind: str = "<I") -> int:
        if place < 0:
            raise IndexError(place)
        number: int = struct.unpack_from(kind, self.data, place)[0]
        return number

    def _at(self, place: int) -> int:
        """Return the target of an offset at a place."""
        return place + self._number(place)

    def _field(self, table: int, number: int) -> int:
        """Return the address of the vector in a table's field, 0 without one."""
        layout = table - self._number(table, "<i")
        if 4 + 2 * number >= self._number(layout, "<H"):
            return 0
        distance = self._number(layout + 4 + 2 * number, "<H")
        return self._at(table + distance) if distance else 0

    def _at_most(self, vector: int) -> int:
        """Return the entries of a vector of 4-byte numbers, which must be inside the file."""
        count = self._number(vector) if vector else 0
        if count > len(self.data) // 4:
            raise IndexError(count)
        return count

    def _entry(self, vector: int, number: int) -> int:
        """Return a table of a vector of tables."""
        if not 0 <= number < self._at_most(vector):
            raise IndexError(number)
        return self._at(vector + 4 + 4 * number)

    def _numbers(self, table: int, field: int) -> tuple[int, ...]:
        vector = self._field(table, field)
        count = self._at_most(vector)
        return struct.unpack_from(f"<{count}i", self.data, vector + 4) if count else ()
