"""Rejected operations that move elements by index arithmetic, or reduce along axes."""

from __future__ import annotations

from cases.rejected.base import IMAGE, Rejected, Tensor, computed, integers
from litegpu.graph import DType

CASES = (
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5, 6), *(integers(0, 0),) * 2, integers(1, 1)),
        params={"ellipsis_mask": 3},
        reason="The ellipsis mask 3 has more than one bit.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), integers(1, 0), integers(4, 2), integers(1, 1)),
        params={"offset": True},
        reason="With begin [1, 0] and offset = True, the ends [4, 2] exceed the input.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), integers(1, 0), integers(3, 5), integers(1, 1)),
        params={"offset": True, "ellipsis_mask": 0b10},
        reason="offset = True with an ellipsis or an end mask.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), integers(1, 0), integers(3, 5), integers(1, 1)),
        params={"offset": True, "end_mask": 0b1},
        reason="offset = True with an ellipsis or an end mask.",
    ),
    Rejected(
        "BATCH_TO_SPACE_ND",
        (computed(4, 5, 6, 3), integers(2, 2), Tensor(shape=(2, 2), dtype=DType.INT64, data=0)),
        "The paddings or crops (input 2) is INT64 instead of INT32.",
    ),
    Rejected(
        "TRANSPOSE",
        (computed(1, 1, 1, 8), Tensor(shape=(4,), dtype=DType.INT64, data=[0, 3, 1, 2])),
        "The permutation (input 1) is INT64 instead of INT32.",
    ),
    Rejected(
        "BROADCAST_TO",
        (computed(5), integers(*(2,) * 34)),
        "The node's operands are invalid (RuntimeError: this function only supports up to 32 "
        "dimensions but the array has 34.).",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), *(integers(0, 0),) * 2, integers(1, 1)),
        params={"new_axis_mask": 0b110},
        reason="The new axis mask 6 has bits beyond 2 entries.",
    ),
    Rejected(
        "STRIDED_SLICE",
        (computed(4, 5), *(integers(*(0,) * 7),) * 2, integers(*(1,) * 7)),
        params={"new_axis_mask": 0b1111111},
        reason="OP is supported, but tensor type/shape isn't compatible: tensor 4 has 9 "
        "dimensions, at most 8 are supported.",
    ),
    Rejected(
        "ARG_MAX",
        (computed(2, 3), integers(0)),
        "output_type = 4, but the output is INT32.",
        params={"output_type": 4},
        result=DType.INT32,
    ),
    Rejected(
        "CUMSUM",
        (computed(2, 3), integers(0, 1)),
        "The axis (input 1) has 2 elements instead of one.",
        params={"exclusive": False, "reverse": False},
    ),
    Rejected(
        "RESIZE_NEAREST_NEIGHBOR",
        (IMAGE, integers(1 << 14, 1 << 14)),
        "tensor 2 has 1610612736 elements, too many to index.",
        params={"align_corners": False, "half_pixel_centers": False},
    ),
    Rejected(
        "SLICE",
        (computed(4, 5), integers(0), integers(2, 3)),
        "begin [0] and size [2, 3] do not fit 2 dimensions.",
    ),
    Rejected(
        "SLICE",
        (computed(4, 5), integers(0, 3), integers(-1, 3)),
        "The slice with begin [0, 3] and size [-1, 3] is empty, or exceeds the shape [4, 5].",
    ),
    Rejected(
        "SPLIT",
        (integers(2), computed(4, 6)),
        params={"num_splits": 2},
        outputs=2,
        reason="Index for axis out of range: 2 with 2 dimensions.",
    ),
    Rejected(
        "SPLIT",
        (integers(1), computed(4, 6)),
        params={"num_splits": 4},
        outputs=4,
        reason="The shape [4, 6] is not divisible into num_splits = 4 equal parts along axis 1.",
    ),
    Rejected(
        "SPLIT_V",
        (computed(4, 6), integers(2, 3), integers(1)),
        params={"num_splits": 2},
        outputs=2,
        reason="The shape [4, 6] is not divisible into parts of [2, 3] along axis 1.",
    ),
    Rejected(
        "UNPACK",
        (computed(4, 6),),
        params={"num": 3, "axis": 0},
        outputs=3,
        reason="num = 3 parts are requested of 4 elements along axis 0.",
    ),
    Rejected(
        "REVERSE_V2",
        (computed(4, 6), integers(-3)),
        "Index for axis out of range: -3 with 2 dimensions.",
    ),
    Rejected(
        "TRANSPOSE",
        (IMAGE, integers(0, 1, 2, 2)),
        "Permutation for transpose is invalid: [0, 1, 2, 2] with 4 dimensions.",
    ),
    Rejected(
        "TILE",
        (computed(2, 3), integers(2, 0)),
        "The multiples [2, 0] do not fit [2, 3], or the result is empty.",
    ),
    Rejected(
        "BROADCAST_TO", (computed(2, 3), integers(2, 4)), "[2, 3] cannot be broadcast to [2, 4]."
    ),
    Rejected(
        "SPACE_TO_DEPTH",
        (IMAGE,),
        params={"block_size": 2},
        reason=(
            "The shape [1, 5, 4, 6] is not divisible into blocks: SPACE_TO_DEPTH block_size = 2."
        ),
    ),
    Rejected(
        "DEPTH_TO_SPACE",
        (computed(2, 3, 4),),
        params={"block_size": 2},
        reason="The shape [2, 3, 4] is not divisible into blocks: DEPTH_TO_SPACE block_size = 2.",
    ),
    Rejected(
        "SPACE_TO_BATCH_ND",
        (IMAGE, integers(2, 2), integers((0, 0), (0, 0))),
        "The shape [1, 5, 4, 6] is not divisible by blocks [2, 2] with paddings or crops [(0, 0), "
        "(0, 0)].",
    ),
    Rejected(
        "BATCH_TO_SPACE_ND",
        (IMAGE, integers(1, 2), integers((0, 0), (0, 0))),
        "The shape [1, 5, 4, 6] is not divisible by blocks [1, 2] with paddings or crops [(0, 0), "
        "(0, 0)].",
    ),
    Rejected(
        "MIRROR_PAD",
        (computed(3, 2), integers((0, 0), (0, 0))),
        params={"mode": 7},
        reason="Mirror Pad mode 7 is unknown.",
    ),
    Rejected(
        "MIRROR_PAD",
        (computed(3, 2), integers((0, 0), (0, 2))),
        params={"mode": "reflect"},
        reason="The paddings [0, 2] are wider than the mirror image of 2 elements.",
    ),
    Rejected(
        "GATHER",
        (computed(3, 2), integers((1, 0))),
        params={"axis": 0, "batch_dims": 1},
        reason="The shape [3, 2] and the indices [1, 2] differ in the first 1 (batch) dimensions.",
    ),
    Rejected(
        "GATHER",
        (computed(3, 2), integers(1, -1, 2)),
        params={"axis": 0},
        reason="The indices are between -1 and 2; the axis has 3 elements.",
    ),
    Rejected(
        "PACK",
        (computed(3, 2),),
        params={"axis": 0, "values_count": 2},
        reason="1 inputs, but values_count = 2.",
    ),
    Rejected(
        "PACK",
        (computed(3, 2), computed(2, 3)),
        params={"axis": 0, "values_count": 2},
        reason="The shapes [[2, 3], [3, 2]] are not equal.",
    ),
    Rejected(
        "PACK",
        (computed(3, 2), computed(3, 2)),
        params={"axis": 3, "values_count": 2},
        reason="Index for axis out of range: 3 with 3 dimensions.",
    ),
    Rejected(
        "EXPAND_DIMS",
        (computed(3, 2), integers(-4)),
        "Index for axis out of range: -4 with 3 dimensions.",
    ),
    Rejected(
        "RESIZE_NEAREST_NEIGHBOR",
        (IMAGE, integers(9)),
        "Input [1, 5, 4, 6] and size [9] do not form a 2-D resize.",
    ),
    Rejected(
        "RESIZE_NEAREST_NEIGHBOR",
        (IMAGE, integers(1 << 20, 2)),
        f"{1 << 20} rows or columns are too many.",
        params={"align_corners": False, "half_pixel_centers": False},
    ),
    Rejected("MEAN", (IMAGE, integers(1, 4)), "Index for axis out of range: 4 with 4 dimensions."),
)
