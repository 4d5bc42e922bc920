"""Rejected operations on integers and truth values."""

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
        "ADD", (_tensor(2, 3), computed(2, 3)), _WRONG_TYPE + "0 is INT32, FLOAT32 is handled."
    ),
    Rejected(
        "RESHAPE",
        (_tensor(2, 3), integers(3, 2)),
        "tensor 0 is INT32 and may hold numbers beyond 2^24, which a device would round.",
        result=DType.INT32,
    ),
    Rejected(
        "TRANSPOSE",
        (_tensor(2, 3, dtype=DType.BOOL), integers(1, 0)),
        _WRONG_TYPE + "2 is FLOAT32, BOOL is handled.",
    ),
    Rejected("LESS", (computed(2), computed(2)), _WRONG_TYPE + "2 is FLOAT32, BOOL is handled."),
    Rejected(
        "EQUAL",
        (computed(2), _constant(_LARGE)),
        "The operand (input 1) holds integers that a device would round.",
        result=DType.BOOL,
    ),
    Rejected(
        "LOGICAL_AND",
        (_tensor(2, dtype=DType.BOOL), integers(1, 0)),
        "The operand (input 1) is INT32; float32 or float16 is needed.",
        result=DType.BOOL,
    ),
    Rejected(
        "CAST",
        (_tensor(2),),
        "Not supported Cast case. Input type: INT32 and output type: INT64, for the integers may "
        "be larger than a device holds exactly.",
        result=DType.INT64,
    ),
    Rejected(
        "CAST",
        (computed(2),),
        _WRONG_TYPE + "1 is INT16, BOOL or FLOAT32 or INT32 or INT64 is handled.",
        result=DType.INT16,
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
        reason="The indices (input 1) is FLOAT32; int32 or int64 is needed.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), integers(4), computed(1), floats(1)),
        params={"axis": -1},
        reason="Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), integers(4, 5), floats(1), floats(1)),
        params={"axis": -1},
        reason="Depth, on and off must be constant scalars.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3), _constant(4), _constant(_LARGE), _constant(0)),
        params={"axis": -1},
        reason="On and off are integers that a device would round.",
        result=DType.INT32,
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
        reason=f"A depth of {1 << 21} is not handled.",
    ),
    Rejected(
        "ONE_HOT",
        (_tensor(3, 2), _constant(0), floats(), floats()),
        params={"axis": -1},
        reason="A depth of 0 is not handled.",
    ),
    Rejected("ARG_MAX", (IMAGE, _constant(4)), "Index for axis out of range: 4 with 4 dimensions."),
    Rejected(
        "ARG_MIN",
        (computed(_LARGE), _constant(0)),
        f"{_LARGE} elements along an axis are more than 2^24.",
        result=DType.INT32,
    ),
    Rejected(
        "ADD_N", (computed(2, 3), computed(3, 2)), "The shapes [[2, 3], [3, 2]] are not equal."
    ),
)
