"""Replaces interleaved slices of one value by a gather of its channels.

Rotary position embeddings use interleaved slices if adjacent channels form a pair: odd channels,
negated, alternate with even channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import Shape, as_float32, get
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_VIEWS = frozenset((RESHAPE, "EXPAND_DIMS", "SQUEEZE"))
_CUTS = frozenset(("SLICE", "STRIDED_SLICE"))
_JOINS = frozenset(("CONCATENATION", "PACK"))
_MAX_STEPS = 8
"""Maximum number of operations between a part and the value from which the part is sliced."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The rows of a value: indices into the rows of a source value, and a factor for each."""

    source: int
    indices: npt.NDArray[np.int32]
    factors: npt.NDArray[np.float32]
    nodes: tuple[Node, ...]


def slices_into_gather(graph: Graph) -> PassResult:
    """Visit each RESHAPE of joined slices; slices with other readers remain."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        joined = producers.get(node.inputs[0]) if node.op == RESHAPE else None
        if joined is None or joined.op not in _JOINS or not _is_last_axis(graph, joined):
            continue
        if only_consumer(joined.outputs[0], consumers, graph.outputs) is None:
            edit.declined.append(f"{label(joined)}: other nodes also read the result")
            continue
        row = _joined_row(graph, producers, joined, graph.values[node.outputs[0]].shape)
        if row is None:
            edit.declined.append(f"{label(joined)}: the parts are not slices of rows of one value")
            continue
        edit.nodes[edit.position(joined)] = None
        edit.nodes[position] = _gather(edit, position, node, row)
        edit.drop_unread(sorted(set(row.nodes), key=edit.position, reverse=True))
        edit.applied.append(f"the parts of {label(joined)} as {label(node)} reads them")
    return edit.result()


def _is_last_axis(graph: Graph, joined: Node) -> bool:
    """Whether a node only concatenates float32 values along the last axis."""
    result = graph.values[joined.outputs[0]]
    last = joined.params["axis"] in (-1, len(result.shape) - 1)
    plain = joined.params.get("activation", "none") == "none"
    return last and plain and result.dtype is DType.FLOAT32


def _joined_row(
    graph: Graph, producers: Mapping[int, Node], joined: Node, shape: Shape
) -> _Row | None:
    """Return the rows of parts that are joined and then reshaped to `shape`."""
    rows, width = math.prod(shape[:-1]), shape[-1]
    *_, length, count = graph.values[joined.outputs[0]].shape
    if length * count != width:
        return None
    parts = [_row(graph, producers, v, rows, width) for v in joined.inputs]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts) or len({each.source for each in known}) > 1:
        return None
    indices, factors = (
        np.concatenate([each.reshape(length, -1) for each in arrays], axis=1).ravel()
        for arrays in ([e.indices for e in known], [e.factors for e in known])
    )
    nodes = tuple(node for each in known for node in each.nodes)
    return _Row(known[0].source, indices, factors, nodes)


def _row(
    graph: Graph, producers: Mapping[int, Node], value: int, rows: int, width: int
) -> _Row | None:
    """Return a value as `rows` rows of a source value whose rows have `width` elements."""
    path: list[Node] = []
    while graph.values[value].shape[-1:] != (width,):
        node = producers.get(value)
        source = None if node is None else _source(graph, node)
        if node is None or source is None or len(path) == _MAX_STEPS:
            return None
        path.append(node)
        value = source
    if math.prod(graph.values[value].shape[:-1]) != rows:
        return None
    indices, factor = np.arange(width, dtype=np.int32), 1.0
    for node in reversed(path):
        factor *= _factor(graph, node)
        if node.op in _CUTS:
            found = _cut(graph, node, indices, rows)
            if found is None:
                return None
            indices = found
    return _Row(value, indices, np.full(indices.size, factor, np.float32), tuple(path))


def _source(graph: Graph, node: Node) -> int | None:
    """Return the input of a node that slices, reshapes or multiplies by a number, or None."""
    if node.op in _VIEWS | _CUTS | {"NEG"}:
        return node.inputs[0]
    if node.op != "MUL" or node.params["activation"] != "none":
        return None
    number, source = graph.values[node.inputs[1]], graph.values[node.inputs[0]]
    same = source.shape == graph.values[node.outputs[0]].shape
    return source.id if same and number.is_constant and number.elements == 1 else None


def _factor(graph: Graph, node: Node) -> float:
    if node.op == "MUL":
        return float(as_float32(graph.values[node.inputs[1]]).item())
    return -1.0 if node.op == "NEG" else 1.0


def _cut(
    graph: Graph, node: Node, indices: npt.NDArray[np.int32], rows: int
) -> npt.NDArray[np.int32] | None:
    """Return the elements of a row that a slice selects; None if the slice drops whole rows."""
    cuts = get(node.op).cuts(graph, node)
    assert cuts is not None
    shape, (ranges,) = graph.values[cuts.source].shape, cuts.ranges
    axis = next((i for i in range(len(shape)) if math.prod(shape[:i]) == rows), None)
    if axis is None or any(r != range(n) for r, n in zip(ranges[:axis], shape, strict=False)):
        return None
    return indices.reshape(shape[axis:])[np.ix_(*ranges[axis:])].ravel()


def _gather(edit: Editor, position: int, node: Node, row: _Row) -> Node:
    """Return the last node that gathers the elements; add the other nodes before `position`."""
    source, result = edit.values[row.source], edit.values[node.outputs[0]]
    value = edit.new_value(result, shape=source.shape)
    table = edit.new_constant(f"litegpu_turns_{node.index}", row.indices)
    params: dict[str, object] = {"axis": len(source.shape) - 1, "batch_dims": 0}
    inputs = (row.source, table)
    added = [replace(node, op="GATHER", inputs=inputs, outputs=(value,), params=params)]
    if (row.factors != 1).any():
        factors = edit.new_constant(f"litegpu_factors_{node.index}", row.factors)
        inputs, value = (value, factors), edit.new_value(result, shape=source.shape)
        params = {"activation": "none"}
        added.append(replace(node, op="MUL", inputs=inputs, outputs=(value,), params=params))
    if source.shape == result.shape:
        added[-1] = replace(added[-1], outputs=node.outputs)
    else:
        added.append(replace(node, inputs=(value, *node.inputs[1:])))
    for each in added[:-1]:
        edit.insert_before(position, each)
    return added[-1]
