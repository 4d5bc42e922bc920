"""BIDIRECTIONAL_SEQUENCE_LSTM: a forward and a backward LSTM over a sequence."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import add
from litegpu.ops.common.bidirectional import Bidirectional, Direction
from litegpu.ops.exact.lstm import OF_FLOATS
from litegpu.ops.exact.refused import Refused
from litegpu.ops.unidirectional_sequence_lstm import SequenceLstm

_AUXILIARY = 39
_DIRECTIONS = (
    Direction("Forward", range(1, 18), (35, 36), range(40, 44)),
    Direction("Backward", range(18, 35), (37, 38), range(44, 48)),
)


class BidirectionalLstm(Bidirectional):
    """Forward and backward LSTMs over a sequence, with optional CIFG, peepholes, projection."""

    def check(self, graph: Graph, node: Node) -> str:
        reason = super().check(graph, node)
        if reason or node.params["time_major"] or not node.params["merge_outputs"]:
            return reason
        batch = graph.values[node.inputs[0]].shape[0]
        if batch == 1:
            return ""
        return (
            f"With merged outputs and {batch} sequences the CPU reads beyond the state of an "
            "LSTM, unless time is the first dimension."
        )


add(
    BidirectionalLstm(
        *("BIDIRECTIONAL_SEQUENCE_LSTM", SequenceLstm(), _DIRECTIONS, _AUXILIARY),
        backward_data=lambda node: _AUXILIARY,
        exact=Refused("The CPU has no integer kernel of this operation.", OF_FLOATS),
    )
)
