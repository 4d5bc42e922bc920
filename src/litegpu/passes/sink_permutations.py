"""Moves permutations such as TRANSPOSE below elementwise ops, towards their inverse.

In a channels-first network, each convolution is between two TRANSPOSE nodes. After the pass, only
the first and the last TRANSPOSE remain: `merge_permutations` removes inverse pairs, and
`fuse_elementwise` fuses the epilogue ops with the convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.common.functions import depends_on_position, element_operands
from litegpu.ops.common.permutation import Permutation, keeps_order, permutation_of, then
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes
from litegpu.passes.base import Editor, PassResult, label

_FURTHEST = 64
"""Maximum number of epilogue ops among which the pass searches for the inverse of a permutation."""


def sink_permutations(graph: Graph) -> PassResult:
    """Walk in execution order, so that a permutation sinks through chains of epilogue ops."""
    edit = Editor(graph)
    sinker = _Sinker(edit)
    for position, node in enumerate(graph.nodes):
        if node.op == COPY and node.epilogue:
            sinker.visit(position, node)
        sinker.producers.update(dict.fromkeys(node.outputs, position))
    return edit.result()


@dataclass
class _Sinker:
    edit: Editor
    producers: dict[int, int] = field(default_factory=dict)
    """The position of the node that computes each value."""

    def __post_init__(self) -> None:
        self.consumers = self.edit.graph.consumers()
        # Added values belong to it as well.
        self.graph = replace(self.edit.graph, values=self.edit.values)

    def visit(self, position: int, node: Node) -> None:
        """Swap epilogue ops with the permutation before them, if a later permutation undoes it."""
        mover, values = self._mover(node.inputs[0]), self.graph.values
        if mover is None or not self._undone(node, mover):
            return
        if depends_on_position(node.epilogue):
            self.edit.declined.append(
                f"{label(mover)} below {label(node)}: results depend on the positions of elements"
            )
            return
        epilogue = [self._moved_back(epilogue_op, mover) for epilogue_op in node.epilogue]
        found = [epilogue_op for epilogue_op in epilogue if epilogue_op is not None]
        if len(found) < len(epilogue):
            self.edit.declined.append(
                f"{label(mover)} below {label(node)}: an operand has another order"
            )
            return
        shape = values[mover.inputs[0]].shape
        output = self.edit.new_value(values[node.outputs[0]], shape=shape)
        lifted = replace(node, inputs=mover.inputs, outputs=(output,), epilogue=tuple(found))
        self.edit.insert_before(position, lifted)
        self.edit.nodes[position] = replace(mover, inputs=(output,), outputs=node.outputs)
        passed = {self.producers[v] for v in node.operands if v in self.producers}
        self.edit.drop_unread(self.edit.graph.nodes[at] for at in sorted(passed, reverse=True))
        self.edit.applied.append(f"{label(mover)} below {label(node)}")

    def _mover(self, value: int) -> Node | None:
        """Return the permutation that computes a value, if it only reorders elements."""
        position = self.producers.get(value)
        node = None if position is None else self.edit.nodes[position]
        if node is None or node.op != INDEX_MAP or permutation_of(self.graph, node) is None:
            return None
        return node

    def _undone(self, node: Node, mover: Node) -> bool:
        """Whether a chain of ops leads from a node's result to the inverse of the permutation."""
        order = permutation_of(self.graph, mover) or ()
        waiting, seen = [node], 0
        while waiting and seen < _FURTHEST:
            current, seen = waiting.pop(), seen + 1
            (output,) = current.outputs
            if self.graph.values[current.inputs[0]].shape != self.graph.values[output].shape:
                continue
            for reader in self.consumers.get(output, []):
                if self._undoes(reader, order):
                    return True
                if reader.op == COPY and reader.epilogue:
                    waiting.append(reader)
        return False

    def _undoes(self, node: Node, order: Permutation) -> bool:
        own = permutation_of(self.graph, node) if node.op == INDEX_MAP else None
        both = None if own is None else then(order, own)
        return both is not None and keeps_order(both)

    def _moved_back(self, epilogue_op: EpilogueOp, mover: Node) -> EpilogueOp | None:
        """Return an op with its operands in the order before the permutation, or None."""
        elements = element_operands(epilogue_op)
        operands = [
            *(self._operand(v, mover) for v in elements),
            *epilogue_op.operands[len(elements) :],
        ]
        known = tuple(v for v in operands if v is not None)
        return replace(epilogue_op, operands=known) if len(known) == len(operands) else None

    def _operand(self, value: int, mover: Node) -> int | None:
        values = self.graph.values
        if value == SELF or (values[value].is_constant and values[value].elements == 1):
            return value
        if values[value].is_constant:
            return self._constant(value, mover)
        other = self._mover(value)
        if other is None or permutation_of(self.graph, other) != permutation_of(self.graph, mover):
            return None
        alike = values[other.inputs[0]].shape == values[mover.inputs[0]].shape
        return other.inputs[0] if alike else None

    def _constant(self, value: int, mover: Node) -> int | None:
        """Return a constant with its axes in the order of the permutation's input."""
        axes, operand = _axes(mover.attributes), self.graph.values[value]
        if axes is None or operand.data is None or len(axes) > 4:
            return None
        whole = (1,) * (len(axes) - len(operand.shape)) + operand.shape
        moved = np.ascontiguousarray(np.reshape(operand.data, whole).transpose(axes))
        return self.edit.new_value(operand, shape=moved.shape, data=moved)


def _axes(attributes: IndexMapAttributes) -> list[int] | None:
    """Return the output axis of each input axis, if a permutation only exchanges axes."""
    if any(len(axis.sizes) != 1 for axis in attributes.digits):
        return None
    axes = [digit for source in attributes.sources for digit, _ in source.terms]
    return axes if sorted(axes) == list(range(len(attributes.sources))) else None
