"""Nodes that stay on the CPU, and the reason that is given for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cases.base import Shape
from litegpu.graph import ABSENT, DType, Graph, Node, Value


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An operand: computed unless it has `data` (which is repeated to fill the shape)."""

    shape: Shape
    dtype: DType = DType.FLOAT32
    data: Any = None
    variable: bool = False

    def value(self, number: int) -> Value:
        """Return it as a value of a graph."""
        data = None if self.data is None else np.resize(self.data, self.shape)
        held = None if data is None else data.astype(self.dtype.value)
        return Value(number, f"v{number}", self.shape, self.dtype, held, self.variable)


@dataclass(frozen=True)
class Rejected:
    """One node: its op, operands and parameters, and why it cannot run on a GPU."""

    op: str
    inputs: tuple[Tensor | None, ...]
    reason: str
    params: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    outputs: int = 1

    def graph(self) -> Graph:
        """Return a graph of this node alone."""
        values = [each.value(i) for i, each in enumerate(self.inputs) if each is not None]
        results = range(len(self.inputs), len(self.inputs) + self.outputs)
        values += [Value(i, f"v{i}", (1,), DType.FLOAT32) for i in results]
        inputs = tuple(ABSENT if each is None else i for i, each in enumerate(self.inputs))
        params = {**_PARAMS.get(self.op, {}), **self.params}
        node = Node(0, self.op, self.version, inputs, tuple(results), params)
        return Graph({value.id: value for value in values}, (node,), (), tuple(results))


_WINDOW = {"padding": "same", "stride_height": 1, "stride_width": 1, "activation": "none"}
_DILATED = {**_WINDOW, "dilation_height_factor": 1, "dilation_width_factor": 1}
_POOL = {**_WINDOW, "filter_height": 2, "filter_width": 2}
_PARAMS: Mapping[str, Mapping[str, Any]] = {
    "AVERAGE_POOL_2D": _POOL,
    "CONCATENATION": {"axis": 3, "activation": "none"},
    "CONV_2D": _DILATED,
    "DEPTHWISE_CONV_2D": _DILATED,
    "FULLY_CONNECTED": {"activation": "none", "weights_format": 0, "keep_num_dims": False},
    "MAX_POOL_2D": _POOL,
    "MEAN": {"keep_dims": False},
    "RESIZE_BILINEAR": {"align_corners": False, "half_pixel_centers": False},
    "SOFTMAX": {"beta": 1.0},
}


def _computed(*shape: int) -> Tensor:
    return Tensor(shape=shape)


def _floats(*shape: int) -> Tensor:
    return Tensor(shape=shape, data=0.5)


def _integers(*data: Any) -> Tensor:
    return Tensor(shape=np.shape(data), dtype=DType.INT32, data=data)


_IMAGE = _computed(1, 5, 4, 6)
_FILTER, _BIAS = _floats(8, 3, 3, 6), _floats(8)
_CONV = (_IMAGE, _FILTER, _BIAS)
_SIZE = _integers(9, 7)
_BOUNDS = (_integers(0, 0), _integers(2, 3), _integers(1, 1))
_INT8 = Tensor(shape=(1, 5, 4, 6), dtype=DType.INT8)
_WRONG_TYPE = "OP is supported, but tensor type/shape isn't compatible: tensor "

GENERAL = (
    Rejected("CONV_2D", _CONV, version=9, reason="Max version supported: 6. Requested version 9."),
    Rejected(
        "CONV_2D",
        (_IMAGE, _computed(8, 3, 3, 6), _BIAS),
        "Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
    ),
    Rejected(
        "ADD",
        (_floats(6), _floats(6)),
        "Expected 1 or 2 runtime input tensor(s), but node has 0 runtime input(s).",
    ),
    Rejected(
        "RESHAPE",
        (_floats(6), _integers(2, 3)),
        "Expected 1 runtime input tensor(s), but node has 0 runtime input(s).",
    ),
    Rejected(
        "ABS", (_IMAGE,), outputs=2, reason="Expected 1 output tensor(s), but node has 2 output(s)."
    ),
    Rejected("ABS", (_IMAGE, _IMAGE), "Expected 1 inputs, but node has 2 inputs."),
    Rejected("CONV_2D", (_IMAGE,), "Expected 2 to 3 inputs, but node has 1 inputs."),
    Rejected("DEQUANTIZE", (), "Expected 1 inputs, but node has 0 inputs."),
    Rejected(
        "MAX_POOL_2D",
        (_IMAGE,),
        params={"activation": "sign_bit"},
        reason="Unsupported fused activation: sign_bit",
    ),
    Rejected(
        "RELU",
        (_computed(1, 1, 2, 3, 4),),
        _WRONG_TYPE + "0 has 5 dimensions, at most 4 are handled.",
    ),
    Rejected(
        "RELU",
        (_computed(1, 0, 4, 3),),
        "tensor 0 has no elements or an unknown size: [1, 0, 4, 3].",
    ),
    Rejected(
        "RELU",
        (_computed(1, 1 << 14, 1 << 14, 4),),
        "tensor 0 has 1073741824 elements, too many to index.",
    ),
    Rejected("RELU", (_INT8,), _WRONG_TYPE + "0 is INT8, FLOAT32 is handled."),
    Rejected(
        "RELU",
        (Tensor(shape=(2, 3), variable=True),),
        "tensor 0 is a variable tensor, whose state lives on the CPU.",
    ),
)

LAYERS = (
    Rejected("CONV_2D", (_IMAGE, None, _BIAS), "The filter (input 1) is missing."),
    Rejected(
        "CONV_2D",
        (_floats(1, 5, 4, 6), _computed(8, 3, 3, 6)),
        "The filter (input 1) must be constant, but it is computed at run time.",
    ),
    Rejected(
        "CONV_2D",
        (_IMAGE, Tensor(shape=(8, 3, 3, 6), dtype=DType.INT8, data=1), _BIAS),
        "The filter (input 1) is INT8; float32 or float16 is needed.",
    ),
    Rejected(
        "CONV_2D",
        (_IMAGE, _FILTER, Tensor(shape=(8,), dtype=DType.INT32, data=1)),
        "The bias (input 2) is INT32; float32 or float16 is needed.",
    ),
    Rejected(
        "CONV_2D",
        (_IMAGE, _FILTER, _floats(7)),
        "bias.size != output.c: 7 values for 8 output channels.",
    ),
    Rejected(
        "CONV_2D",
        (_computed(5, 4, 6), _FILTER),
        "Input [5, 4, 6] and filter [8, 3, 3, 6] must have 4 dimensions.",
    ),
    Rejected(
        "CONV_2D",
        (_IMAGE, _floats(8, 3, 3, 4)),
        "6 input channels and a filter of [8, 3, 3, 4] do not form groups.",
    ),
    Rejected(
        "CONV_2D",
        _CONV,
        params={"stride_width": 0},
        reason="Incorrect stride values: stride_height = 1, stride_width = 0",
    ),
    Rejected(
        "CONV_2D",
        _CONV,
        params={"dilation_height_factor": 0},
        reason="Incorrect dilation values: dilation_height = 0, dilation_width = 1",
    ),
    Rejected("CONV_2D", _CONV, params={"padding": "unknown"}, reason="Unknown padding: unknown"),
    Rejected(
        "CONV_2D",
        (_IMAGE, _floats(8, 3, 5, 6)),
        params={"padding": "valid"},
        reason="The (3, 5) window does not fit into the (5, 4) image.",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (_computed(5, 4, 6), _floats(1, 3, 3, 6)),
        "input.dims.size != 4: it has the shape [5, 4, 6].",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (_IMAGE, _floats(3, 3, 6)),
        "filter.dims.size != 4: it has the shape [3, 3, 6].",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (_IMAGE, _floats(1, 3, 3, 8)),
        "A filter of [1, 3, 3, 8] does not match 6 input channels.",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (_computed(2, 6), _floats(4, 6)),
        params={"weights_format": 1},
        reason="Unsupported FullyConnected weights format: 1",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (_computed(2, 6), _floats(4, 1, 6)),
        "The weights must have 2 dimensions, not [4, 1, 6].",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (_computed(2, 6), _floats(4, 5)),
        "Input [2, 6] does not divide into rows of 5.",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (_computed(2, 6), _floats(4, 3)),
        params={"keep_num_dims": True},
        reason="Amount of input channels should match weights width: "
        "[2, 6] and [4, 3] (keep_num_dims).",
    ),
    Rejected(
        "MEAN",
        (_IMAGE, _integers(1, 4)),
        "Index for axis out of range: [1, 4] with 4 dimensions.",
    ),
    Rejected(
        "MEAN",
        (_IMAGE, _integers(3)),
        "MEAN over axes [3] of [1, 5, 4, 6]: only height and width are averaged.",
    ),
    Rejected(
        "AVERAGE_POOL_2D", (_computed(5, 4, 6),), "The input must have 4 dimensions, not [5, 4, 6]."
    ),
    Rejected(
        "MAX_POOL_2D",
        (_IMAGE,),
        params={"filter_height": 0},
        reason="Incorrect kernel values: kernel_height = 0, kernel_width = 2",
    ),
    Rejected(
        "SOFTMAX", (_computed(),), "The input is a scalar; softmax needs at least 1 dimension."
    ),
    Rejected("DEQUANTIZE", (_INT8,), "Only float16 constants are dequantized; the input is INT8."),
)

MOVES = (
    Rejected(
        "CONCATENATION",
        (_IMAGE, _IMAGE),
        params={"axis": 4},
        reason="Index for axis out of range: 4 with 4 dimensions.",
    ),
    Rejected(
        "CONCATENATION",
        (_IMAGE, _computed(1, 5, 3, 6)),
        "The shapes [[1, 5, 4, 6], [1, 5, 3, 6]] do not join along axis 3.",
    ),
    Rejected(
        "CONCATENATION",
        (_IMAGE, _computed(5, 4, 6)),
        "The shapes [[1, 5, 4, 6], [5, 4, 6]] do not join along axis 3.",
    ),
    Rejected(
        "CONCATENATION",
        (_IMAGE, Tensor(shape=(1, 5, 4, 6), dtype=DType.INT8, data=1)),
        "The part (input 1) is INT8; float32 or float16 is needed.",
    ),
    Rejected("PAD", (_IMAGE, None), "The paddings (input 1) is missing."),
    Rejected(
        "PAD",
        (_IMAGE, Tensor(shape=(4, 2), dtype=DType.INT32)),
        "Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
    ),
    Rejected(
        "PAD",
        (_floats(2, 3), Tensor(shape=(2, 2), dtype=DType.INT32)),
        "The paddings (input 1) must be constant, but it is computed at run time.",
    ),
    Rejected(
        "PAD",
        (_IMAGE, _floats(4, 2)),
        "The paddings (input 1) is FLOAT32; int32 or int64 is needed.",
    ),
    Rejected(
        "PAD",
        (_IMAGE, _integers((1, 1), (2, 2), (0, 0))),
        "Invalid paddings tensor shape: expected 4x2, got 3x2",
    ),
    Rejected(
        "PAD",
        (_computed(3, 2), _integers((0, -1), (0, 0))),
        "The paddings [(0, -1), (0, 0)] must not be negative.",
    ),
    Rejected(
        "PADV2",
        (_computed(3, 2), _integers((0, 1), (0, 0)), _integers(7)),
        "The padding value (input 2) is INT32; float32 or float16 is needed.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (_computed(4, 5), *_BOUNDS),
        params={"ellipsis_mask": 1},
        reason="StridedSlice does not support ellipsis_mask.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (_computed(4, 5), *_BOUNDS),
        params={"new_axis_mask": 2},
        reason="StridedSlice does not support new_axis_mask.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (_computed(4, 5), _integers(0), _integers(2, 3), _integers(1, 1)),
        "begin, end and strides have [1, 2, 2] entries for 2 dimensions.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (_computed(4), *_BOUNDS),
        "begin, end and strides have [2, 2, 2] entries for 1 dimensions.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (_computed(4, 5), *_BOUNDS[:2], _integers(1, 0)),
        "stride values must be non-zero",
    ),
    Rejected(
        "STRIDED_SLICE", (_computed(4, 5), _integers(2, 0), *_BOUNDS[1:]), "The slice is empty."
    ),
    Rejected(
        "RESHAPE",
        (_computed(2, 3), Tensor(shape=(2,), dtype=DType.INT64, data=3)),
        "The new shape is neither a constant tensor nor a parameter of the node.",
    ),
    Rejected(
        "RESHAPE", (_computed(2, 3), _integers(4, -1)), "[2, 3] cannot be reshaped to [4, -1]."
    ),
    Rejected(
        "RESHAPE", (_computed(2, 3), _integers(-1, -1)), "[2, 3] cannot be reshaped to [-1, -1]."
    ),
    Rejected(
        "RESHAPE",
        (_computed(2, 3),),
        params={"shape": (3, 1)},
        reason="[2, 3] cannot be reshaped to [3, 1].",
    ),
    Rejected(
        "SQUEEZE",
        (_computed(1, 3),),
        params={"squeeze_dims": (0, 1)},
        reason="The dimensions [0, 1] of [1, 3] are not all 1.",
    ),
    Rejected(
        "SQUEEZE",
        (_computed(1, 3),),
        params={"squeeze_dims": (2,)},
        reason="The dimensions [2] of [1, 3] are not all 1.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (_IMAGE, _integers(9, 7, 3)),
        "Input [1, 5, 4, 6] and size [9, 7, 3] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (_computed(5, 4, 6), _SIZE),
        "Input [5, 4, 6] and size [9, 7] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (_IMAGE, _integers(0, 7)),
        "Input [1, 5, 4, 6] and size [0, 7] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (_IMAGE, _SIZE),
        params={"align_corners": True, "half_pixel_centers": True},
        reason="If half_pixel_centers is True, align_corners must be False.",
    ),
    Rejected(
        "ADD",
        (_computed(2, 3), _computed(4)),
        "Doesn't support broadcasting - input0: [2,3], input1: [4]",
    ),
    Rejected(
        "MUL",
        (_computed(2, 3), _integers(1, 2, 3)),
        "The operand (input 1) is INT32; float32 or float16 is needed.",
    ),
)

CASES: tuple[Rejected, ...] = (*GENERAL, *LAYERS, *MOVES)
