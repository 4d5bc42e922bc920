"""Quantized tensors as real numbers: the second way to run them, in float32.

Stored integers become scale * (stored - zero point) where a partition begins, and again stored
integers where it ends. In between, an epilogue op of its own brings what a node makes to the range
and the grid of its stored integers, so that what depends on this comes out alike: a RELU6 that is
nothing but a range, say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from litegpu.graph import PACKED_TYPES, DType, EpilogueOp, Graph, Node, Quantization, Value
from litegpu.ops.base import COPY, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import BYTES
from litegpu.ops.exact.functions import lookup_name

CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")
"""Operations of which nothing is left but the epilogues of their results."""
_LARGE = 4096
"""Elements beyond which a constant is no shape, axis or range."""
_ZERO = np.float32(0)


def as_floats(graph: Graph, large: bool = True) -> Graph:
    """Return a graph whose quantized tensors are of float32, for checks; constants have real data.

    Tensors with a scale for each channel that are no constants stay what they are. Without `large`,
    zeros stand for the elements of large constants, which no check reads.
    """
    biases = {node.inputs[-1] for node in graph.nodes if has(node, Trait.SUMS_PRODUCTS)}
    most = _LARGE if not large else None
    return replace(
        graph, values={v: _as_float(value, v in biases, most) for v, value in graph.values.items()}
    )


def float_view(graph: Graph) -> Graph:
    """Return a partition that computes in float32; its inputs and outputs stay stored integers."""
    read = frozenset(v for node in graph.nodes for v in node.operands)
    view = _View(graph, dict(as_floats(graph).values), iter(graph.fresh_ids()), read)
    nodes = [*view.inputs(), *(each for node in graph.nodes for each in view.rewritten(node))]
    return replace(graph, values=view.values, nodes=tuple(nodes))


def is_viewed(value: Value) -> bool:
    """Whether a value is one of the quantized tensors that are seen as real numbers."""
    found = value.quantization
    if found is None or not found.scale or value.is_constant:
        return False
    return value.dtype in BYTES and len(found.scale) == 1 == len(found.zero_point)


class _HasValues(Protocol):
    @property
    def values(self) -> Mapping[int, Value]: ...


def is_conversion(view: _HasValues, node: Node) -> bool:
    """Whether a node of a view is one of the conversions, from float32 to float32.

    One of which the file says so itself is none: a tensor without a scale is no view of another.
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
    return replace(value, dtype=DType.FLOAT32, data=_real(value.data, found))


def _real(stored: npt.NDArray[Any], quantization: Quantization) -> npt.NDArray[np.float32]:
    """Return what stored integers stand for; for bytes, which may be many, all along in float32."""
    axes = [1] * stored.ndim
    if len(quantization.scale) > 1:
        axes[quantization.dimension] = -1
    scale = np.asarray(quantization.scale, np.float32).reshape(axes)
    zero = np.asarray(quantization.zero_point or (0,), np.int64)
    zero = zero.reshape(axes) if zero.size > 1 else zero.reshape([1] * stored.ndim)
    if stored.dtype.itemsize == 1:
        found = stored.astype(np.float32)
        found -= zero.astype(np.float32)
    else:
        found = (stored.astype(np.int64) - zero).astype(np.float32)
    found *= scale
    return found


@dataclass
class _View:
    """A graph on its way to floats."""

    graph: Graph
    values: dict[int, Value]
    fresh: Iterator[int]
    read: frozenset[int]
    """The values that nodes read."""
    names: dict[int, int] = field(default_factory=dict)
    """What inner nodes read in place of a tensor at the partition's ends."""

    def inputs(self) -> Iterator[Node]:
        """Yield the nodes that make real numbers of the partition's inputs."""
        for v in self.graph.inputs:
            value = self.graph.values[v]
            if not is_viewed(value):
                continue
            self.values[v] = value
            self.names[v] = self._real(value)
            yield _elementwise(
                v, self.names[v], EpilogueOp(lookup_name(DType.FLOAT32), (self._table(value),))
            )

    def rewritten(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that a node becomes."""
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
        """Yield the nodes that follow the one which makes `real` for a tensor."""
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
        """Return a constant with what each byte stands for, by the byte without a sign."""
        assert value.quantization is not None
        stored = np.arange(256, dtype=np.uint8).view(value.dtype.value)
        v = next(self.fresh)
        table = _real(stored, value.quantization)
        self.values[v] = Value(v, f"litegpu_{v}", (256,), DType.FLOAT32, table)
        return v


def _elementwise(source: int, target: int, *epilogue: EpilogueOp) -> Node:
    return Node(-1, COPY, 1, (source,), (target,), epilogue=epilogue)


def _limits(value: Value) -> tuple[int, int]:
    ends = np.iinfo(value.dtype.value)
    return int(ends.min), int(ends.max)


def _grid(value: Value) -> tuple[tuple[str, float], ...]:
    """Return the range of a tensor, and the step of its stored integers."""
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
