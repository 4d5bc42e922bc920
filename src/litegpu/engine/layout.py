"""Assigns a storage to every value, shared allocations and padding included."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from litegpu.codegen import Storage
from litegpu.engine.updates import place_updates
from litegpu.graph import ABSENT, SELF, DType, Graph, Node, Value
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.base import COPY, get, has
from litegpu.ops.common.functions import element_operands, near_poles
from litegpu.ops.common.placement import (
    is_small,
    padded_storage,
    reshaped_views,
    unpadded_storage,
    whole_words,
)
from litegpu.ops.common.traits import Trait
from litegpu.ops.normalize import NORMALIZE
from litegpu.ops.reshape import RESHAPE


@dataclass
class Layout:
    """The graph, with copies of values that need two storages, and the storage of each value.

    A value that a node updates may share an allocation with the result (`engine/updates.py`).
    Inputs and outputs of the partition are unpadded, as in the runtime: kernels convert small
    elements (bools, integers of 8 or 16 bits) when they read or write them. All other values are
    padded, to a multiple of 4 channels (float32, int32, int64) or 8 channels (half). The `policy`
    determines which float32 values are stored as half.
    """

    graph: Graph
    policy: NumericPolicy
    storages: dict[int, Storage] = field(default_factory=dict)

    @property
    def bases(self) -> dict[int, Storage]:
        """The storages of allocations of computed values, by the value that fills each."""
        constant = {v for v, value in self.graph.values.items() if value.is_constant}
        return {v: s for v, s in self.storages.items() if s.base == v and v not in constant}

    @property
    def has_halves(self) -> bool:
        """Whether computed values are stored as half."""
        return any(self.is_rounded(v) for v in self.bases)

    def is_rounded(self, value_id: int) -> bool:
        """Whether a float32 value is stored as half."""
        halves = self.graph.values[value_id].dtype is DType.FLOAT16
        return self.storages[value_id].dtype is DType.FLOAT16 and not halves


def assign(
    graph: Graph,
    policy: NumericPolicy,
    stage_boundary: bool = False,
    half_lanes: bool = True,
    rounded: Collection[int] = (),
    precise: Collection[int] = (),
) -> Layout:
    """Assign a storage to every value of a graph after all passes.

    `half_lanes`: whether kernels can store a single half. `rounded`: values that kernels round to
    half when they read them; storing these values as half loses no more accuracy. `precise`: values
    of the layout that are never stored as half.

    `stage_boundary` inserts padded copies between the partition's inputs and outputs and its
    kernels; with these copies, tests cover the padded side of every kernel.
    """
    graph = keeping(_with_copies(graph, stage_boundary), precise)
    exact = _near_poles(graph) | _tables(graph)
    if not policy.stores_half(0):
        exact |= _streams(graph)
    graph = _carrying(keeping(graph, exact))
    layout = Layout(graph, policy)
    for v in graph.inputs:
        layout.storages[v] = unpadded_storage(graph.values[v])
    for v in graph.outputs:
        value = graph.values[v]
        layout.storages[v] = (whole_words if is_small(value) else unpadded_storage)(value)
    for value in graph.values.values():
        if value.is_constant:
            layout.storages[value.id] = padded_storage(value, policy)
    _place_views_of_inputs(layout)
    consumers = graph.consumers()
    for node in reversed(graph.nodes):
        for v in node.outputs:
            if v not in layout.storages:
                halves = v in rounded or _parts_are_halves(layout, v, consumers.get(v, []))
                layout.storages[v] = padded_storage(graph.values[v], policy, halves)
        for v, storage in _wanted_storages(layout, node):
            if v in layout.storages:
                continue
            padded_channels = storage.dtype.size >= 4 or (
                half_lanes and storage.dtype is DType.FLOAT16
            )
            if storage.vector or (padded_channels and len(consumers[v]) == 1):
                layout.storages[v] = storage
    _place_parts(layout, consumers)
    place_updates(graph, layout.storages, policy.guards_range)
    return layout


def keeping(graph: Graph, precise: Collection[int]) -> Graph:
    """Mark some values as precise; ids that the graph does not have are ignored."""
    marked = {v: replace(graph.values[v], precise=True) for v in precise if v in graph.values}
    return replace(graph, values={**graph.values, **marked})


def _near_poles(graph: Graph) -> set[int]:
    """Return the values whose smallest elements give the largest results, such as divisors.

    Storing a divisor as half would flush its smallest elements to zero, and the epilogue ops that
    read it would return infinity.
    """
    found: set[int] = set()
    for node in reversed(graph.nodes):
        running = any(v in found for v in node.outputs)
        for epilogue_op in reversed(node.epilogue):
            near = near_poles(epilogue_op, running)
            running = SELF in near
            found |= near - {SELF}
        if running and has(node, Trait.CONVEX):
            found.update(v for v in node.inputs if v != ABSENT)
    return found


def _streams(graph: Graph) -> set[int]:
    """Return residual streams: values that transformer layers normalize and add to.

    Storing a residual stream as half would round the sum after each layer (decision 43).
    """
    normalized = {node.inputs[0] for node in graph.nodes if node.op == NORMALIZE}
    added: set[int] = set()
    for node in graph.nodes:
        for epilogue_op in node.epilogue:
            if epilogue_op.function == "ADD":
                others = (v for v in epilogue_op.operands if v != SELF)
                operands = {v for v in others if not graph.values[v].is_constant}
                # If a layer has no addition of its own, its unmodified result is added.
                added |= operands | set(node.inputs if operands and node.op == COPY else ())
    return normalized & added


def _tables(graph: Graph) -> set[int]:
    """Return the constants that epilogue ops use as lookup tables."""
    epilogue = [epilogue_op for node in graph.nodes for epilogue_op in node.epilogue]
    return {
        v
        for epilogue_op in epilogue
        for v in epilogue_op.operands[len(element_operands(epilogue_op)) :]
    }


def _carrying(graph: Graph) -> Graph:
    """Mark a value as precise if a node computes it by moving, joining or averaging precise values.

    Other values in the same result may hide that half loses small elements of the precise values.
    """
    values = dict(graph.values)
    for node in graph.nodes:
        carried = has(node, Trait.CONVEX) and not node.epilogue
        if carried and any(values[v].precise for v in node.inputs if v in values):
            values |= {v: replace(values[v], precise=True) for v in node.outputs}
    return replace(graph, values=values)


def _with_copies(graph: Graph, stage_boundary: bool) -> Graph:
    """Insert copies of outputs that other nodes also read, if their layout needs scalar loads."""
    consumers = graph.consumers()
    values = dict(graph.values)
    fresh = iter(graph.fresh_ids())
    internal: dict[int, int] = {}
    for v in dict.fromkeys(graph.outputs):
        read_inside = v in consumers and values[v].shape4[3] % 4
        if stage_boundary or read_inside or is_small(values[v]):
            internal[v] = next(fresh)
            values[internal[v]] = replace(values[v], id=internal[v])
    nodes: list[Node] = []
    for node in graph.nodes:
        outputs = tuple(internal.get(v, v) for v in node.outputs)
        nodes.append(replace(node.reading(internal), outputs=outputs))
        nodes += [_copy(values[v], internal[v]) for v in node.outputs if v in internal]
    for v in graph.inputs if stage_boundary else ():
        if v in consumers:
            copied = next(fresh)
            values[copied] = replace(values[v], id=copied)
            copy = Node(-1, COPY, 1, (v,), (copied,))
            nodes = [copy, *(node.reading({v: copied}) for node in nodes)]
    return Graph(values, tuple(nodes), graph.inputs, graph.outputs)


def _copy(value: Value, source: int) -> Node:
    # Small elements are written in words, which do not align with rows.
    op = RESHAPE if is_small(value) else COPY
    return Node(-1, op, 1, (source,), (value.id,))


def _place_views_of_inputs(layout: Layout) -> None:
    """Store reshaped inputs (and outputs that are reshaped again) as views."""
    for node in layout.graph.nodes:
        source = layout.storages.get(node.inputs[0])
        target = node.outputs[0]
        if source is None or target in layout.storages or not has(node, Trait.HOLDS_INPUTS):
            continue
        view = get(node.op).result_storage(node, source, layout.graph.values[target].shape4)
        if view is not None:
            layout.storages[target] = view


def _parts_are_halves(layout: Layout, value: int, readers: Sequence[Node]) -> bool:
    """Whether all parts of a value that nodes read are stored as half, so that views are possible.

    The kernel of the whole value then stores the same numbers as a kernel for each part would.
    """
    whole, storages = layout.graph.values[value], layout.storages
    if whole.siblings == 1 or any(
        storages[n.outputs[0]].dtype is not DType.FLOAT16 for n in readers
    ):
        return False
    storage = padded_storage(whole, layout.policy, True)
    return all(
        get(node.op).result_storage(node, storage, storages[node.outputs[0]].shape)
        for node in readers
    )


def _place_parts(layout: Layout, consumers: Mapping[int, list[Node]]) -> None:
    """Store slices as views of the sliced value instead of copies, and their reshapes as well."""
    graph, storages = layout.graph, layout.storages
    for node in graph.nodes:
        output = node.outputs[0]
        if output in graph.outputs or not has(node, Trait.VIEWS_INPUT):
            continue
        storage, source = storages[output], graph.values[node.inputs[0]]
        view = get(node.op).result_storage(node, storages[source.id], storage.shape)
        # Parts that kernels round to half when they read them do not have to be stored as half.
        usual = source.siblings > 1 and padded_storage(graph.values[output], layout.policy)
        if view is None or view.dtype.size > (usual or storage).dtype.size:
            continue
        views = reshaped_views(graph, consumers, output, view)
        if views is not None:
            storages.update(views)
        elif storage.base == output:
            storages[output] = view


def _wanted_storages(layout: Layout, node: Node) -> list[tuple[int, Storage]]:
    """Return the storages of a node's inputs for which the node needs no kernel."""
    values = layout.graph.values
    dst = layout.storages[node.outputs[0]]
    if node.outputs[0] in layout.graph.outputs and is_small(values[node.outputs[0]]):
        return []  # other kernels do not write whole words
    if not has(node, Trait.HOLDS_INPUTS):
        return []
    storages = get(node.op).input_storages(node, dst, [values[v].shape4 for v in node.inputs])
    return [] if storages is None else list(zip(node.inputs, storages, strict=True))
