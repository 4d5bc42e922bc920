"""The one table of op cases: plain data that every backend runs at every precision.

Each module holds the cases of a family of operations in `CASES`; `rejected` holds nodes that must
not run on a device.
"""

from __future__ import annotations

from collections.abc import Mapping

from cases import (
    activations,
    batch_matmul,
    chains,
    concatenation,
    conv_2d,
    copy,
    densify,
    depthwise_conv_2d,
    dequantize,
    dilation,
    elementwise,
    fully_connected,
    integers,
    landmarks,
    logic,
    lstm,
    mediapipe,
    moves,
    normalize,
    pool_2d,
    reduce,
    reshape,
    resize_bilinear,
    separable,
    softmax,
    transpose_conv,
    views,
)
from cases.base import Case

MODULES = (
    conv_2d,
    depthwise_conv_2d,
    separable,
    dilation,
    fully_connected,
    transpose_conv,
    views,
    batch_matmul,
    lstm,
    mediapipe,
    landmarks,
    pool_2d,
    reduce,
    softmax,
    resize_bilinear,
    concatenation,
    copy,
    moves,
    normalize,
    reshape,
    elementwise,
    logic,
    integers,
    activations,
    densify,
    dequantize,
    chains,
)

TABLE: Mapping[str, Case] = {case.name: case for module in MODULES for case in module.CASES}
"""Every case by its name."""

CASE_COUNT = sum(len(module.CASES) for module in MODULES)
"""Number of lines; equal names would make `TABLE` shorter."""
