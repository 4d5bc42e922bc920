"""The operands of LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM: roles, shapes and checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.common import checks

GATES = ("input gate", "forget gate", "cell", "output gate")
"""The gates in the order of their operands."""
DATA, OUTPUT_STATE, CELL_STATE = 0, 18, 19
INPUT_WEIGHTS, RECURRENT_WEIGHTS, BIASES, NORMALIZATIONS = (
    range(first, first + len(GATES)) for first in (1, 5, 12, 20)
)
"""The positions of the operands of each gate."""
PEEPHOLES = {0: 9, 1: 10, 3: 11}
"""For the number of each gate but the cell the position of its peephole weights."""
PROJECTION, PROJECTION_BIAS = 16, 17


class Role(NamedTuple):
    """The description of an operand, and the operand's shape as names of fields of `Sizes`."""

    what: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of input channels, cells and output channels."""

    inputs: int
    cells: int
    outputs: int


def _roles() -> Iterator[tuple[int, Role]]:
    for i, gate in enumerate(GATES):
        yield INPUT_WEIGHTS[i], Role(f"The input weights of the {gate}", ("cells", "inputs"))
        yield (
            RECURRENT_WEIGHTS[i],
            Role(f"The recurrent weights of the {gate}", ("cells", "outputs")),
        )
        yield BIASES[i], Role(f"The bias of the {gate}", ("cells",))
        yield NORMALIZATIONS[i], Role(f"The normalization of the {gate}", ("cells",))
    for i, position in PEEPHOLES.items():
        yield position, Role(f"The peephole weights of the {GATES[i]}", ("cells",))
    yield PROJECTION, Role("The projection", ("outputs", "cells"))
    yield PROJECTION_BIAS, Role("The bias of the projection", ("outputs",))


ROLES: Mapping[int, Role] = dict(sorted(_roles()))
_OF_INPUT_GATE = (
    *(each[0] for each in (INPUT_WEIGHTS, RECURRENT_WEIGHTS, BIASES, NORMALIZATIONS)),
    PEEPHOLES[0],
)


def operand_of(node: Node, position: int) -> int:
    """Return the value id of an operand, or ABSENT."""
    return node.inputs[position] if position < len(node.inputs) else ABSENT


def gates_of(node: Node) -> tuple[int, ...]:
    """Return the numbers of the gates that a node has; an input gate may be coupled."""
    return tuple(k for k, p in enumerate(INPUT_WEIGHTS) if operand_of(node, p) != ABSENT)


def sizes_of(graph: Graph, node: Node) -> Sizes:
    """Return the sizes of a checked node."""
    cells, inputs = graph.values[node.inputs[INPUT_WEIGHTS[-1]]].shape
    return Sizes(inputs, cells, graph.values[node.inputs[RECURRENT_WEIGHTS[-1]]].shape[-1])


def check_counts(node: Node) -> str:
    """Require the numbers of inputs and outputs that the CPU accepts."""
    if len(node.inputs) not in (20, 24):
        return f"Expected 20 or 24 input tensors, but node has {len(node.inputs)} input(s)."
    if len(node.outputs) != 1:
        return f"Expected 1 output tensor, but node has {len(node.outputs)} output(s)."
    return ""


def check_numbers(node: Node) -> str:
    """Require an activation, limits that are not negative, and full matrices."""
    if node.params["activation"] == "none":
        return "The activation of an LSTM must not be none: the CPU leaves its result undefined."
    for name in ("cell_clip", "proj_clip"):
        if node.params[name] < 0:
            return f"{name} must not be negative, but it is {node.params[name]}."
    if node.params.get("diagonal_recurrent_tensors"):
        return "The recurrent weights are diagonals (diagonal_recurrent_tensors = True)."
    return ""


def present(node: Node) -> set[int]:
    """Return the positions of the operands that a node has, without data and states."""
    return {p for p in ROLES if operand_of(node, p) != ABSENT}


def check_presence(node: Node) -> str:
    """Require that related operands are present together."""
    found = present(node)
    for position, role in ROLES.items():
        needed = _is_needed(position, found)
        if needed is True and position not in found:
            return f"{role.what} (input {position}) is missing."
        if needed is False and position in found:
            return f"{role.what} (input {position}) needs further operands, which are missing."
    return ""


def _is_needed(position: int, present: set[int]) -> bool | None:
    """Return whether an operand is required (True) or forbidden (False); None: optional."""
    groups = ((PEEPHOLES.values(), PEEPHOLES[1]), (NORMALIZATIONS, NORMALIZATIONS[1]))
    for members, leader in groups:
        if position in members and leader not in present:
            return False
    if position in _OF_INPUT_GATE:
        return INPUT_WEIGHTS[0] in present
    if position in (PROJECTION, PEEPHOLES[1], NORMALIZATIONS[1]):
        return None
    if position == PROJECTION_BIAS:
        return None if PROJECTION in present else False
    return True


def check_shapes(graph: Graph, node: Node, rank: int) -> str:
    """Require an input of `rank` dimensions, and operands of the shapes of their roles."""
    shape = graph.values[node.inputs[DATA]].shape
    if len(shape) != rank:
        return f"The input must have {rank} dimensions, not {list(shape)}."
    for position in (INPUT_WEIGHTS[-1], RECURRENT_WEIGHTS[-1]):
        found = graph.values[node.inputs[position]].shape
        if len(found) != 2:
            return f"{ROLES[position].what} must have 2 dimensions, not {list(found)}."
    sizes = sizes_of(graph, node)
    if shape[-1] != sizes.inputs:
        return f"The input has {shape[-1]} channels, its weights {sizes.inputs}."
    for position, role in ROLES.items():
        if operand_of(node, position) == ABSENT:
            continue
        wanted = tuple(getattr(sizes, word) for word in role.shape)
        found = graph.values[node.inputs[position]].shape
        if found != wanted:
            return f"{role.what} has the shape {list(found)} instead of {list(wanted)}."
    if operand_of(node, PROJECTION) == ABSENT and sizes.outputs != sizes.cells:
        return f"Without a projection, {sizes.cells} cells cannot have {sizes.outputs} outputs."
    return ""


def states_of(node: Node) -> tuple[int, ...]:
    """Return the output state and the cell state (value ids), which the node updates."""
    return node.inputs[OUTPUT_STATE], node.inputs[CELL_STATE]


def check_states(graph: Graph, node: Node, rank: int) -> str:
    """Require states of the shapes of a node whose operands were checked."""
    shape, sizes = graph.values[node.inputs[DATA]].shape, sizes_of(graph, node)
    batch = shape[0 if rank == 2 or not node.params["time_major"] else 1]
    return checks.first_of(
        checks.states(graph, node, (OUTPUT_STATE,), (batch, sizes.outputs)),
        checks.states(graph, node, (CELL_STATE,), (batch, sizes.cells)),
    )
