"""Quantized inputs of a CONCATENATION with the quantization of the result need no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.engine.layout import assign
from litegpu.engine.partition import rewrite
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.numeric_policy import FP32
from litegpu.ops.common.support import check_support
from litegpu.ops.index_map import INDEX_MAP
from paper_device import build

ONE, OTHER = Quantization((0.5,), (3,)), Quantization((0.25,), (3,))
SIZE = np.array([8, 6], np.int32)


def _graph(*parts: Quantization) -> Graph:
    """Two images of bytes that are resized, joined and reduced."""

    def image(v: int, stored: Quantization, *shape: int) -> Value:
        return Value(v, f"v{v}", shape, DType.UINT8, quantization=stored)

    values = [
        *(image(v, stored, 1, 4, 3, 8) for v, stored in enumerate(parts)),
        *(image(v, stored, 1, 8, 6, 8) for v, stored in enumerate(parts, 2)),
        image(4, ONE, 1, 8, 6, 16),
        image(5, ONE, 1, 1, 1, 16),
        Value(6, "size", (2,), DType.INT32, SIZE),
        Value(7, "axes", (2,), DType.INT32, np.array([1, 2], np.int32)),
    ]
    resize = {"align_corners": False, "half_pixel_centers": False}
    nodes = (
        Node(0, "RESIZE_NEAREST_NEIGHBOR", 2, (0, 6), (2,), resize),
        Node(1, "RESIZE_NEAREST_NEIGHBOR", 2, (1, 6), (3,), resize),
        Node(2, "CONCATENATION", 2, (2, 3), (4,), {"axis": 3, "activation": "none"}),
        Node(3, "REDUCE_MAX", 2, (4, 7), (5,), {"keep_dims": True}),
    )
    return Graph({value.id: value for value in values}, nodes, (0, 1), (5,))


@pytest.mark.parametrize("other", [ONE, OTHER])
def test_parts_take_no_kernel(other: Quantization) -> None:
    """The table of a part with another scale is looked up where the part is made."""
    graph = _graph(ONE, other)
    assert check_support(graph).reasons == {}
    launches = build(assign(rewrite(graph), FP32)).launches
    assert [launch.node.op for launch in launches[:3]] == [INDEX_MAP, INDEX_MAP, "REDUCE_MAX"]
    looked_up = [
        epilogue_op.function for launch in launches for epilogue_op in launch.node.epilogue
    ]
    assert looked_up == (["LOOKUP_UINT8"] if other is OTHER else [])
