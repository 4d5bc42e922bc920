"""SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION of bytes, over the last axis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.exact import logarithms, numbers
from litegpu.ops.exact.c_library import expf
from litegpu.ops.quantized_softmax import QUANTIZED_SOFTMAX, QuantizedSoftmaxAttributes


class ExactRows(Exact):
    """Rows in proportion to their whole; `geometry` checks the operands as for floats."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return (
            self._geometry(graph, node)
            or numbers.check_io(graph, node)
            or numbers.check_activation(node, ("none",))
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        result = graph.values[node.outputs[0]]
        zero = self._zero(numbers.zero_point(result), result.dtype)
        limits = numbers.LIMITS[result.dtype]
        epilogue = (*numbers.shifted(new_value, zero), numbers.clamp(limits))
        product = Node(
            node.index,
            QUANTIZED_SOFTMAX,
            1,
            node.inputs,
            node.outputs,
            attributes=self._attributes(graph, node),
            epilogue=epilogue,
        )
        return (product,)

    @abstractmethod
    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        """Return what is made of the rows of a checked node."""

    @abstractmethod
    def _zero(self, zero: int, dtype: DType) -> int:
        """Return what the CPU stores 0 as in a result, given its zero point."""


class ExactSoftmax(ExactRows):
    """SOFTMAX: by a table of exponentials, in float32."""

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        table = _exponentials(source, node.params.get("beta", 1.0))
        signed = source.dtype is DType.INT8
        return QuantizedSoftmaxAttributes("softmax", signed, 0, numbers.scale(result), table)

    def _zero(self, zero: int, dtype: DType) -> int:
        return 0 if dtype is DType.UINT8 else zero


class ExactLogSoftmax(ExactRows):
    """LOG_SOFTMAX: the logarithm of such a sum, to the last bit; the scale is 1/16."""

    def check(self, graph: Graph, node: Node) -> str:
        return super().check(graph, node) or _another_logarithm()

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source = graph.values[node.inputs[0]]
        signed, table = source.dtype is DType.INT8, _exponentials(source, 1.0)
        return QuantizedSoftmaxAttributes("log_softmax", signed, 0, numbers.scale(source), table)

    def _zero(self, zero: int, dtype: DType) -> int:
        return zero


class ExactL2Normalization(ExactRows):
    """L2_NORMALIZATION: in integers, whose scale is 1/128."""

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source = graph.values[node.inputs[0]]
        zero = numbers.zero_point(source)
        return QuantizedSoftmaxAttributes("l2_normalization", source.dtype is DType.INT8, zero)

    def _zero(self, zero: int, dtype: DType) -> int:
        return 128 if dtype is DType.UINT8 else 0


def _exponentials(source: Value, beta: float) -> tuple[float, ...]:
    """Return the exponentials of what 0 to 255 below the maximum stand for."""
    factor = np.float32(-numbers.scale(source)) * np.float32(beta)
    found: list[float] = expf(factor * np.arange(256, dtype=np.float32)).tolist()
    return tuple(found)


def _another_logarithm() -> str:
    """Return a reason if the logarithms of this machine's CPU have other last bits."""
    if logarithms.known():
        return ""
    return (
        "This machine's C library has another logf than glibc, whose last bit is known; the CPU "
        "rounds by it."
    )
