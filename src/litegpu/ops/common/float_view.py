"""The "float" mode: runs quantized models in float32.

A partition's quantized inputs are dequantized to scale * (stored - zero point), and its outputs are
quantized again. An additional epilogue op clamps a quantized result to the quantization range and
rounds it to a multiple of the scale. An additional clamp preserves the effect of ops that are
expressed only by a quantization range, such as a quantized RELU6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from litegpu.graph import PACKED_TYPES, DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, has
from litegpu.ops.common.dequantized import real_numbers
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import BYTES
from litegpu.ops.exact.functions import lookup_name

CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")
"""Ops whose whole effect is an epilogue op of their result."""
_LARGE = 4096
"""Maximum number of elements of constants that may be shapes, axes or ranges."""
_ZERO = np.float32(0)


def as_floats(graph: Graph, large: bool = True) -> Graph:
    """Return a graph for checks in which float32 tensors replace the quantized tensors.

    Constants are dequantized, large ones when they are read. Computed tensors with per-channel
    scales stay unchanged. If `large` is false, zeros replace large constants, since no check reads
    them.
    """
    biases = {node.inputs[-1] for node in graph.nodes if has(node, Trait.SUMS_PRODUCTS)}
    most = _LARGE if not large else None
    return replace(
        graph, values={v: _as_float(value, v in biases, most) for v, value in graph.values.items()}
    )


def float_view(graph: Graph) -> Graph:
    """Return a partition that computes in float32, with quantized inputs and outputs."""
    read = frozenset(v for node in graph.nodes for v in node.operands)
    view = _View(graph, dict(as_floats(graph).values), iter(graph.fresh_ids()), read)
    nodes = [*view.inputs(), *(each for node in graph.nodes for each in view.rewritten(node))]
    return replace(graph, values=view.values, nodes=tuple(nodes))


def is_viewed(value: Value) -> bool:
    """Whether a value is a quantized tensor that the float mode dequantizes."""
    found = value.quantization
    if found is None or not found.scale or value.is_constant:
        return False
    return value.dtype in BYTES and len(found.scale) == 1 == len(found.zero_point)


class _HasValues(Protocol):
    @property
    def values(self) -> Mapping[int, Value]: ...


def is_conversion(view: _HasValues, node: Node) -> bool:
    """Whether a node is a type conversion whose input and output are both float32 in float mode.

    The result is False for a conversion of a tensor without a scale, which float mode does not
    dequantize.
    """
    if node.op not in CONVERSIONS or (len(node.inputs), len(node.outputs)) != (1, 1):
        return False
    viewed = [view.values.get(v) for v in (*node.inputs, *node.outputs)]
    scales = any(value is not None and value.quantization is not None for value in viewed)
    return scales and all(value is not None and value.dtype is DType.FLOAT32 for value in viewed)


def _as_float(value: Value, is_bias: bool, most: int | None) -> Value:
    if is_viewed(value):
        return replace(value, dtype=DType.FLOAT32)
    dtypes = BYTES | PACKED_TYPES | ({DType.INT32} if is_bias else set())
    found, blockwise = value.quantization, value.blockwise
    scaled = blockwise is not None or (found is not None and bool(found.scale))
    if value.data is None or not scaled or value.dtype not in dtypes:
        return value
    if most is not None and value.elements > most:
        return replace(value, dtype=DType.FLOAT32, data=np.broadcast_to(_ZERO, value.data.shape))
    if blockwise is not None:
        scales = blockwise.scales.astype(np.float32).repeat(blockwise.size, axis=1)
        return replace(value, dtype=DType.FLOAT32, data=value.data * scales)
    assert found is not None
    return replace(value, dtype=DType.FLOAT32, data=real_numbers(value.data, found))


@dataclass
class _View:
    """The state of a pass that rewrites a graph to float32."""

    graph: Graph
    values: dict[int, Value]
    fresh: Iterator[int]
    read: frozenset[int]
    """The values that at least one node reads."""
    names: dict[int, int] = field(default_factory=dict)
    """Maps the partition's inputs and outputs to the float32 values that inner nodes read."""

    def inputs(self) -> Iterator[Node]:
        """Yield the nodes that dequantize the partition's inputs.

        An input that no node reads may be a variable without a value.
        """
        for v in self.graph.inputs:
            value = self.graph.values[v]
            if not is_viewed(value):
                continue
            self.values[v] = value
            if v not in self.read:
                continue
            self.names[v] = self._real(value)
            yield _elementwise(
                v, self.names[v], EpilogueOp(lookup_name(DType.FLOAT32), (self._table(value),))
            )

    def rewritten(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that replace `node`."""
        reals = {v: self._real(self.graph.values[v]) for v in node.outputs if self._is_viewed(v)}
        node = node.reading(self.names)
        outputs = tuple(reals.get(v, v) for v in node.outputs)
        node = replace(node, outputs=outputs)
        if is_conversion(self, node):
            node = Node(node.index, COPY, 1, node.inputs, outputs)
        yield node
        for v, real in reals.items():
            yield from self._ended(v, real)

    def _ended(self, v: int, real: int) -> Iterator[Node]:
        """Yield the nodes after the producer of `real`, the float32 version of tensor `v`."""
        value = self.graph.values[v]
        if v in self.graph.outputs:
            self.values[v] = value
            yield _elementwise(real, v, *_stored_epilogue(value))
        if v in self.read:
            if v in self.graph.outputs:
                self.names[v] = self._real(value)
            inner = self.names.get(v, v)
            yield _elementwise(real, inner, EpilogueOp("ON_GRID", attributes=_grid(value)))

    def _is_viewed(self, v: int) -> bool:
        return v in self.graph.values and is_viewed(self.graph.values[v])

    def _real(self, value: Value) -> int:
        v = next(self.fresh)
        self.values[v] = replace(value, id=v, dtype=DType.FLOAT32)
        return v

    def _table(self, value: Value) -> int:
        """Return a constant with the real number of each byte, indexed by the byte as uint8."""
        assert value.quantization is not None
        stored = np.arange(256, dtype=np.uint8).view(value.dtype.value)
        v = next(self.fresh)
        table = real_numbers(stored, value.quantization)
        self.values[v] = Value(v, f"litegpu_{v}", (256,), DType.FLOAT32, table)
        return v


def _elementwise(source: int, target: int, *epilogue: EpilogueOp) -> Node:
    return Node(-1, COPY, 1, (source,), (target,), epilogue=epilogue)


def _limits(value: Value) -> tuple[int, int]:
    ends = np.iinfo(value.dtype.value)
    return int(ends.min), int(ends.max)


def _grid(value: Value) -> tuple[tuple[str, float], ...]:
    """Return the quantization range of a tensor, and the step between its numbers."""
    assert value.quantization is not None
    (scale,), (zero,) = value.quantization.scale, value.quantization.zero_point
    low, high = _limits(value)
    step = float(scale)
    return (
        ("low", step * (low - zero)),
        ("high", step * (high - zero)),
        ("step", step),
        ("inverse", 1 / step),
    )


def _stored_epilogue(value: Value) -> tuple[EpilogueOp, ...]:
    low, high = _limits(value)
    return (
        EpilogueOp("GRID_NUMBER", attributes=(*_grid(value), ("first", low))),
        EpilogueOp("CLAMP", attributes=(("low", low), ("high", high))),
    )
