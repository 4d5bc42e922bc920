"""Tensors of types that kernels lack, as others of the same bits.

Complex tensors are floats: real and imaginary parts alternate along the last dimension. Types that
are only moved are integers of their size. So nothing changes where a partition begins or ends.
Floats whose bits are read are never stored as half.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Value
from litegpu.ops.base import has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import VIEWED_AS


def bit_view(graph: Graph) -> Graph:
    """Return a partition without complex tensors, and without those of types that are only moved.

    The floats of complex tensors are never stored as half, nor are those whose bits are read.
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
