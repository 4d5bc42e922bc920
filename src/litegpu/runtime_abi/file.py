"""Reads the inputs and outputs of a model's graphs, in order, from its file.

The C interface exposes the nodes of the graphs that a WHILE runs, but not the graphs' inputs and
outputs, nor their order. The module finds the file in memory through the runtime's constants, or
opens the file.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu import files
from litegpu.errors import LitegpuError, ModelError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.graph import Node
from litegpu.runtime_abi.structs import TfLiteTensor

GraphIo = tuple[tuple[int, ...], tuple[int, ...]]
"""The inputs and the outputs of a graph, as tensor indices."""

ModelSource = str | os.PathLike[str] | bytes
"""A .tflite file or a model in a bundle: its path, see `litegpu.files`; or its bytes."""

_SUBGRAPHS, _SIGNATURES = 2, 7
_INPUTS, _OUTPUTS, _OPERATORS = 1, 2, 3
_OPERATOR_INPUTS, _OPERATOR_OUTPUTS = 1, 2
_SIGNATURE_KEY = 2


class _Allocation(ctypes.Structure):
    """The runtime's object for a file in memory, `TfLiteTensor.allocation` of its constants.

    The object is a C++ object. Since tflite-runtime 2.14, all its subclasses begin with the same
    members. litegpu verifies that the memory is a file that contains the constant before using it.
    """

    _fields_ = (
        ("vtable", ctypes.c_void_p),
        ("error_reporter", ctypes.c_void_p),
        ("kind", ctypes.c_int),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class ModelFile(Flatbuffer):
    """A model file, which is a flatbuffer of the TFLite schema and is read on demand."""

    @classmethod
    def open(cls, source: ModelSource) -> ModelFile:
        """Return the file of a model. Raises ModelError when it cannot be read.

        >>> ModelFile.open(b"").graph_io(0, ()) is None
        True
        """
        if isinstance(source, bytes):
            return cls(source)
        try:
            return cls(files.map_model(source))
        except LitegpuError:
            raise
        except (OSError, ValueError) as error:
            raise ModelError(f"The delegate's model '{source}' cannot be read: {error}.") from error

    @classmethod
    def around(cls, tensor: TfLiteTensor) -> ModelFile | None:
        """Return the model file in memory that contains a constant of the runtime.

        Returns None if the runtime does not expose the location of its file. The returned object
        must not outlive the interpreter.
        """
        if not tensor.allocation or not tensor.data:
            return None
        found = _Allocation.from_address(tensor.allocation)
        begin, size = found.base or 0, found.bytes
        if not begin <= tensor.data <= tensor.data + tensor.bytes <= begin + size:
            return None
        data = memoryview((ctypes.c_uint8 * size).from_address(begin)).cast("B")
        return cls(data) if bytes(data[4:8]) == files.MODEL_IDENTIFIER else None

    def signature_keys(self) -> tuple[str, ...]:
        """Return the keys of the model's signatures. Raises ModelError for a damaged file."""
        try:
            found = self.field(self.target(0), _SIGNATURES)
            return tuple(
                self.text(self.entry(found, index), _SIGNATURE_KEY)
                for index in range(self.count(found))
            )
        except (struct.error, IndexError) as error:
            raise ModelError(
                "The model is damaged: its signatures are outside of the file. Convert the model "
                "again."
            ) from error

    def graph_io(self, index: int, nodes: Sequence[Node]) -> GraphIo | None:
        """Return the inputs and outputs of graph `index`, which consists of these nodes.

        Returns None if the file has no such graph, which means that it is the file of another
        model.
        """
        try:
            graph = self.entry(self.field(self.target(0), _SUBGRAPHS), index)
            operators = self.field(graph, _OPERATORS)
            found = [self.entry(operators, number) for number in range(self.count(operators))]
            if len(found) != len(nodes):
                return None
            for operator, node in zip(found, nodes, strict=True):
                inputs = self.numbers(operator, _OPERATOR_INPUTS)
                if (inputs, self.numbers(operator, _OPERATOR_OUTPUTS)) != (
                    node.inputs,
                    node.outputs,
                ):
                    return None
            return self.numbers(graph, _INPUTS), self.numbers(graph, _OUTPUTS)
        except (struct.error, IndexError):
            return None
