"""What only a model's file says of its graphs: in which order they take inputs and give outputs.

The runtime tells a delegate the nodes of the graphs that a WHILE runs, but not which of their
tensors are inputs and outputs, nor in which order.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import ModelError
from litegpu.graph import Node

GraphIo = tuple[tuple[int, ...], tuple[int, ...]]
"""The inputs and the outputs of a graph, as tensor indices."""

ModelSource = str | os.PathLike[str] | bytes
"""A .tflite file: its path, or its bytes."""

_SUBGRAPHS = 2
_INPUTS, _OUTPUTS, _OPERATORS = 1, 2, 3
_OPERATOR_INPUTS, _OPERATOR_OUTPUTS = 1, 2


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A flatbuffer of the schema's; nothing is read of it before it is asked."""

    data: bytes | mmap.mmap

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

    def graph_io(self, index: int, nodes: Sequence[Node]) -> GraphIo | None:
        """Return the inputs and outputs of graph `index`, which has these nodes.

        None where the file has no such graph: it is of another model.
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
        """Return what an offset at a place points to."""
        return place + self._number(place)

    def _field(self, table: int, number: int) -> int:
        """Return where the vector lies that a field of a table points to, 0 without one."""
        layout = table - self._number(table, "<i")
        if 4 + 2 * number >= self._number(layout, "<H"):
            return 0
        distance = self._number(layout + 4 + 2 * number, "<H")
        return self._at(table + distance) if distance else 0

    def _at_most(self, vector: int) -> int:
        """Return the entries of a vector of 4 bytes each, which must lie in the file."""
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
