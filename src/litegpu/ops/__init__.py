"""Operations: one module per family. Importing this package registers them all."""

from litegpu.ops import (
    batch_matmul,
    concatenation,
    conv_2d,
    copy,
    depthwise_conv_2d,
    dequantize,
    elementwise,
    fully_connected,
    mean,
    pool_2d,
    reshape,
    resize_bilinear,
    softmax,
    transpose_conv,
    weights,
)
from litegpu.ops.base import all_ops, find

__all__ = [
    "all_ops",
    "batch_matmul",
    "concatenation",
    "conv_2d",
    "copy",
    "depthwise_conv_2d",
    "dequantize",
    "elementwise",
    "find",
    "fully_connected",
    "mean",
    "pool_2d",
    "reshape",
    "resize_bilinear",
    "softmax",
    "transpose_conv",
    "weights",
]
