"""UNIDIRECTIONAL_SEQUENCE_RNN: a dense layer whose previous result is an additional input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, add
from litegpu.ops.common import checks, facts
from litegpu.ops.exact.refused import Refused
from litegpu.ops.lstm_cells import GROUP_MEMORY, group_memory
from litegpu.ops.rnn_cells import rnn_nodes

_DATA, _WEIGHTS, _RECURRENT, _BIAS, _STATE = range(5)


class SequenceRnn(Op):
    """RNN over a sequence, with float weights."""

    name = "UNIDIRECTIONAL_SEQUENCE_RNN"
    max_version = 3
    rank: ClassVar[int] = 3
    exact = Refused(
        "The CPU does not compute integer RNNs.",
        of_floats=(
            "An RNN's state is quantized at each step, and its rounding depends on the last bits "
            "of the sums."
        ),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, _DATA, (_WEIGHTS, _RECURRENT))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 5, 5),
            lambda: checks.computed(graph, node, _DATA, "The input"),
            lambda: checks.constant(graph, node, _WEIGHTS, "The weights"),
            lambda: checks.constant(graph, node, _RECURRENT, "The recurrent weights"),
            lambda: checks.constant(graph, node, _BIAS, "The bias"),
            checks.activation(node),
            lambda: self._check_shapes(graph, node),
        )

    def states(self, node: Node) -> tuple[int, ...]:
        return (node.inputs[_STATE],)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        units = graph.values[node.inputs[_WEIGHTS]].shape[0]
        return ((*graph.values[node.inputs[_DATA]].shape[:-1], units),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return rnn_nodes(graph, node, new_value)

    def _check_shapes(self, graph: Graph, node: Node) -> str:
        data, weights, recurrent, bias = (graph.values[v].shape for v in node.inputs[:_STATE])
        if len(data) != self.rank:
            return f"The input must have {self.rank} dimensions, not {list(data)}."
        units = weights[0]
        if weights[1:] != data[-1:] or recurrent != (units, units) or bias != (units,):
            return (
                f"Weights of {list(weights)} and {list(recurrent)} with a bias of {list(bias)} do "
                f"not fit an RNN of {data[-1]} inputs."
            )
        needed = group_memory(units, units, False)
        if needed > GROUP_MEMORY:
            return (
                f"{units} units need {needed} bytes of work-group memory; some devices "
                f"have only {GROUP_MEMORY}."
            )
        batch = data[0 if self.rank == 2 or not node.params["time_major"] else 1]
        return checks.states(graph, node, (_STATE,), (batch, units))


add(SequenceRnn())
