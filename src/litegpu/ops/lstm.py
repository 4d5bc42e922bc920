"""LSTM: one step of a sequence, by the full or the basic kernel (one matrix for all gates)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from litegpu.graph import Graph, Node
from litegpu.ops import lstm_gates
from litegpu.ops.base import NewValue, Shape, Values, add, one_of
from litegpu.ops.exact.lstm import ExactLstm
from litegpu.ops.unidirectional_sequence_lstm import SequenceLstm

_BASIC = 1
"""The kernel type of the full LSTM, the older kernel."""


class Lstm(SequenceLstm):
    """Computes one step of an LSTM, by the basic kernel or the kernel for sequences."""

    name = "LSTM"
    max_version = 4
    accepts: ClassVar = {
        **SequenceLstm.accepts,
        **dict.fromkeys(("cell_clip", "proj_clip"), Values(about="≥ 0; the basic kernel: 0")),
        "activation": Values(about="all but none; the basic kernel: tanh", wrong=("sign_bit",)),
        "kernel_type": one_of(0, _BASIC),
    }
    rank = 2
    exact = ExactLstm(rank)

    def check(self, graph: Graph, node: Node) -> str:
        if _is_basic(node):
            return lstm_gates.check(graph, node)
        return super().check(graph, node)

    def states(self, node: Node) -> tuple[int, ...]:
        return lstm_gates.states(node) if _is_basic(node) else super().states(node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return lstm_gates.infer(graph, node) if _is_basic(node) else super().infer(graph, node)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        if _is_basic(node):
            return lstm_gates.normalize(graph, node)
        return super().normalize(graph, node, new_value)


def _is_basic(node: Node) -> bool:
    return bool(node.params["kernel_type"] == _BASIC)


add(Lstm())
