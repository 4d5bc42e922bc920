"""Reads a .tflite model into litegpu's `Graph`, its inputs and outputs included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litegpu.graph import Graph
from litegpu.ops.common.support import check_support
from litegpu.runtime_abi.bridge import NativeDelegate
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.runtime_abi.reader import read_graph


class _Reader:
    """A delegate that keeps a copy of the graph and takes no node."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.error: BaseException | None = None
        self._native = NativeDelegate(self)

    def _get_native_delegate_pointer(self) -> int:
        return self._native.address

    def _apply(self, context: int, _preview: object) -> Sequence[int]:
        graph = check_support(read_graph(context)).graph
        values = {
            v: value if value.data is None else replace(value, data=value.data.copy())
            for v, value in graph.values.items()
        }
        self.graph = replace(graph, values=values)
        return []

    def _take_kernel(self, context: int, subset: object) -> Any:
        raise NotImplementedError("It takes no node.")

    def _release_untaken(self, _context: int) -> None:
        """Nothing was made."""

    def _fail(self, error: BaseException) -> None:
        self.error = error

    def _prepared(self, _kernel: object, _error: object) -> None:
        """Nothing was prepared."""


def read_model(content: bytes) -> Graph:
    """Return the graph of a model; shapes are inferred where litegpu knows the operation.

    The runtime may lack kernels for the model. Raises ModelError when it refuses the file,
    RuntimeError when the graph cannot be read.
    """
    reader = _Reader()
    target = interpreter(content, reader, builtin_kernels=True, allocate=False)
    if reader.graph is None or reader.error is not None:
        raise RuntimeError(f"The graph of the model could not be read: {reader.error}")
    return replace(
        reader.graph,
        inputs=tuple(detail["index"] for detail in target.get_input_details()),
        outputs=tuple(detail["index"] for detail in target.get_output_details()),
    )
