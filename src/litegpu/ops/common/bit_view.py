"""Replaces element types that have no kernels with other types of the same size.

A complex tensor becomes a float tensor whose last axis alternates real and imaginary parts. Types
that kernels only move become integers of the same size. The bytes of a partition's inputs and
outputs do not change. A float tensor whose bits are read is never stored as float16.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Value
from litegpu.ops.base import has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import VIEWED_AS


def bit_view(graph: Graph) -> Graph:
    """Return a partition with floats and integers in place of complex and move-only types.

    The function marks floats of complex tensors, and floats whose bits are read, as never stored as
    float16.
    """
    views = {v: _view(value) for v, value in graph.values.items()}
    for node in graph.nodes:
        if has(node, Trait.READS_BITS):
            views |= {v: replace(views[v], precise=True) for v in (*node.inputs, *node.outputs)}
    return graph if views == graph.values else replace(graph, values=views)


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
