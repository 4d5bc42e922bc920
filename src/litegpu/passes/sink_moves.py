"""Moves TRANSPOSE and its kin below element-wise steps, towards a move that undoes them.

So a network whose channels come first, with each convolution between two TRANSPOSEs, keeps only
those at its ends: `merge_moves` takes the pairs away, and the steps fuse with the convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from litegpu.graph import SELF, Graph, Node, Stage
from litegpu.ops.base import COPY
from litegpu.ops.move import MOVE, MoveAttributes
from litegpu.ops.shuffle import Shuffle, keeps_order, shuffle_of, then
from litegpu.passes.base import Editor, PassResult, label

_FURTHEST = 64
"""Steps that are looked through for a move that undoes another."""


def sink_moves(graph: Graph) -> PassResult:
    """Walk in execution order, so that a move sinks through chains of steps."""
    edit = Editor(graph)
    sinker = _Sinker(edit)
    for place, node in enumerate(graph.nodes):
        if node.op == COPY and node.stages:
            sinker.visit(place, node)
        sinker.makers.update(dict.fromkeys(node.outputs, place))
    return edit.result()


@dataclass
class _Sinker:
    edit: Editor
    makers: dict[int, int] = field(default_factory=dict)
    """The place of the node that makes each value."""

    def __post_init__(self) -> None:
        self.consumers = self.edit.graph.consumers()
        # Values that are added belong to it as well.
        self.graph = replace(self.edit.graph, values=self.edit.values)

    def visit(self, place: int, node: Node) -> None:
        """Exchange steps and the move before them, if something behind undoes the move."""
        move, values = self._move(node.inputs[0]), self.graph.values
        if move is None or not self._undone(node, move):
            return
        stages = [self._moved_back(stage, move) for stage in node.stages]
        found = [stage for stage in stages if stage is not None]
        if len(found) < len(stages):
            self.edit.declined.append(
                f"{label(move)} below {label(node)}: an operand is moved otherwise"
            )
            return
        shape = values[move.inputs[0]].shape
        made = self.edit.new_value(values[node.outputs[0]], shape=shape)
        steps = replace(node, inputs=move.inputs, outputs=(made,), stages=tuple(found))
        self.edit.put_ahead(place, steps)
        self.edit.nodes[place] = replace(move, inputs=(made,), outputs=node.outputs)
        passed = {self.makers[v] for v in node.operands if v in self.makers}
        self.edit.drop_unread(self.edit.graph.nodes[at] for at in sorted(passed, reverse=True))
        self.edit.applied.append(f"{label(move)} below {label(node)}")

    def _move(self, value: int) -> Node | None:
        """Return the move that makes a value, if it only reorders."""
        place = self.makers.get(value)
        node = None if place is None else self.edit.nodes[place]
        if node is None or node.op != MOVE or shuffle_of(self.graph, node) is None:
            return None
        return node

    def _undone(self, node: Node, move: Node) -> bool:
        """Whether steps lead from a node's result to a move that brings back the order."""
        order = shuffle_of(self.graph, move) or ()
        waiting, seen = [node], 0
        while waiting and seen < _FURTHEST:
            step, seen = waiting.pop(), seen + 1
            (made,) = step.outputs
            if self.graph.values[step.inputs[0]].shape != self.graph.values[made].shape:
                continue
            for reader in self.consumers.get(made, []):
                if self._undoes(reader, order):
                    return True
                if reader.op == COPY and reader.stages:
                    waiting.append(reader)
        return False

    def _undoes(self, node: Node, order: Shuffle) -> bool:
        own = shuffle_of(self.graph, node) if node.op == MOVE else None
        both = None if own is None else then(order, own)
        return both is not None and keeps_order(both)

    def _moved_back(self, stage: Stage, move: Node) -> Stage | None:
        """Return a step with its operands as they are before the move, if there are such."""
        operands = [self._operand(v, move) for v in stage.operands]
        known = tuple(v for v in operands if v is not None)
        return replace(stage, operands=known) if len(known) == len(operands) else None

    def _operand(self, value: int, move: Node) -> int | None:
        values = self.graph.values
        if value == SELF or (values[value].is_constant and values[value].elements == 1):
            return value
        if values[value].is_constant:
            return self._constant(value, move)
        other = self._move(value)
        if other is None or shuffle_of(self.graph, other) != shuffle_of(self.graph, move):
            return None
        alike = values[other.inputs[0]].shape == values[move.inputs[0]].shape
        return other.inputs[0] if alike else None

    def _constant(self, value: int, move: Node) -> int | None:
        """Return a constant with its axes in the order of the move's input."""
        axes, held = _axes(move.attributes), self.graph.values[value]
        if axes is None or held.data is None or len(axes) > 4:
            return None
        whole = (1,) * (len(axes) - len(held.shape)) + held.shape
        moved = np.ascontiguousarray(np.reshape(held.data, whole).transpose(axes))
        return self.edit.new_value(held, shape=moved.shape, data=moved)


def _axes(attributes: MoveAttributes) -> list[int] | None:
    """Return the output's axis for each of the input's, where a move just exchanges axes."""
    if any(len(axis.sizes) != 1 for axis in attributes.digits):
        return None
    axes = [digit for source in attributes.sources for digit, _ in source.terms]
    return axes if sorted(axes) == list(range(len(attributes.sources))) else None
