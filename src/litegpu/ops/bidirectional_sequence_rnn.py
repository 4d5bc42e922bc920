"""BIDIRECTIONAL_SEQUENCE_RNN: a forward and a backward RNN over a sequence."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import add
from litegpu.ops.common.bidirectional import Bidirectional, Direction
from litegpu.ops.unidirectional_sequence_rnn import SequenceRnn

_AUXILIARY = 9
_DIRECTIONS = (
    Direction("Forward", range(1, 4), (4,), range(10, 11)),
    Direction("Backward", range(5, 8), (8,), range(11, 12)),
)


class BidirectionalRnn(Bidirectional):
    """Forward and backward RNNs over a sequence, with float weights."""

    def check(self, graph: Graph, node: Node) -> str:
        reason = super().check(graph, node)
        if reason or not node.params["time_major"] or not self._is_linked(node):
            return reason
        data, auxiliary = (graph.values[node.inputs[p]].shape for p in (0, _AUXILIARY))
        if data == auxiliary:
            return ""
        return (
            f"In time-major layout, the CPU reads {data[-1]} channels of an auxiliary input that "
            f"has {auxiliary[-1]}."
        )


def _backward_data(node: Node) -> int:
    """Return the input of the backward RNN: the auxiliary input if the layout is time-major."""
    return _AUXILIARY if node.params["time_major"] else 0


add(
    BidirectionalRnn(
        *("BIDIRECTIONAL_SEQUENCE_RNN", SequenceRnn(), _DIRECTIONS, _AUXILIARY, _backward_data),
        exact=SequenceRnn.exact,
    )
)
