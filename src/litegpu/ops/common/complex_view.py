"""Complex tensors as floats: real and imaginary parts alternate along the last dimension.

These are the bytes of complex64 themselves, so nothing changes where a partition begins or ends.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Value


def complex_view(graph: Graph) -> Graph:
    """Return a partition whose complex tensors are of float32, which are never stored as half."""
    if all(value.dtype is not DType.COMPLEX64 for value in graph.values.values()):
        return graph
    return replace(graph, values={v: _as_floats(value) for v, value in graph.values.items()})


def _as_floats(value: Value) -> Value:
    if value.dtype is not DType.COMPLEX64:
        return value
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
