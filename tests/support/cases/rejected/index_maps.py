"""Rejected elementwise operations, and operations that only move elements."""

from __future__ import annotations

from cases.rejected.base import (
    IMAGE,
    Rejected,
    Tensor,
    computed,
    floats,
    integers,
)
from litegpu.graph import DType, Quantization

SIZE = integers(9, 7)
_UNSIGNED = Tensor(shape=(4,), dtype=DType.UINT32)
SCALED = Tensor(shape=(4,), dtype=DType.INT8, quantization=Quantization((0.5,), (0,), 0))
BOUNDS = (integers(0, 0), integers(2, 3), integers(1, 1))

CASES = (
    Rejected(
        "PRELU",
        (computed(3, 6), floats(2, 1, 6)),
        "Slopes of [2,1,6] do not fit an input of [3,6].",
    ),
    Rejected(
        "CONCATENATION",
        (IMAGE, IMAGE),
        params={"axis": 4},
        reason="Index for axis out of range: 4 with 4 dimensions.",
    ),
    Rejected(
        "CONCATENATION",
        (IMAGE, computed(1, 5, 3, 6)),
        "The shapes [[1, 5, 4, 6], [1, 5, 3, 6]] cannot be concatenated along axis 3.",
    ),
    Rejected(
        "CONCATENATION",
        (IMAGE, computed(5, 4, 6)),
        "The shapes [[1, 5, 4, 6], [5, 4, 6]] cannot be concatenated along axis 3.",
    ),
    Rejected(
        "CONCATENATION",
        (IMAGE, Tensor(shape=(1, 5, 4, 6), dtype=DType.UINT16, data=1)),
        "The operands have different types: FLOAT32, UINT16.",
    ),
    Rejected("PAD", (IMAGE, None), "The paddings (input 1) is missing."),
    Rejected(
        "PAD",
        (IMAGE, Tensor(shape=(4, 2), dtype=DType.INT32)),
        "Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
    ),
    Rejected(
        "PAD",
        (floats(2, 3), Tensor(shape=(2, 2), dtype=DType.INT32)),
        "The paddings (input 1) must be constant, but it is computed at run time.",
    ),
    Rejected(
        "PAD",
        (IMAGE, floats(4, 2)),
        "The paddings (input 1) is FLOAT32 instead of INT16, INT32, INT64 or INT8.",
    ),
    Rejected(
        "PAD",
        (IMAGE, integers((1, 1), (2, 2), (0, 0))),
        "Invalid paddings tensor shape: expected 4x2, got 3x2",
    ),
    Rejected(
        "PAD",
        (computed(3, 2), integers((0, -1), (0, 0))),
        "The paddings [(0, -1), (0, 0)] must not be negative.",
    ),
    Rejected(
        "PADV2",
        (computed(3, 2), integers((0, 1), (0, 0)), integers(7)),
        "The operands have different types: FLOAT32, INT32.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), integers(0), integers(2, 3), integers(1, 1)),
        "begin, end and strides have [1, 2, 2] entries for 2 dimensions.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4), *BOUNDS),
        "begin, end and strides have [2, 2, 2] entries for 1 dimensions.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), *BOUNDS[:2], integers(1, 0)),
        "stride values must be non-zero, not [1, 0].",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), integers(2, 0), *BOUNDS[1:]),
        "The slice from [2, 0] to [2, 3] with strides [1, 1] is empty.",
    ),
    Rejected(
        "RESHAPE",
        (computed(2, 3), Tensor(shape=(2,), dtype=DType.INT64, data=3)),
        "The new shape is neither a constant nor a parameter of the node.",
    ),
    Rejected(
        "RESHAPE",
        (computed(2, 3), Tensor(shape=(1, 2), dtype=DType.INT32, data=(3, 2))),
        "The new shape is neither a constant nor a parameter of the node.",
    ),
    Rejected("RESHAPE", (computed(2, 3), integers(4, -1)), "[2, 3] cannot be reshaped to [4, -1]."),
    Rejected(
        "RESHAPE", (computed(2, 3), integers(-1, -1)), "[2, 3] cannot be reshaped to [-1, -1]."
    ),
    Rejected(
        "RESHAPE",
        (computed(2, 3),),
        params={"shape": (3, 1)},
        reason="[2, 3] cannot be reshaped to [3, 1].",
    ),
    Rejected(
        "SQUEEZE",
        (computed(1, 3),),
        params={"squeeze_dims": (0, 1)},
        reason="The dimensions [0, 1] of [1, 3] are not all 1.",
    ),
    Rejected(
        "SQUEEZE",
        (computed(1, 3),),
        params={"squeeze_dims": (2,)},
        reason="The dimensions [2] of [1, 3] are not all 1.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (IMAGE, integers(9, 7, 3)),
        "Input [1, 5, 4, 6] and size [9, 7, 3] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (computed(5, 4, 6), SIZE),
        "Input [5, 4, 6] and size [9, 7] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (IMAGE, integers(0, 7)),
        "Input [1, 5, 4, 6] and size [0, 7] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_BILINEAR",
        (IMAGE, SIZE),
        params={"align_corners": True, "half_pixel_centers": True},
        reason="If half_pixel_centers is True, align_corners must be False.",
    ),
    Rejected(
        "ADD",
        (computed(2, 3), computed(4)),
        "Doesn't support broadcasting - input0: [2,3], input1: [4]",
    ),
    Rejected(
        "STABLEHLO_ADD",
        (computed(2, 3), computed(3)),
        "The operands have different shapes, [2, 3] and [3].",
    ),
    Rejected(
        "MUL",
        (_UNSIGNED, _UNSIGNED),
        "The CPU ignores the fused activation relu of integers.",
        params={"activation": "relu"},
        result=DType.UINT32,
    ),
    Rejected(
        "MUL",
        (computed(2, 3), integers(1, 2, 3)),
        "The operands have different types: FLOAT32, INT32.",
    ),
)
