"""Replaces element types that have no kernels with other types of the same size.

A complex tensor becomes a float tensor whose last axis alternates real and imaginary parts. For an
op that moves single complex numbers (TRANSPOSE, SLICE, …), BITCAST nodes convert these pairs to
64-bit integers and back. Arithmetic is expressed by real and imaginary parts
(`complex_parts.py`). Types that kernels only move become integers of the same size. The bytes
of a partition's inputs and outputs do not change. A float tensor whose bits are read is never
stored as float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops.base import has
from litegpu.ops.common.complex_parts import by_parts
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import CAST_TYPES, VIEWED_AS


def bit_view(graph: Graph) -> Graph:
    """Return a partition with floats and integers in place of complex and move-only types.

    The function marks floats of complex tensors, and floats whose bits are read, as never stored as
    float16.
    """
    graph = _with_types_of_casts(by_parts(graph))
    views = {v: _view(value) for v, value in graph.values.items()}
    nodes = tuple(_moving_integers(graph, views))
    for node in nodes:
        if has(node, Trait.READS_BITS):
            views |= {v: replace(views[v], precise=True) for v in (*node.inputs, *node.outputs)}
    return graph if views == graph.values else replace(graph, values=views, nodes=nodes)


def _with_types_of_casts(graph: Graph) -> Graph:
    """Return a graph whose casts know the types that integers will represent."""

    def known(node: Node) -> Node:
        if node.op != "CAST":
            return node
        types = tuple(graph.values[v].dtype for v in (*node.inputs, *node.outputs))
        viewed = not VIEWED_AS.keys().isdisjoint(types)
        return replace(node, params={**node.params, CAST_TYPES: types}) if viewed else node

    nodes = tuple(map(known, graph.nodes))
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _moving_integers(graph: Graph, views: dict[int, Value]) -> Iterator[Node]:
    """Yield the nodes of a graph; those that move complex numbers move 64-bit integers instead.

    BITCAST nodes convert between the integers and the pairs of floats, where another node needs
    these. `views` receives the integer tensors.
    """
    is_complex = {v for v, value in graph.values.items() if value.dtype is DType.COMPLEX64}
    of_pairs = [node for node in graph.nodes if has(node, Trait.COMPLEX_PAIRS)]
    read_as_pairs = {*graph.outputs, *(v for node in of_pairs for v in node.inputs)}
    integers: dict[int, int] = {}
    fresh = iter(graph.fresh_ids())
    for node in graph.nodes:
        moved = [] if has(node, Trait.COMPLEX_PAIRS) else [*is_complex.intersection(node.inputs)]
        results = [v for v in node.outputs if v in is_complex] if moved else []
        for v in (*moved, *results):
            if v in integers:
                continue
            value, integers[v] = graph.values[v], next(fresh)
            data = None if value.data is None else np.asarray(value.data).view(np.int64)
            views[integers[v]] = replace(value, id=integers[v], dtype=DType.INT64, data=data)
            if v in moved and data is None:
                yield Node(node.index, "BITCAST", 1, (v,), (integers[v],))
        if not moved:
            yield node
            continue
        outputs = tuple(integers[v] if v in is_complex else v for v in node.outputs)
        yield replace(node.reading(integers), outputs=outputs)
        for v in read_as_pairs.intersection(results):
            yield Node(node.index, "BITCAST", 1, (integers[v],), (v,))


def _view(value: Value) -> Value:
    if value.dtype in VIEWED_AS:
        dtype = VIEWED_AS[value.dtype]
        data = None if value.data is None else np.asarray(value.data).view(dtype.value)
        return replace(value, dtype=dtype, data=data)
    return _as_floats(value) if value.dtype is DType.COMPLEX64 else value


def _as_floats(value: Value) -> Value:
    *outer, last = value.shape or (1,)
    shape = (*outer, 2 * last)
    data = None if value.data is None else np.ascontiguousarray(value.data).view(np.float32)
    return replace(
        value,
        shape=shape,
        dtype=DType.FLOAT32,
        data=None if data is None else data.reshape(shape),
        precise=True,
    )
