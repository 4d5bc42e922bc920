"""Merges chains of TRANSPOSE, RESHAPE and other permutations; inverse pairs cancel.

The merge saves kernels that each read and write a whole value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from litegpu.graph import Graph, Node
from litegpu.ops.common.permutation import Permutation, keeps_order, permutation_of, permuted, then
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label

_FURTHEST = 32
"""Maximum number of preceding permutations among which the pass searches for a new source."""


def merge_permutations(graph: Graph) -> PassResult:
    """Let the last permutation of each chain read the source that saves most kernels."""
    edit = Editor(graph)
    merger = _Merger(edit)
    for position, node in enumerate(graph.nodes):
        current = edit.nodes[position]
        if current is not None and permutation_of(graph, current) is not None:
            merger.visit(position, current)
        merger.producers.update(dict.fromkeys(node.outputs, position))
    return edit.result()


@dataclass(frozen=True, slots=True)
class _Merge:
    """The last permutation of a chain, with the start of the chain as its input."""

    node: Node
    in_order: bool
    saved: int
    """The number of kernels that the merge saves."""
    alone: bool
    """Whether the intermediate values have no other reader."""
    passed: tuple[Node, ...]
    """The permutations that this merge replaces, in reverse order."""


@dataclass
class _Merger:
    edit: Editor
    producers: dict[int, int] = field(default_factory=dict)
    """The position of the node that computes each value."""

    def visit(self, position: int, node: Node) -> None:
        """Merge the chain that ends in a node, if the merge saves a kernel or a view."""
        choices, end = self._choices(node)
        best = max(choices, key=lambda each: (each.saved, len(each.passed)), default=None)
        if best is None or best.saved < 0 or (best.saved == 0 and not best.in_order):
            shared = best is not None and not best.alone
            reason = end or (
                "other nodes also read the permuted value" if shared else "no kernel would be saved"
            )
            if choices or end:
                self.edit.declined.append(f"{label(node)} and the permutation before it: {reason}")
            return
        self.edit.applied.append(f"{', '.join(map(label, best.passed))} into {label(node)}")
        source, target = best.node.inputs[0], node.outputs[0]
        self.edit.nodes[position] = best.node
        if self._is_nothing(best.node) and target not in self.edit.graph.outputs:
            self.edit.nodes[position] = None
            self.edit.rename(target, source)
        self.edit.drop_unread(best.passed)

    def _choices(self, node: Node) -> tuple[list[_Merge], str]:
        """Return the possible starts of the chain, and why it cannot start earlier."""
        graph = self.edit.graph
        permutation: Permutation | None = permutation_of(graph, node) or ()
        found: list[_Merge] = []
        passed: list[Node] = []
        spent, alone, source = self._cost(node), True, node.inputs[0]
        while len(passed) < _FURTHEST:
            position = self.producers.get(source)
            producer = None if position is None else self.edit.nodes[position]
            before = None if producer is None else permutation_of(graph, producer)
            if position is None or producer is None or before is None or permutation is None:
                return found, ""
            alone = alone and self._readers(source) == 1
            spent += self._cost(producer) if alone else 0
            passed.append(graph.nodes[position])
            source = producer.inputs[0]
            permutation = then(before, permutation)
            merged = (*node.merged, *(each.index for each in passed))
            start = replace(node, inputs=(source,), merged=merged)
            whole = None if permutation is None else permuted(graph, start, permutation)
            if permutation is None or whole is None:
                return found, "the axes of the two permutations are divided in different ways"
            saved = spent - self._cost(whole)
            found.append(_Merge(whole, keeps_order(permutation), saved, alone, tuple(passed)))
        return found, ""

    def _readers(self, value: int) -> int:
        outside = value in self.edit.graph.outputs
        return outside + self.edit.nodes.reader_count(value)

    def _is_nothing(self, node: Node) -> bool:
        values = self.edit.graph.values
        same = values[node.inputs[0]].shape == values[node.outputs[0]].shape
        return node.op == RESHAPE and same

    def _cost(self, node: Node) -> int:
        """Return the number of kernels of a node: a RESHAPE is free if it preserves whole rows."""
        if node.op != RESHAPE:
            return 1
        graph = self.edit.graph
        if node.inputs[0] in graph.inputs or node.outputs[0] in graph.outputs:
            return 0
        rows = [graph.values[v].shape4[3] for v in (node.inputs[0], node.outputs[0])]
        return int(rows[0] != rows[1] and any(row % 4 for row in rows))
