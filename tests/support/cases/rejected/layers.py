"""Rejected convolutions, dense layers, pools and the like."""

from __future__ import annotations

import math

from cases.rejected.base import (
    BIAS,
    CONV,
    FILTER,
    IMAGE,
    INT8,
    Rejected,
    Tensor,
    computed,
    floats,
    integers,
)
from litegpu.graph import DType

_SHAPE, _TAPS = integers(1, 10, 8, 3), floats(3, 3, 3, 6)

CASES = (
    Rejected(
        "LOCAL_RESPONSE_NORMALIZATION",
        (computed(4, 5),),
        "A radius of 2 in [4, 5] is not supported.",
        params={"radius": 2, "bias": 1.0, "alpha": 1.0, "beta": 0.5},
    ),
    Rejected("CONV_2D", (IMAGE, None, BIAS), "The filter (input 1) is missing."),
    Rejected(
        "CONV_2D",
        (floats(1, 5, 4, 6), computed(8, 3, 3, 6)),
        "The input (input 0) is constant; only computed ones are supported.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, Tensor(shape=(8, 3, 3, 6), dtype=DType.INT8, data=1), BIAS),
        "The filter (input 1) is INT8 instead of FLOAT16 or FLOAT32.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, FILTER, Tensor(shape=(8,), dtype=DType.INT32, data=1)),
        "The bias (input 2) is INT32 instead of FLOAT16 or FLOAT32.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, FILTER, floats(7)),
        "bias.size != output.c: a bias of [7] for 8 output channels.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, FILTER, computed(8, 1)),
        "bias.size != output.c: a bias of [8, 1] for 8 output channels.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, Tensor(shape=(8, 3, 3, 6), dtype=DType.INT8)),
        "OP is supported, but tensor type/shape isn't compatible: tensor 1 is INT8 "
        "instead of FLOAT32.",
    ),
    Rejected(
        "CONV_2D",
        (computed(5, 4, 6), FILTER),
        "Input [5, 4, 6] and filter [8, 3, 3, 6] must have 4 dimensions.",
    ),
    Rejected(
        "CONV_2D",
        (IMAGE, floats(8, 3, 3, 4)),
        "6 input channels and a filter of [8, 3, 3, 4] do not form groups.",
    ),
    Rejected(
        "CONV_2D",
        CONV,
        params={"stride_width": 0},
        reason="Incorrect stride values: stride_height = 1, stride_width = 0",
    ),
    Rejected(
        "CONV_2D",
        CONV,
        params={"dilation_width_factor": 1 << 15},
        reason="Incorrect dilation values: dilation_height = 1, dilation_width = 32768",
    ),
    Rejected(
        "CONV_2D",
        CONV,
        params={"dilation_height_factor": 0},
        reason="Incorrect dilation values: dilation_height = 0, dilation_width = 1",
    ),
    Rejected("CONV_2D", CONV, params={"padding": "unknown"}, reason="Unknown padding: unknown"),
    Rejected(
        "CONV_2D",
        (IMAGE, floats(8, 3, 5, 6)),
        params={"padding": "valid"},
        reason="The (3, 5) window does not fit into the (5, 4) image.",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (computed(5, 4, 6), floats(1, 3, 3, 6)),
        "input.dims.size != 4: it has the shape [5, 4, 6].",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (IMAGE, floats(3, 3, 6)),
        "filter.dims.size != 4: it has the shape [3, 3, 6].",
    ),
    Rejected(
        "DEPTHWISE_CONV_2D",
        (IMAGE, floats(1, 3, 3, 8)),
        "A filter of [1, 3, 3, 8] does not match 6 input channels.",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (computed(2, 6), floats(4, 6)),
        params={"weights_format": 1},
        reason="Unsupported FullyConnected weights format: 1",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (computed(2, 6), floats(4, 1, 6)),
        "The weights must have 2 dimensions, not [4, 1, 6].",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (computed(2, 6), floats(4, 5)),
        "The input [2, 6] is not divisible into rows of 5 elements.",
    ),
    Rejected(
        "FULLY_CONNECTED",
        (computed(2, 6), floats(4, 3)),
        params={"keep_num_dims": True},
        reason="Amount of input channels should match weights width: "
        "[2, 6] and [4, 3] (keep_num_dims).",
    ),
    Rejected(
        "AVERAGE_POOL_2D", (computed(5, 4, 6),), "The input must have 4 dimensions, not [5, 4, 6]."
    ),
    Rejected(
        "MAX_POOL_2D",
        (IMAGE,),
        params={"filter_height": 0},
        reason="Incorrect kernel values: kernel_height = 0, kernel_width = 2",
    ),
    Rejected(
        "SOFTMAX", (computed(),), "The input is a scalar; softmax needs at least 1 dimension."
    ),
    Rejected("SOFTMAX", (IMAGE,), "beta = -3e+38 is beyond 1e+38.", params={"beta": -3e38}),
    Rejected("SOFTMAX", (IMAGE,), "beta = nan is beyond 1e+38.", params={"beta": math.nan}),
    Rejected(
        "DENSIFY",
        (computed(3, 4),),
        "Only constants are expanded; the input is computed, invalid or too large.",
    ),
    Rejected(
        "DENSIFY",
        (floats(3, 4),),
        "The result is INT8, of a constant of FLOAT32.",
        result=DType.INT8,
    ),
    Rejected("DEQUANTIZE", (INT8,), "Only float16 constants are dequantized; the input is INT8."),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, _TAPS),
        "Expected 3 to 4 inputs, but node has 2 inputs.",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (Tensor(shape=(4,), dtype=DType.INT32), _TAPS, IMAGE),
        "The output shape (input 0) must be constant, but it is computed at run time.",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, _TAPS, IMAGE),
        params={"activation": "sign_bit"},
        reason="Unsupported fused activation: sign_bit",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, _TAPS, IMAGE),
        version=6,
        reason="Max version supported: 5. Requested version 6.",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (integers(10, 8, 3), _TAPS, IMAGE),
        "Output shape [10, 8, 3], filter [3, 3, 3, 6], input [1, 5, 4, 6]: all must be 4-D.",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, floats(3, 3, 3, 5), IMAGE),
        "A filter of [3, 3, 3, 5] does not produce [1, 10, 8, 3] from [1, 5, 4, 6].",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, _TAPS, IMAGE, floats(2)),
        "bias.size != output.c: a bias of [2] for 3 output channels.",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (_SHAPE, _TAPS, IMAGE),
        params={"stride_height": 0},
        reason="Incorrect stride values: stride_height = 0, stride_width = 2",
    ),
    Rejected(
        "TRANSPOSE_CONV",
        (integers(1, 11, 8, 3), _TAPS, IMAGE),
        "The output shape [1, 11, 8, 3] does not belong to an input of [1, 5, 4, 6] with "
        "padding same: a convolution reduces it to [1, 6, 4, 6].",
    ),
    Rejected(
        "BATCH_MATMUL",
        (computed(4), computed(4, 5)),
        "Matrices must have 2 to 5 dimensions, not [4] and [4, 5].",
    ),
    Rejected(
        "BATCH_MATMUL",
        (computed(3, 4), computed(4, 5)),
        params={"adj_y": True},
        reason="Matrices of [3, 4] and [4, 5] (adj_x=False, adj_y=True) cannot be multiplied.",
    ),
    Rejected(
        "BATCH_MATMUL",
        (computed(2, 3, 4), computed(3, 4, 5)),
        "Matrices of [2, 3, 4] and [3, 4, 5] (adj_x=False, adj_y=False) cannot be multiplied.",
    ),
    Rejected(
        "BATCH_MATMUL",
        (computed(3, 4), Tensor(shape=(4, 5), dtype=DType.INT8, data=1)),
        "The matrix (input 1) is INT8 instead of FLOAT16 or FLOAT32.",
    ),
)
