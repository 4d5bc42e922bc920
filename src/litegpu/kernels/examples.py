"""Small graphs that implementations compute, for docs/kernels.md and the kernel tests."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.attention import ATTENTION, AttentionAttributes
from litegpu.ops.base import COPY
from litegpu.ops.common.matmul_spec import MatmulAttributes
from litegpu.ops.common.window import POINT, DepthwiseAttributes, PoolAttributes, Shape4, Window
from litegpu.ops.conv_2d import ConvAttributes, DepthwiseOperand, ExpandOperand
from litegpu.ops.pooled_conv import POOLED_CONV, PooledConvAttributes
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes
from litegpu.ops.quantized_matmul import QUANTIZED_MATMUL, QuantizedMatmulAttributes
from litegpu.ops.quantized_transpose_conv import QUANTIZED_TRANSPOSE_CONV

_BATCH = (1, 1, 1)


@dataclass
class _Sketch:
    """A graph of normalized nodes under construction; constants are seeded."""

    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=itertools.count)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def value(
        self,
        shape: tuple[int, ...],
        dtype: DType = DType.FLOAT32,
        data: npt.NDArray[Any] | None = None,
    ) -> int:
        v = next(self.ids)
        self.values[v] = Value(v, f"v{v}", shape, dtype, data)
        return v

    def floats(self, *shape: int) -> int:
        return self.value(shape, data=self.random.uniform(-1, 1, shape).astype(np.float32))

    def integers(self, dtype: DType, limit: int, *shape: int) -> int:
        data = self.random.integers(-limit, limit, shape).astype(dtype.value)
        return self.value(shape, dtype, data)

    def node(
        self, op: str, inputs: tuple[int, ...], shape: Shape4, attributes: Any, dtype: DType
    ) -> int:
        result = self.value(shape, dtype)
        self.nodes.append(Node(len(self.nodes), op, 1, inputs, (result,), attributes=attributes))
        return result

    def graph(self, output: int) -> Graph:
        inputs = (v for node in self.nodes for v in node.inputs if v < self.nodes[0].outputs[0])
        read = tuple(v for v in dict.fromkeys(inputs) if self.values[v].data is None)
        return Graph(self.values, tuple(self.nodes), read, (output,))


class Example(ABC):
    """A problem that an implementation computes; its text is a line of the documentation."""

    @abstractmethod
    def graph(self) -> Graph:
        """Return a valid graph of normalized nodes; the implementation computes the last one."""


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


@dataclass(frozen=True)
class ConvExample(Example):
    """A convolution that preserves the image size, optionally after a depthwise convolution."""

    image: Shape4
    filters: int
    kernel: int = 1
    depthwise: bool = False
    """Whether a 3x3 depthwise convolution precedes the convolution, fused into the same kernel."""
    pool: int = 0
    """Size of the windows of a fused maximum pool; 0 for no pool."""
    expand: int = 0
    """Channels of a pointwise convolution before the depthwise and the pointwise convolution; 0 for
    none.
    """

    def __str__(self) -> str:
        depthwise = f"{self.expand} filters of 1×1, " if self.expand else ""
        depthwise += "depthwise 3×3, then " if self.depthwise else ""
        size = f"{self.kernel}×{self.kernel}"
        pool = f", then maxima of {self.pool}×{self.pool}" if self.pool else ""
        return f"{_shape(self.image)}: {depthwise}{self.filters} filters of {size}{pool}"

    def graph(self) -> Graph:
        sketch = _Sketch()
        source = sketch.value(self.image)
        if self.expand:
            return sketch.graph(_inverted(sketch, source, self.expand, self.filters))
        if self.depthwise:
            source = _depthwise(sketch, source, 3)
        n, height, width, depth = sketch.values[source].shape
        window = _window(self.kernel)
        shape = (self.filters, *window.kernel, depth)
        weights, bias = sketch.floats(*shape), sketch.floats(self.filters)
        attributes = ConvAttributes(window, weights, bias, shape)
        size = (n, height, width, self.filters)
        if self.pool:
            return sketch.graph(_pooled(sketch, source, attributes, size, self.pool))
        return sketch.graph(sketch.node("CONV_2D", (source,), size, attributes, DType.FLOAT32))


@dataclass(frozen=True)
class DepthwiseExample(Example):
    """A depthwise convolution of floats or of bytes."""

    image: Shape4
    kernel: int = 3
    quantized: bool = False

    def __str__(self) -> str:
        kind = " bytes" if self.quantized else ""
        return f"{_shape(self.image)}{kind}: depthwise {self.kernel}×{self.kernel}"

    def graph(self) -> Graph:
        sketch = _Sketch()
        if self.quantized:
            source, channels = sketch.value(self.image, DType.INT8), self.image[3]
            weights = sketch.integers(DType.INT8, 128, 1, self.kernel, self.kernel, channels)
            bias = sketch.integers(DType.INT32, 1000, channels)
            found = QuantizedDepthwiseAttributes(_window(self.kernel), weights, bias, 3, 0)
            sums = sketch.node(QUANTIZED_DEPTHWISE, (source,), self.image, found, DType.INT32)
            return sketch.graph(sums)
        return sketch.graph(_depthwise(sketch, sketch.value(self.image), self.kernel))


@dataclass(frozen=True)
class MatmulExample(Example):
    """A product of two computed matrices, of floats or of bytes."""

    rows: int
    depth: int
    columns: int
    quantized: bool = False

    def __str__(self) -> str:
        kind = " of bytes" if self.quantized else ""
        return f"{self.rows}×{self.depth} times {self.depth}×{self.columns}{kind}"

    def graph(self) -> Graph:
        sketch, given = _Sketch(), DType.INT8 if self.quantized else DType.FLOAT32
        left = sketch.value((1, 1, self.rows, self.depth), given)
        right = sketch.value((1, 1, self.depth, self.columns), given)
        shape = (1, 1, self.rows, self.columns)
        common = ((False, False), (_BATCH, _BATCH), _BATCH)
        if self.quantized:
            quantized = QuantizedMatmulAttributes(*common, (3, -4))
            result = sketch.node(QUANTIZED_MATMUL, (left, right), shape, quantized, DType.INT32)
        else:
            attributes = MatmulAttributes(*common)
            result = sketch.node("BATCH_MATMUL", (left, right), shape, attributes, given)
        return sketch.graph(result)


@dataclass(frozen=True)
class AttentionExample(Example):
    """Attention of one head."""

    rows: int
    keys: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows} queries of {self.keys} keys, {self.depth} channels"

    def graph(self) -> Graph:
        sketch = _Sketch()
        tokens = (self.rows, self.keys, self.keys)
        inputs = [sketch.value((1, 1, count, self.depth)) for count in tokens]
        scores, shape = (1, 1, self.rows, self.keys), (1, 1, self.rows, self.depth)
        attributes = AttentionAttributes(scores, -1, (), 1.0, (False,) * 4)
        return sketch.graph(sketch.node(ATTENTION, tuple(inputs), shape, attributes, DType.FLOAT32))


@dataclass(frozen=True)
class QuantizedConvExample(Example):
    """A quantized convolution that preserves the image size, or a transposed one if `times` > 1."""

    image: Shape4
    filters: int
    kernel: int = 1
    times: int = 1

    def __str__(self) -> str:
        transposed = f"transposed, stride {self.times}, " if self.times > 1 else ""
        size = f"{self.kernel}×{self.kernel}"
        return f"{_shape(self.image)} bytes: {transposed}{self.filters} filters of {size}"

    def graph(self) -> Graph:
        sketch = _Sketch()
        source = sketch.value(self.image, DType.INT8)
        n, height, width, depth = self.image
        shape = (self.filters, self.kernel, self.kernel, depth)
        weights = sketch.integers(DType.INT8, 128, *shape)
        bias = sketch.integers(DType.INT32, 1000, self.filters)
        window = _window(self.kernel)
        if self.times > 1:
            window = Window((self.kernel, self.kernel), (self.times, self.times))
        attributes = QuantizedConvAttributes(window, weights, bias, shape, 1, 3, 0)
        op = QUANTIZED_TRANSPOSE_CONV if self.times > 1 else QUANTIZED_CONV
        size = (n, height * self.times, width * self.times, self.filters)
        return sketch.graph(sketch.node(op, (source,), size, attributes, DType.INT32))


def _window(kernel: int) -> Window:
    return Window((kernel, kernel), (1, 1), pads=(kernel // 2, kernel // 2))


def _pooled(sketch: _Sketch, source: int, conv: ConvAttributes, shape: Shape4, size: int) -> int:
    """Add a convolution and a maximum pool with adjacent windows."""
    pool = PoolAttributes(Window((size, size), (size, size)))
    attributes = PooledConvAttributes(conv, (), shape, sketch.value(shape), pool)
    n, height, width, channels = shape
    pooled = (n, height // size, width // size, channels)
    return sketch.node(POOLED_CONV, (source,), pooled, attributes, DType.FLOAT32)


def _inverted(sketch: _Sketch, source: int, channels: int, filters: int) -> int:
    """Add a fused inverted residual block (3x3) as one node, whose input is stored as half."""
    n, height, width, depth = sketch.values[source].shape
    source = sketch.node(COPY, (source,), (n, height, width, depth), None, DType.FLOAT32)
    sketch.nodes[0] = replace(sketch.nodes[0], epilogue=(EpilogueOp("RELU"),))
    bounded, size = (EpilogueOp("RELU6"),), (n, height, width, channels)
    shape = (channels, 1, 1, depth)
    weights = sketch.floats(*shape)
    first = ConvAttributes(POINT, weights, sketch.floats(channels), shape)
    expand = ExpandOperand(first, bounded, size, sketch.value(size))
    taps = DepthwiseAttributes(_window(3), sketch.floats(1, 3, 3, channels), ABSENT)
    depthwise = DepthwiseOperand(taps, bounded, size, sketch.value(size), expand)
    shape = (filters, 1, 1, channels)
    weights, bias = sketch.floats(*shape), sketch.floats(filters)
    attributes = ConvAttributes(POINT, weights, bias, shape, depthwise=depthwise)
    size = (n, height, width, filters)
    return sketch.node("CONV_2D", (source,), size, attributes, DType.FLOAT32)


def _depthwise(sketch: _Sketch, source: int, kernel: int) -> int:
    n, height, width, channels = sketch.values[source].shape
    weights = sketch.floats(1, kernel, kernel, channels)
    attributes = DepthwiseAttributes(_window(kernel), weights, ABSENT)
    size = (n, height, width, channels)
    return sketch.node("DEPTHWISE_CONV_2D", (source,), size, attributes, DType.FLOAT32)
