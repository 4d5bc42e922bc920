"""Code shared by quantized convolutions on tensor cores: restrictions and template variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from litegpu.graph import DType
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda.conv import Packed
from litegpu.kernels.cuda.packing import pack_ones
from litegpu.ops.base import Target
from litegpu.ops.common.conv_spec import FEWEST, MANY_ROWS, SHORTEST_SUM
from litegpu.ops.quantized_conv import QuantizedConvSpec


def obstacle(spec: QuantizedConvSpec, target: Target) -> Rejected | None:
    """Return why tensor cores cannot compute a quantized convolution; None if they can."""
    outputs = len(spec.weights)
    if not target.model.tensor_cores:
        return Rejected("the device has no tensor cores")
    if spec.groups > 1:
        return Rejected("the convolution has groups of channels")
    if outputs < FEWEST and spec.dst.rows < MANY_ROWS:
        return Rejected("too few channels for tensor cores")
    if math.prod(spec.weights.shape[1:]) < SHORTEST_SUM:
        return Rejected("the sums are too short for tensor cores")
    return None


def variables_of(spec: QuantizedConvSpec) -> dict[str, Any]:
    """Return the template variables for multiplying the bytes of a convolution."""
    return {
        "BYTES": True,
        "UNSIGNED": spec.src.dtype is DType.UINT8,
        "WEIGHT_ZERO": spec.weight_zero,
        "OUTSIDE": int(np.full(4, spec.as_stored.input_zero & 0xFF, np.uint8).view(np.uint32)[0]),
    }


def packed(
    spec: QuantizedConvSpec,
    weights: Any,
    columns: int,
    part: int,
    steps: int,
    grouped: bool = False,
) -> Packed:
    """Return packed weights, bias and requantization factors; taps are padded to whole parts."""
    ones = pack_ones(spec.weights, part, steps, grouped) if spec.weight_zero else None
    return Packed(weights, None, spec.as_stored.folded_bias, columns, ones)
