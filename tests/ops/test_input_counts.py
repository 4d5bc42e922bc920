"""The numbers of inputs that the runtime's kernels permit for a node."""

from __future__ import annotations

import re

import pytest

from cases.rejected import Rejected
from cases.rejected.base import IMAGE, Tensor
from cases.rejected.quantized import IMAGE as QUANTIZED_IMAGE
from litegpu.ops.base import all_ops
from litegpu.ops.common.support import check_support

pytestmark = pytest.mark.usefixtures("null_device")

COUNTS = {
    (0, 0): "CALL_ONCE VAR_HANDLE",
    (
        1,
        1,
    ): "ABS AVERAGE_POOL_2D BITCAST BUCKETIZE CAST CEIL COMPLEX_ABS COS DENSIFY DEPTH_TO_SPACE "
    "DEQUANTIZE ELU EXP FAKE_QUANT FLOOR GELU HARD_SWISH IMAG L2_NORMALIZATION L2_POOL_2D "
    "LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG "
    "LOGICAL_NOT LOGISTIC LOG_SOFTMAX Landmarks2TransformMatrix Landmarks2TransformMatrixV2 "
    "MATRIX_DIAG MAX_POOL_2D MaxPoolingWithArgmax2D NEG READ_VARIABLE REAL RELU RELU6 RELU_0_TO_1 "
    "RELU_N1_TO_1 ROUND RSQRT SIGN SIN SOFTMAX SPACE_TO_DEPTH SQRT SQUARE SQUEEZE TANH UNPACK",
    (1, 2): "RESHAPE",
    (
        2,
        2,
    ): "ADD ARG_MAX ARG_MIN ASSIGN_VARIABLE ATAN2 BATCH_MATMUL BITWISE_XOR BROADCAST_TO "
    "CUMSUM DIV "
    "EMBEDDING_LOOKUP EQUAL EXPAND_DIMS FILL FLOOR_DIV FLOOR_MOD GATHER GATHER_ND GREATER "
    "GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MATRIX_SET_DIAG MAXIMUM MEAN "
    "MINIMUM MIRROR_PAD MUL MaxUnpooling2D NOT_EQUAL PAD POW PRELU REDUCE_ALL REDUCE_ANY "
    "REDUCE_MAX REDUCE_MIN REDUCE_PROD RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR "
    "REVERSE_SEQUENCE REVERSE_V2 RFFT2D RIGHT_SHIFT Resampler SEGMENT_SUM SPLIT "
    "SQUARED_DIFFERENCE STABLEHLO_ADD STABLEHLO_AND STABLEHLO_GATHER STABLEHLO_MAXIMUM "
    "STABLEHLO_MINIMUM STABLEHLO_MULTIPLY STABLEHLO_PAD STABLEHLO_REDUCE_WINDOW "
    "STABLEHLO_SHIFT_LEFT SUB SUM TILE TOPK_V2 TRANSPOSE TransformLandmarks "
    "TransformTensor TransformTensorBilinear",
    (2, 3): "CONV_2D CONV_3D Convolution2DTransposeBias DEPTHWISE_CONV_2D FULLY_CONNECTED",
    (3, 3): "BATCH_TO_SPACE_ND DILATE DYNAMIC_UPDATE_SLICE HASHTABLE_LOOKUP "
    "PADV2 RANGE SCATTER_ND SELECT SELECT_V2 SLICE "
    "SPACE_TO_BATCH_ND SPLIT_V STABLEHLO_SCATTER UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN "
    "TFLite_Detection_PostProcess UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_SUM",
    (3, 4): "CONV_3D_TRANSPOSE TRANSPOSE_CONV",
    (4, 4): "ONE_HOT SPARSE_TO_DENSE STRIDED_SLICE",
    (5, 5): "EMBEDDING_LOOKUP_SPARSE "
    "LSTM NON_MAX_SUPPRESSION_V4 REDUCE_WINDOW RNN SVDF UNIDIRECTIONAL_SEQUENCE_RNN",
    (6, 6): "NON_MAX_SUPPRESSION_V5",
}
"""The fewest and the most inputs; others may have any number of them, or count them otherwise."""
ALLOWED = {op: count for count, names in COUNTS.items() for op in names.split()}
REFUSED_BEFORE = ("LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
"""Whose quantized nodes are refused for other reasons, however many inputs they have."""
MOST = 7
"""More than any operation of the table has."""


def accepted(op: str, tensor: Tensor) -> tuple[int, ...]:
    """Return with how many inputs, all alike, a node of an operation is not refused for that."""
    counts = []
    for count in range(MOST):
        node = Rejected(
            op, (tensor,) * count, "", result=tensor.dtype, quantization=tensor.quantization
        )
        reason = check_support(node.graph()).reasons.get(0, "")
        if not re.match(r"Expected \d+( to \d+)? inputs, but", reason):
            counts.append(count)
    return tuple(counts)


@pytest.mark.parametrize(("op", "count"), ALLOWED.items())
def test_a_node_has_as_many_inputs_as_the_runtime_knows(op: str, count: tuple[int, int]) -> None:
    assert accepted(op, IMAGE) == tuple(range(count[0], count[1] + 1))


@pytest.mark.parametrize(("op", "count"), ALLOWED.items())
def test_a_quantized_node_has_no_more(op: str, count: tuple[int, int]) -> None:
    """With fewer of them some reason comes first: an operand tells which types are wanted."""
    if op not in REFUSED_BEFORE:
        assert max(accepted(op, QUANTIZED_IMAGE)) == count[1]


def test_every_operation_that_counts_its_inputs_is_in_the_table() -> None:
    others = [op.name for op in all_ops() if op.name not in ALLOWED]
    assert [op for op in others if len(accepted(op, IMAGE)) < MOST - 1] == []
