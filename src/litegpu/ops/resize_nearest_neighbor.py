"""RESIZE_NEAREST_NEIGHBOR: gathers rows and columns by precomputed tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import BYTES, INTEGERS, SCALED, Types
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.quantized_resize import scale_of
from litegpu.ops.resize_bilinear import check_size, resized_shape

_MOST = 1 << 14
"""Maximum number of rows or columns of a result."""


@register
class ResizeNearestNeighbor(Op):
    """Resizes H and W by the nearest pixel."""

    name = "RESIZE_NEAREST_NEIGHBOR"
    max_version = 4
    cpu_bytes_per_second = 14e9
    shape_operands = (1,)
    takes = (
        Types(SCALED.dtypes | {DType.INT32, DType.UINT16, DType.BOOL, DType.FLOAT16}, common=True),
        INTEGERS,
    )
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The new size"),
            lambda: check_size(graph, node),
            lambda: _check_tables(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (resized_shape(graph, node),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        out = graph.values[node.outputs[0]].shape
        flags = node.params["align_corners"], node.params["half_pixel_centers"]
        bytes_ = graph.values[node.inputs[0]].dtype in BYTES and not any(flags)
        sources = [Source(((axis, 1),)) for axis in range(4)]
        for axis in (1, 2):
            sizes = shape[axis], out[axis]
            table = nearest_of_bytes(*sizes) if bytes_ else nearest(*sizes, *flags)
            if table != tuple(range(shape[axis])):
                sources[axis] = Source(((axis, 1),), table=table)
        return (index_map_node(graph, node, plain(out), sources),)


def _check_tables(graph: Graph, node: Node) -> str:
    """Require that the tables with the source of each row and column have a limited size."""
    longest = max(resized_shape(graph, node)[1:3])
    return f"{longest} rows or columns are too many." if longest > _MOST else ""


def nearest_of_bytes(size: int, out: int) -> tuple[int, ...]:
    """Return the input index for each output index, in fixed point as the CPU does for bytes."""
    step = (size << 16) // out + 1
    return tuple(min(i * step >> 16, size - 1) for i in range(out))


def nearest(size: int, out: int, align_corners: bool, half_pixel: bool) -> tuple[int, ...]:
    """Return the input index for each output index, in float32 as the runtime computes it."""
    scale = np.float32(scale_of(size, out, align_corners))
    offset = np.float32(0.5 if half_pixel else 0.0)
    coordinates = (np.arange(out, dtype=np.float32) + offset) * scale
    # With align_corners, halves are rounded up; positions are never negative.
    indices = np.floor(coordinates + np.float32(0.5)) if align_corners else np.floor(coordinates)
    return tuple(int(i) for i in np.clip(indices, 0, size - 1))
