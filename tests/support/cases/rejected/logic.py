"""Rejected operations on integers and bools."""

from __future__ import annotations

from cases.rejected.base import IMAGE, Rejected, Tensor, computed, floats, integers
from litegpu.graph import DType

_WRONG_TYPE = "OP is supported, but tensor type/shape isn't compatible: tensor "
_LARGE = (1 << 24) + 1


def _tensor(*shape: int, dtype: DType = DType.INT32) -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def _constant(data: int, dtype: DType = DType.INT32) -> Tensor:
    return Tensor(shape=(), dtype=dtype, data=data)


CASES = (
    Rejected(
        "ADD",
        (_tensor(2, 3), computed(2, 3)),
        "The operands have different types: FLOAT32, INT32.",
    ),
    Rejected(
        "MUL",
        (_tensor(2, 3), _tensor(2, 3)),
        "The CPU ignores the fused activation tanh of integers.",
        params={"activation": "tanh"},
        result=DType.INT32,
    ),
    Rejected(
        "FLOOR_DIV",
        (_tensor(2, dtype=DType.INT64), _tensor(2, dtype=DType.INT64)),
        _WRONG_TYPE + "0 is INT64 instead of FLOAT32, INT16, INT32 or INT8.",
        result=DType.INT64,
    ),
    Rejected(
        "NEG",
        (_tensor(2, dtype=DType.UINT8),),
        _WRONG_TYPE + "0 is UINT8 instead of FLOAT16, FLOAT32, INT16, INT32, INT64 or INT8.",
        result=DType.INT16,
    ),
    Rejected("ABS", (_tensor(2),), _WRONG_TYPE + "1 is FLOAT32 instead of INT32."),
    Rejected(
        "TRANSPOSE",
        (_tensor(2, 3, dtype=DType.BOOL), integers(1, 0)),
        _WRONG_TYPE + "2 is FLOAT32 instead of BOOL.",
    ),
    Rejected("LESS", (computed(2), computed(2)), _WRONG_TYPE + "2 is FLOAT32 instead of BOOL."),
    Rejected(
        "EQUAL",
        (computed(2), _constant(_LARGE)),
        "The operands have different types: FLOAT32, INT32.",
        result=DType.BOOL,
    ),
    Rejected(
        "SELECT_V2",
        (_tensor(2, dtype=DType.BOOL), _tensor(2), _constant(1, DType.INT64)),
        "The operands have different types: INT32, INT64.",
        result=DType.INT32,
    ),
    Rejected(
        "LOGICAL_AND",
        (_tensor(2, dtype=DType.BOOL), integers(1, 0)),
        "The operand (input 1) is INT32 instead of BOOL, FLOAT16 or FLOAT32.",
        result=DType.BOOL,
    ),
    Rejected(
        "CAST",
        (computed(2),),
        _WRONG_TYPE
        + "1 is UINT64 instead of BOOL, COMPLEX64, FLOAT16, FLOAT32, INT16, INT32, INT64, INT8, "
        "UINT16, UINT32 or UINT8.",
        result=DType.UINT64,
    ),
    Rejected(
        "SELECT",
        (_tensor(3, dtype=DType.BOOL), computed(2, 3), computed(2, 3)),
        "SELECT needs equal shapes, not [[3], [2, 3], [2, 3]].",
    ),
    Rejected(
        "SELECT_V2",
        (_tensor(4, dtype=DType.BOOL), computed(2, 3), computed(2, 3)),
        "Doesn't support broadcasting - input0: [4], input1: [2,3], input2: [2,3]",
    ),
    Rejected(
        "GATHER",
        (computed(3, 2), floats(2)),
        params={"axis": 0},
        reason="The indices (input 1) is FLOAT32 instead of INT16, INT32 or INT64.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), integers(4), computed(1), floats(1)),
        params={"axis": -1},
        reason="Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3, dtype=DType.INT8), _constant(4), floats(1), floats(1)),
        params={"axis": -1},
        reason="The indices (input 0) is INT8 instead of INT32 or INT64.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), integers(4, 5), floats(1), floats(1)),
        params={"axis": -1},
        reason="Depth, on and off must be constant scalars.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), _constant(4), floats(1), floats(1)),
        params={"axis": -1},
        reason="On is FLOAT32, off FLOAT32, the result BOOL.",
        result=DType.BOOL,
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), _constant(1 << 21), floats(1), floats(1)),
        params={"axis": -1},
        reason=f"A depth of {1 << 21} is not supported.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3, 2), _constant(0), floats(), floats()),
        params={"axis": -1},
        reason="A depth of 0 is not supported.",
    ),
    Rejected("ARG_MAX", (IMAGE, _constant(4)), "Index for axis out of range: 4 with 4 dimensions."),
    Rejected(
        "ARG_MIN",
        (computed(_LARGE), _constant(0)),
        f"An axis has {_LARGE} elements, more than 2^24.",
        result=DType.INT32,
    ),
    Rejected(
        "ADD_N", (computed(2, 3), computed(3, 2)), "The shapes [[2, 3], [3, 2]] are not equal."
    ),
)
