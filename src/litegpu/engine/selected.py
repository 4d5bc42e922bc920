"""The implementations selected for a graph with a layout, and their requirements on the layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from litegpu.codegen import Storage
from litegpu.engine.layout import Layout, assign
from litegpu.graph import DType, Graph, Node, Value
from litegpu.kernels.base import Plan
from litegpu.kernels.selector import Selection, select
from litegpu.ops.base import Target, get


@dataclass
class Selected:
    """The plans of the nodes of a layout; each node's plan is selected once."""

    layout: Layout
    target: Target
    before: Selected | None = None
    """Selections for an earlier layout of the same graph, reused where the storages are equal."""
    _selections: dict[int, tuple[Selection, ...]] = field(default_factory=dict)

    def value(self, value_id: int) -> Value:
        """Return a value of the graph."""
        return self.layout.graph.values[value_id]

    def storage(self, value_id: int) -> Storage:
        """Return the storage of a value."""
        return self.layout.storages[value_id]

    def selections(self, node: Node) -> tuple[Selection, ...]:
        """Return the selected implementation for each spec of a node, and the rejected ones."""
        output = node.outputs[0]
        if self.before and output not in self._selections and self._same_storages(node):
            self._selections[output] = self.before.selections(node)
        if output not in self._selections:
            specs = get(node.op).specs(node, self)
            self._selections[output] = tuple(select(spec, self.target) for spec in specs)
        return self._selections[output]

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes of the graph in execution order."""
        return self.layout.graph.nodes

    def pairs(self, nodes: Iterable[Node]) -> list[tuple[Node, Selection]]:
        """Return nodes with the selection for each of their specs."""
        return [(node, selection) for node in nodes for selection in self.selections(node)]

    def plans(self, node: Node) -> list[Plan]:
        """Return the plan for each spec of a node; none if any spec has no plan."""
        selections = self.selections(node)
        found = [selection.plan for selection in selections if selection.plan is not None]
        return found if len(found) == len(selections) else []

    def rounded(self) -> set[int]:
        """Return the float32 values that every kernel rounds to half when it reads them."""
        return {
            node.inputs[0]
            for node in self.nodes
            if any(plan.rounds_input for plan in self.plans(node))
        }

    def not_accepted(self) -> list[Node]:
        """Return the nodes for which no implementation supports the storages of their values."""
        return [node for node in self.nodes if any(not each.plan for each in self.selections(node))]

    def as_float32(self, values: Collection[int]) -> Selected:
        """Return the selection as if `values` were stored as float32."""
        storages = dict(self.layout.storages)
        for v in values:
            storages[v] = replace(storages[v], dtype=DType.FLOAT32)
        return Selected(replace(self.layout, storages=storages), self.target, self)

    def _same_storages(self, node: Node) -> bool:
        if self.before is None:
            return False
        now, then = self.layout.storages, self.before.layout.storages
        return all(now.get(v) == then.get(v) for v in (*node.operands, *node.outputs))


def place(
    graph: Graph,
    target: Target,
    half_lanes: bool,
    stage_boundary: bool = False,
    precise: Collection[int] = (),
) -> Selected:
    """Lay out the values of a graph after all passes, and select an implementation for each node.

    `half_lanes`, `stage_boundary` and `precise` have the same meaning as in layout.assign. The
    function stores a value as half if the selected kernel rounds the value when reading, and if the
    same kernel is still selected for half storage.
    """

    def placed(rounded: Collection[int], before: Selected | None = None) -> Selected:
        layout = assign(graph, target.policy, stage_boundary, half_lanes, rounded, precise)
        return Selected(layout, target, before)

    first = selected = placed(())
    rounded = first.rounded()
    while rounded:
        selected = placed(rounded, first)
        storages = selected.layout.storages
        halves = {v for v in rounded if storages[v].dtype is DType.FLOAT16}
        agreed = halves & selected.as_float32(halves).rounded()
        if agreed == halves:
            return selected
        rounded = agreed
    return first
