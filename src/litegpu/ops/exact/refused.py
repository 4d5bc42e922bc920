"""Ops whose quantized nodes always stay on the CPU, for all attributes and tensors."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import ABSENT, PACKED_TYPES, DType, Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common.types import BYTES

_WEIGHTS = BYTES | PACKED_TYPES


class Refused(Exact):
    """An op without an exact GPU implementation.

    `reason` explains why nodes stay on the CPU. `of_floats` is the reason for dynamic-range
    quantization, if different.
    """

    def __init__(self, reason: str, of_floats: str = "") -> None:
        self._reason, self._of_floats = reason, of_floats or reason

    def check(self, graph: Graph, node: Node) -> str:
        source, *others = (graph.values[v] for v in node.inputs if v != ABSENT)
        bytes_ = any(each.is_constant and each.dtype in _WEIGHTS for each in others)
        hybrid = source.dtype is DType.FLOAT32 and bytes_
        return self._of_floats if hybrid else self._reason

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        raise AssertionError(self._reason)
