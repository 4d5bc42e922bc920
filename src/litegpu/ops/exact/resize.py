"""Quantized RESIZE_BILINEAR: uint8 in float32, other types in fixed point, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common.types import QUANTIZED_TYPES
from litegpu.ops.exact import numbers
from litegpu.ops.quantized_resize import (
    ONE,
    QUANTIZED_RESIZE,
    Between,
    QuantizedResizeAttributes,
    scale_of,
)


class ExactResize(Exact):
    """RESIZE_BILINEAR by tables with the source pixels and the weights of each output pixel."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return self._geometry(graph, node) or numbers.check_io(graph, node, QUANTIZED_TYPES)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        flags = node.params["align_corners"], node.params["half_pixel_centers"]
        between = _of_floats if source.dtype is DType.UINT8 else _of_integers
        rows, columns = (between(source.shape[axis], result.shape[axis], *flags) for axis in (1, 2))
        attributes = QuantizedResizeAttributes(rows, columns)
        inputs = node.inputs[:1]
        return (Node(node.index, QUANTIZED_RESIZE, 1, inputs, node.outputs, attributes=attributes),)


def fixed_point(size: int, out: int, align_corners: bool, half_pixel: bool) -> list[int]:
    """Return the input coordinate of each output pixel, in 1024ths, rounded as on the CPU."""
    if align_corners and out > 1:
        step = (ONE * (size - 1) + (out - 1) // 2) // (out - 1)
    else:
        step = (ONE * size + out // 2) // out
    return [i * step + (step // 2 - ONE // 2 if half_pixel else 0) for i in range(out)]


def _of_integers(size: int, out: int, align_corners: bool, half_pixel: bool) -> tuple[Between, ...]:
    """Return two source indices for each output pixel, and their weights in 1024ths."""
    found = []
    for coordinate in fixed_point(size, out, align_corners, half_pixel):
        low, high = max(int(coordinate / ONE), 0), min(int((coordinate + ONE - 1) / ONE), size - 1)
        near = coordinate - ONE * low
        # Rounded steps can lead beyond the last pixel, where the CPU reads out of bounds: clamp
        # them.
        found.append((min(low, size - 1), high, float(ONE - near), float(near)))
    return tuple(found)


def _of_floats(size: int, out: int, align_corners: bool, half_pixel: bool) -> tuple[Between, ...]:
    """Return two source indices for each output pixel, and their weights."""
    step = np.float32(scale_of(size, out, align_corners))
    half = np.float32(0.5 if half_pixel else 0)
    coordinates = (np.arange(out, dtype=np.float32) + half) * step - half
    low = np.maximum(np.floor(coordinates), 0)
    high = np.minimum(np.ceil(coordinates), size - 1)
    near = coordinates - low
    far = np.float32(1) - near
    rows = zip(low.tolist(), high.tolist(), far.tolist(), near.tolist(), strict=True)
    return tuple((int(a), int(b), c, d) for a, b, c, d in rows)
