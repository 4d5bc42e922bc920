"""A rejected node: plain data that becomes a graph of this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cases.base import Shape
from litegpu.graph import ABSENT, Blockwise, DType, Graph, Node, Quantization, Value


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An operand: computed unless it has `data` (which is repeated to fill the shape)."""

    shape: Shape
    dtype: DType = DType.FLOAT32
    data: Any = None
    variable: bool = False
    quantization: Quantization | None = None
    sparse: bool = False
    block: int = 0
    """Elements of a row that share a scale, in place of a `quantization`."""

    def value(self, number: int) -> Value:
        """Return it as a value of a graph."""
        data = None if self.data is None else np.resize(self.data, self.shape)
        # Of a few bits, too, constants are arrays of bytes.
        stored = "int8" if self.dtype.packed_bits else self.dtype.value
        array = None if data is None else data.astype(stored)
        blockwise = None
        if self.block:
            scales = np.ones((self.shape[0], self.shape[1] // self.block), np.float16)
            blockwise = Blockwise(scales, self.block)
        return Value(
            number,
            f"v{number}",
            self.shape,
            self.dtype,
            array,
            self.variable,
            self.quantization,
            is_sparse=self.sparse,
            blockwise=blockwise,
        )


@dataclass(frozen=True)
class Rejected:
    """One node: its op, operands and parameters, and why it cannot run on a GPU.

    `same` maps the positions of inputs to those of which they are the very tensor.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    reason: str
    params: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    outputs: int = 1
    result: DType = DType.FLOAT32
    same: Mapping[int, int] = field(default_factory=dict)
    custom: bytes = b""
    quantization: Quantization | None = None
    """That of the results."""
    graphs: tuple[Graph, ...] = ()

    def graph(self) -> Graph:
        """Return a graph of this node alone."""
        values = [each.value(i) for i, each in enumerate(self.inputs) if each is not None]
        results = range(len(self.inputs), len(self.inputs) + self.outputs)
        values += [
            Value(i, f"v{i}", (1,), self.result, quantization=self.quantization) for i in results
        ]
        inputs = tuple(
            ABSENT if each is None else self.same.get(i, i) for i, each in enumerate(self.inputs)
        )
        params = {**_PARAMS.get(self.op, {}), **self.params}
        node = Node(
            *(0, self.op, self.version, inputs, tuple(results), params, self.custom),
            graphs=self.graphs,
        )
        return Graph({value.id: value for value in values}, (node,), (), tuple(results))


_WINDOW = {"padding": "same", "stride_height": 1, "stride_width": 1, "activation": "none"}
_DILATED = {**_WINDOW, "dilation_height_factor": 1, "dilation_width_factor": 1}
_DEEP = {**_DILATED, "stride_depth": 1, "dilation_depth_factor": 1}
_POOL = {**_WINDOW, "filter_height": 2, "filter_width": 2}
_PARAMS: Mapping[str, Mapping[str, Any]] = {
    "AVERAGE_POOL_2D": _POOL,
    "BATCH_MATMUL": {"adj_x": False, "adj_y": False},
    "CONCATENATION": {"axis": 3, "activation": "none"},
    "CONV_2D": _DILATED,
    "CONV_3D": _DEEP,
    "CONV_3D_TRANSPOSE": _DEEP,
    "DEPTHWISE_CONV_2D": _DILATED,
    "FULLY_CONNECTED": {"activation": "none", "weights_format": 0, "keep_num_dims": False},
    "LSTM": {"activation": "tanh", "cell_clip": 0.0, "proj_clip": 0.0, "kernel_type": 1},
    "MAX_POOL_2D": _POOL,
    "MEAN": {"keep_dims": False},
    "RESIZE_BILINEAR": {"align_corners": False, "half_pixel_centers": False},
    "SOFTMAX": {"beta": 1.0},
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {
        **{"activation": "tanh", "cell_clip": 0.0, "proj_clip": 0.0},
        "time_major": False,
    },
    "TRANSPOSE_CONV": {**_WINDOW, "stride_height": 2, "stride_width": 2},
}


def computed(*shape: int) -> Tensor:
    """Return an operand that an operation before makes."""
    return Tensor(shape=shape)


def floats(*shape: int) -> Tensor:
    """Return a constant float32 operand."""
    return Tensor(shape=shape, data=0.5)


def integers(*data: Any) -> Tensor:
    """Return a constant int32 operand."""
    return Tensor(shape=np.shape(data), dtype=DType.INT32, data=data)


IMAGE = computed(1, 5, 4, 6)
FILTER, BIAS = floats(8, 3, 3, 6), floats(8)
CONV = (IMAGE, FILTER, BIAS)
INT8 = Tensor(shape=(1, 5, 4, 6), dtype=DType.INT8)
