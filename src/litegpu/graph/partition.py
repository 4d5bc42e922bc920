"""Chooses which nodes go to the GPU, and cuts partitions out of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from litegpu.graph.ir import ABSENT, Graph


@dataclass(frozen=True, slots=True)
class Subset:
    """A set of nodes that the runtime would replace by one; tensors that enter and leave it."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Preview = Callable[[Sequence[int]], list[Subset]]
"""Asks the runtime how it would cut the graph if these nodes were delegated."""


def choose(
    graph: Graph,
    supported: Collection[int],
    folded: Collection[int],
    preview: Preview,
    max_partitions: int,
) -> list[Subset]:
    """Return the subsets to delegate, largest first.

    `folded` are the nodes that only widen float16 constants: they cost nothing and join the
    partition that reads them, but never make a partition of their own. One that the CPU reads too
    joins only if its result is small, for the partition hands it out at each invoke.
    """
    plan = [node.index for node in graph.nodes]
    real = [index for index in plan if index in supported and index not in folded]
    if not real:
        return []
    if len(real) + len(folded) == len(plan):
        whole = preview(plan)
        if len(whole) == 1:
            return whole
    found = sorted(preview(real), key=lambda subset: -len(subset.nodes))[:max_partitions]
    chosen = {index for subset in found for index in subset.nodes}
    subsets = preview([index for index in plan if index in chosen])
    with_folded = chosen | _readable_inside(graph, chosen, folded)
    joined = preview([index for index in plan if index in with_folded])
    if len(joined) == len(subsets) and all(set(s.nodes) & chosen for s in joined):
        subsets = joined
    return sorted(subsets, key=lambda subset: -len(subset.nodes))[:max_partitions]


def _readable_inside(graph: Graph, chosen: Collection[int], folded: Collection[int]) -> set[int]:
    """Return the folded nodes that only the chosen nodes read, and those of small results."""
    outside = {v for n in graph.nodes if n.index not in chosen for v in n.inputs}
    return {
        node.index
        for node in graph.nodes
        if node.index in folded
        and all(v not in outside or _is_small(graph, v) for v in node.outputs)
    }


_SMALL_BYTES = 1 << 16
"""Copying this much takes about as long as the runtime takes to step to one more node."""


def _is_small(graph: Graph, value: int) -> bool:
    return graph.values[value].elements * 4 <= _SMALL_BYTES


def extract(graph: Graph, subset: Subset) -> Graph:
    """Cut a subset out of the graph; constants are not inputs of the result.

    Nodes elsewhere that make such constants come along, for other shapes may change them.
    """
    wanted, used, nodes = set(subset.nodes), set[int](), []
    for node in reversed(graph.nodes):
        makes = [v for v in node.outputs if v in used and graph.values[v].is_constant]
        if node.index in wanted or makes:
            used.update(v for v in (*node.inputs, *node.outputs) if v != ABSENT)
            nodes.append(node)
    values = {v: graph.values[v] for v in used}
    inputs = tuple(v for v in subset.inputs if v in values and not values[v].is_constant)
    produced = {v for node in nodes for v in node.outputs}
    outputs = tuple(v for v in subset.outputs if v in produced)
    return Graph(values, tuple(reversed(nodes)), inputs, outputs)


def sources(graph: Graph) -> tuple[int, ...]:
    """Return the values that come from outside, those among them whose shape alone is read."""
    made = {v for node in graph.nodes for v in node.outputs}
    read = dict.fromkeys(v for node in graph.nodes for v in node.inputs if v != ABSENT)
    return tuple(v for v in read if v not in made and not graph.values[v].is_constant)


def with_shapes(graph: Graph, shapes: Iterable[tuple[int, tuple[int, ...]]]) -> Graph:
    """Return the graph with other shapes for some of its values."""
    changed = {v: replace(graph.values[v], shape=shape) for v, shape in shapes}
    return replace(graph, values={**graph.values, **changed})
