"""UNIDIRECTIONAL_SEQUENCE_LSTM: operands, checks, and normalization to internal ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, add, one_of
from litegpu.ops.common import checks, facts, lstm_operands
from litegpu.ops.common.lstm_operands import (
    BIASES,
    DATA,
    INPUT_WEIGHTS,
    NORMALIZATIONS,
    PEEPHOLES,
    PROJECTION,
    PROJECTION_BIAS,
    RECURRENT_WEIGHTS,
    ROLES,
    Sizes,
    operand_of,
    sizes_of,
)
from litegpu.ops.exact.lstm import ExactLstm
from litegpu.ops.lstm_cells import (
    CELLS,
    GROUP_MEMORY,
    PROJECT_INPUT,
    CellAttributes,
    GateOperands,
    InputAttributes,
    group_memory,
)


class SequenceLstm(Op):
    """LSTM over a sequence with optional CIFG, peepholes, projection, normalization."""

    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    max_version = 4
    accepts: ClassVar = {
        "activation": one_of(*checks.FUSED_ACTIVATIONS[1:], wrong=("none", "sign_bit"))
    }
    rank = 3
    exact = ExactLstm(rank)

    def flops(self, graph: Graph, node: Node) -> int:
        products = (*INPUT_WEIGHTS, *RECURRENT_WEIGHTS, PROJECTION)
        return facts.product_by_input(graph, node, DATA, products)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            lstm_operands.check_counts(node),
            checks.computed(graph, node, DATA, "The input"),
            checks.activation(node),
            lambda: lstm_operands.check_numbers(node),
            lambda: lstm_operands.check_presence(node),
            lambda: _check_constants(graph, node),
            lambda: lstm_operands.check_shapes(graph, node, self.rank),
            lambda: _check_memory(sizes_of(graph, node), _is_normalized(node)),
            lambda: lstm_operands.check_states(graph, node, self.rank),
        )

    def states(self, node: Node) -> tuple[int, ...]:
        return lstm_operands.states_of(node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[DATA]].shape
        return ((*shape[:-1], sizes_of(graph, node).outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[DATA]].shape
        gates = lstm_operands.gates_of(node)
        normalized = _is_normalized(node)
        sizes = sizes_of(graph, node)
        project = InputAttributes(
            tuple(node.inputs[INPUT_WEIGHTS[i]] for i in gates),
            () if normalized else tuple(node.inputs[BIASES[i]] for i in gates),
        )
        cells = CellAttributes(
            cells=sizes.cells,
            gates=tuple(_gate(node, i, normalized) for i in gates),
            projection=operand_of(node, PROJECTION),
            projection_bias=operand_of(node, PROJECTION_BIAS),
            activation=node.params["activation"],
            cell_clip=node.params["cell_clip"],
            projection_clip=node.params["proj_clip"],
            time_major=bool(node.params.get("time_major", True)),
            reverse=bool(node.params.get("reverse")),
        )
        projected = new_value((*shape[:-1], project.channels(sizes.cells)))
        return (
            Node(
                node.index,
                PROJECT_INPUT,
                1,
                (node.inputs[DATA],),
                (projected,),
                attributes=project,
            ),
            replace(node, op=CELLS, inputs=(projected, *self.states(node)), attributes=cells),
        )


def _gate(node: Node, number: int, normalized: bool) -> GateOperands:
    """Return the operands of a gate (input, forget, cell, output), except its input weights."""
    return GateOperands(
        recurrent=node.inputs[RECURRENT_WEIGHTS[number]],
        peephole=node.inputs[PEEPHOLES[number]] if number in PEEPHOLES else ABSENT,
        normalization=node.inputs[NORMALIZATIONS[number]] if normalized else ABSENT,
        bias=node.inputs[BIASES[number]] if normalized else ABSENT,
    )


def _is_normalized(node: Node) -> bool:
    return operand_of(node, NORMALIZATIONS[1]) != ABSENT


def _check_constants(graph: Graph, node: Node) -> str:
    found = lstm_operands.present(node)
    return checks.first_of(*(checks.constant(graph, node, p, ROLES[p].what) for p in sorted(found)))


def _check_memory(sizes: Sizes, normalized: bool) -> str:
    needed = group_memory(sizes.cells, sizes.outputs, normalized)
    if needed <= GROUP_MEMORY:
        return ""
    return (
        f"{sizes.cells} cells and {sizes.outputs} outputs need {needed} bytes of work-group "
        f"memory; some devices have only {GROUP_MEMORY}."
    )


add(SequenceLstm())
