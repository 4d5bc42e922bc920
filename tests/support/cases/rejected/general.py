"""Nodes that no operation accepts: types, sizes, counts and versions."""

from __future__ import annotations

from cases.rejected.base import (
    CONV,
    IMAGE,
    INT8,
    Rejected,
    Tensor,
    computed,
    floats,
)

_WRONG_TYPE = "OP is supported, but tensor type/shape isn't compatible: tensor "

CASES = (
    Rejected("CONV_2D", CONV, version=9, reason="Max version supported: 8. Requested version 9."),
    Rejected(
        "ADD",
        (floats(6), floats(6)),
        "Expected 1 or 2 runtime input tensor(s), but node has 0 runtime input(s).",
    ),
    Rejected(
        "ABS", (IMAGE,), outputs=2, reason="Expected 1 output tensor(s), but node has 2 output(s)."
    ),
    Rejected("ABS", (IMAGE, IMAGE), "Expected 1 inputs, but node has 2 inputs."),
    Rejected("CONV_2D", (IMAGE,), "Expected 2 to 3 inputs, but node has 1 inputs."),
    Rejected("DEQUANTIZE", (), "Expected 1 inputs, but node has 0 inputs."),
    Rejected(
        "MAX_POOL_2D",
        (IMAGE,),
        params={"activation": "sign_bit"},
        reason="Unsupported fused activation: sign_bit",
    ),
    Rejected(
        "RELU",
        (computed(1, 1, 1, 1, 1, 1, 2, 3, 4),),
        _WRONG_TYPE + "0 has 9 dimensions, at most 8 are supported.",
    ),
    Rejected(
        "RELU",
        (computed(1, 0, 4, 3),),
        "tensor 0 has no elements or an unknown size: [1, 0, 4, 3].",
    ),
    Rejected(
        "RELU",
        (computed(1, 1 << 14, 1 << 14, 4),),
        "tensor 0 has 1073741824 elements, too many to index.",
    ),
    Rejected("RELU", (INT8,), _WRONG_TYPE + "0 is INT8 instead of FLOAT32."),
    Rejected(
        "RELU",
        (Tensor(shape=(2, 3), variable=True),),
        "tensor 0 is a variable tensor, whose state is on the CPU.",
    ),
)
