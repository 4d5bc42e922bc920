"""UNIDIRECTIONAL_SEQUENCE_LSTM: operands, checks, and normalization to internal ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, add, one_of
from litegpu.ops.common import checks, facts
from litegpu.ops.exact.refused import Refused
from litegpu.ops.lstm_cells import (
    CELLS,
    GROUP_MEMORY,
    PROJECT_INPUT,
    CellAttributes,
    GateOperands,
    InputAttributes,
    group_memory,
)

_DATA, _OUTPUT_STATE, _CELL_STATE = 0, 18, 19


class _Role(NamedTuple):
    """The description of an operand, and the operand's shape as names of fields of `_Sizes`."""

    what: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Sizes:
    inputs: int
    cells: int
    outputs: int


def _roles() -> Iterator[tuple[int, _Role]]:
    gates = ("input gate", "forget gate", "cell", "output gate")
    for i, gate in enumerate(gates):
        yield 1 + i, _Role(f"The input weights of the {gate}", ("cells", "inputs"))
        yield 5 + i, _Role(f"The recurrent weights of the {gate}", ("cells", "outputs"))
        yield 12 + i, _Role(f"The bias of the {gate}", ("cells",))
        yield 20 + i, _Role(f"The normalization of the {gate}", ("cells",))
    for i, gate in enumerate((gates[0], gates[1], gates[3])):
        yield 9 + i, _Role(f"The peephole weights of the {gate}", ("cells",))
    yield 16, _Role("The projection", ("outputs", "cells"))
    yield 17, _Role("The bias of the projection", ("outputs",))


_ROLES: Mapping[int, _Role] = dict(sorted(_roles()))
_OF_INPUT_GATE = (1, 5, 9, 12, 20)


class SequenceLstm(Op):
    """Float LSTM over a sequence with optional CIFG, peepholes, projection, normalization."""

    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    max_version = 4
    accepts: ClassVar = {
        "activation": one_of(*checks.FUSED_ACTIVATIONS[1:], wrong=("none", "sign_bit"))
    }
    rank = 3
    exact = Refused(
        "The GPU does not compute integer LSTMs.",
        of_floats=(
            "The CPU computes an LSTM's logistic and tanh with vector instructions, whose last "
            "bits a GPU cannot reproduce, also with quantized weights."
        ),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, _DATA, (*range(1, 9), 16))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            _check_counts(node),
            checks.computed(graph, node, _DATA, "The input"),
            checks.activation(node),
            lambda: _check_numbers(node),
            lambda: _check_operands(graph, node),
            lambda: _check_shapes(graph, node, self.rank),
            lambda: self._check_states(graph, node),
        )

    def states(self, node: Node) -> tuple[int, ...]:
        return node.inputs[_OUTPUT_STATE], node.inputs[_CELL_STATE]

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[_DATA]].shape
        return ((*shape[:-1], _sizes(graph, node).outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[_DATA]].shape
        gates = tuple(i for i in range(4) if _operand(node, 1 + i) != ABSENT)
        normalized = _operand(node, 21) != ABSENT
        sizes = _sizes(graph, node)
        project = InputAttributes(
            tuple(node.inputs[1 + i] for i in gates),
            () if normalized else tuple(node.inputs[12 + i] for i in gates),
        )
        cells = CellAttributes(
            cells=sizes.cells,
            gates=tuple(_gate(node, i, normalized) for i in gates),
            projection=_operand(node, 16),
            projection_bias=_operand(node, 17),
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
                (node.inputs[_DATA],),
                (projected,),
                attributes=project,
            ),
            replace(node, op=CELLS, inputs=(projected, *self.states(node)), attributes=cells),
        )

    def _check_states(self, graph: Graph, node: Node) -> str:
        shape, sizes = graph.values[node.inputs[_DATA]].shape, _sizes(graph, node)
        batch = shape[0 if self.rank == 2 or not node.params["time_major"] else 1]
        return checks.first_of(
            checks.states(graph, node, (_OUTPUT_STATE,), (batch, sizes.outputs)),
            checks.states(graph, node, (_CELL_STATE,), (batch, sizes.cells)),
        )


def _operand(node: Node, position: int) -> int:
    return node.inputs[position] if position < len(node.inputs) else ABSENT


def _gate(node: Node, number: int, normalized: bool) -> GateOperands:
    """Return the operands of a gate (input, forget, cell, output), except its input weights."""
    peephole = {0: 9, 1: 10, 3: 11}.get(number)
    return GateOperands(
        recurrent=node.inputs[5 + number],
        peephole=ABSENT if peephole is None else node.inputs[peephole],
        normalization=node.inputs[20 + number] if normalized else ABSENT,
        bias=node.inputs[12 + number] if normalized else ABSENT,
    )


def _sizes(graph: Graph, node: Node) -> _Sizes:
    cells, inputs = graph.values[node.inputs[4]].shape
    return _Sizes(inputs, cells, graph.values[node.inputs[8]].shape[-1])


def _check_counts(node: Node) -> str:
    if len(node.inputs) not in (20, 24):
        return f"Expected 20 or 24 input tensors, but node has {len(node.inputs)} input(s)."
    if len(node.outputs) != 1:
        return f"Expected 1 output tensor, but node has {len(node.outputs)} output(s)."
    return ""


def _check_numbers(node: Node) -> str:
    if node.params["activation"] == "none":
        return "The activation of an LSTM must not be none: the CPU leaves its result undefined."
    for name in ("cell_clip", "proj_clip"):
        if node.params[name] < 0:
            return f"{name} must not be negative, but it is {node.params[name]}."
    if node.params.get("diagonal_recurrent_tensors"):
        return "The recurrent weights are diagonals (diagonal_recurrent_tensors = True)."
    return ""


def _check_operands(graph: Graph, node: Node) -> str:
    """Require that related operands are present together, and that all are constant."""
    present = {p for p in _ROLES if _operand(node, p) != ABSENT}
    for position, role in _ROLES.items():
        needed = _is_needed(position, present)
        if needed is True and position not in present:
            return f"{role.what} (input {position}) is missing."
        if needed is False and position in present:
            return f"{role.what} (input {position}) needs further operands, which are missing."
    return checks.first_of(*(checks.constant(graph, node, p, _ROLES[p].what) for p in present))


def _is_needed(position: int, present: set[int]) -> bool | None:
    """Return whether an operand is required (True) or forbidden (False); None: optional."""
    groups = ((range(9, 12), 10), (range(20, 24), 21))
    for members, leader in groups:
        if position in members and leader not in present:
            return False
    if position in _OF_INPUT_GATE:
        return 1 in present
    if position == 16 or position in (10, 21):
        return None
    if position == 17:
        return None if 16 in present else False
    return True


def _check_shapes(graph: Graph, node: Node, rank: int) -> str:
    shape = graph.values[node.inputs[_DATA]].shape
    if len(shape) != rank:
        return f"The input must have {rank} dimensions, not {list(shape)}."
    for position in (4, 8):
        found = graph.values[node.inputs[position]].shape
        if len(found) != 2:
            return f"{_ROLES[position].what} must have 2 dimensions, not {list(found)}."
    sizes = _sizes(graph, node)
    if shape[-1] != sizes.inputs:
        return f"The input has {shape[-1]} channels, its weights {sizes.inputs}."
    for position, role in _ROLES.items():
        if _operand(node, position) == ABSENT:
            continue
        wanted = tuple(getattr(sizes, word) for word in role.shape)
        found = graph.values[node.inputs[position]].shape
        if found != wanted:
            return f"{role.what} has the shape {list(found)} instead of {list(wanted)}."
    if _operand(node, 16) == ABSENT and sizes.outputs != sizes.cells:
        return f"Without a projection, {sizes.cells} cells cannot have {sizes.outputs} outputs."
    return _check_memory(sizes, _operand(node, 21) != ABSENT)


def _check_memory(sizes: _Sizes, normalized: bool) -> str:
    needed = group_memory(sizes.cells, sizes.outputs, normalized)
    if needed <= GROUP_MEMORY:
        return ""
    return (
        f"{sizes.cells} cells and {sizes.outputs} outputs need {needed} bytes of work-group "
        f"memory; {GROUP_MEMORY} are there on every device."
    )


add(SequenceLstm())
