"""Rejected nodes of quantized tensors that the CPU does not compute in integers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cases.rejected.base import Rejected, Tensor
from litegpu.graph import DType, Quantization

STORABLE = Quantization((0.5,), (3,))
EVEN = Quantization((0.5,), (0,))
IMAGE = Tensor(shape=(1, 5, 4, 6), dtype=DType.INT8, quantization=STORABLE)
FILTER = Tensor(shape=(8, 3, 3, 6), dtype=DType.INT8, data=1, quantization=EVEN)
BIAS = Tensor(shape=(8,), dtype=DType.INT32, data=1)


def rejected(op: str, inputs: tuple[Tensor | None, ...], reason: str, **others: Any) -> Rejected:
    """Return a rejected node whose result is quantized bytes."""
    return Rejected(
        op,
        inputs,
        reason,
        **{"result": DType.INT8, "quantization": STORABLE, "version": 2, **others},
    )


def _image(**changes: Any) -> Tensor:
    return replace(IMAGE, **changes)


def _filter(*scales: float, dimension: int = 0) -> Tensor:
    quantized = Quantization(scales, (0,) * len(scales), dimension)
    return replace(FILTER, quantization=quantized)


_LONG_BIAS = replace(BIAS, dtype=DType.INT64)


def _wide(
    *operands: Tensor,
    reason: str,
    op: str = "CONV_2D",
    image: tuple[int, ...] = (1, 5, 4, 6),
    **others: Any,
) -> Rejected:
    """Return a rejected node with activations of 16 bits."""
    source = Tensor(shape=image, dtype=DType.INT16, quantization=EVEN)
    result = {"result": DType.INT16, "quantization": EVEN, **others}
    return rejected(op, (source, *operands), reason, **result)


CASES = (
    rejected("CONV_2D", (IMAGE,), "Expected 2 to 3 inputs, but node has 1 inputs."),
    rejected(
        "ADD",
        (_image(dtype=DType.FLOAT32, quantization=None), IMAGE),
        "tensor 0 is FLOAT32 among quantized ones (dynamic-range quantization), which "
        'quantized="float" computes.',
    ),
    rejected(
        "CONV_2D",
        (_image(quantization=Quantization((0.5, 1.0), (0, 0))), FILTER, BIAS),
        "tensor 0 has 2 scales instead of 1.",
    ),
    rejected(
        "CONV_2D",
        (_image(quantization=Quantization((0.0,), (0,))), FILTER, BIAS),
        "tensor 0 has the scale 0.",
    ),
    rejected(
        "CONV_2D",
        (_image(quantization=Quantization((0.5,), (128,))), FILTER, BIAS),
        "tensor 0 has the zero point 128, beyond its type.",
    ),
    rejected(
        "CONV_2D",
        (_image(dtype=DType.INT16, quantization=EVEN), FILTER, BIAS),
        "tensor 3 is INT16 and has the zero point 3.",
        result=DType.INT16,
        version=8,
    ),
    _wide(
        FILTER, BIAS, reason="The bias, tensor 2, is no constant of 8 elements of INT64.", version=4
    ),
    _wide(
        replace(FILTER, quantization=STORABLE),
        _LONG_BIAS,
        reason="Its weights, tensor 1, have zero points other than 0.",
    ),
    _wide(
        replace(FILTER, dtype=DType.UINT8),
        _LONG_BIAS,
        reason="Its weights, tensor 1, are UINT8 instead of INT8.",
    ),
    _wide(
        replace(FILTER, shape=(1, 3, 3, 6)),
        replace(_LONG_BIAS, shape=(6,)),
        reason="The parameter depth_multiplier, which the CPU uses, does not fit the weights.",
        op="DEPTHWISE_CONV_2D",
        params={"depth_multiplier": 2},
    ),
    _wide(
        replace(FILTER, shape=(8, 6)),
        reason="Without a bias, the type of the sums is not known.",
        op="FULLY_CONNECTED",
        version=11,
        params={"quantized_bias_type": 0},
    ),
    _wide(
        FILTER,
        replace(_LONG_BIAS, data=2**52),
        reason="The bias, tensor 2, has elements of 2^52 or more.",
    ),
    _wide(
        replace(FILTER, shape=(1, 70000)),
        image=(1, 70000),
        reason="The sums have 70000 products of INT16; at most 65536 are supported.",
        op="FULLY_CONNECTED",
    ),
    _wide(
        FILTER,
        _LONG_BIAS,
        reason="The ratio of the scales is so large that the CPU shifts 64-bit sums by 8 bits; at "
        "most 7 are supported.",
        quantization=Quantization((2.0**-9,), (0,)),
    ),
    _wide(
        replace(FILTER, shape=(8, 6)),
        replace(_LONG_BIAS, shape=(8,)),
        reason="The ratio of the scales is so large that sums are multiplied by 1.04858e+06.",
        op="FULLY_CONNECTED",
        quantization=Quantization((2.0**-22,), (0,)),
    ),
    rejected(
        "BATCH_MATMUL",
        (_image(dtype=DType.INT16), IMAGE),
        "Products of INT16 and INT8 as INT8 are not supported.",
    ),
    rejected(
        "SOFTMAX",
        (Tensor(shape=(1, 70000), dtype=DType.INT16, quantization=EVEN),),
        "The rows have 70000 INT16 elements; at most 65536 are supported.",
        result=DType.INT16,
        quantization=EVEN,
    ),
    rejected(
        "CONV_2D",
        (replace(IMAGE, dtype=DType.UINT8), replace(FILTER, dtype=DType.INT4), BIAS),
        "tensor 0 is UINT8 instead of INT16 or INT8.",
        version=7,
    ),
    rejected(
        "CONV_2D",
        (IMAGE, replace(FILTER, dtype=DType.UINT8), BIAS),
        "Its quantized tensors have different types: INT8, UINT8, INT8.",
    ),
    rejected(
        "CONV_2D",
        (IMAGE, replace(FILTER, data=None), BIAS),
        "The quantized weights, tensor 1, are computed.",
    ),
    rejected(
        "CONV_2D", (IMAGE, replace(FILTER, quantization=None), BIAS), "tensor 1 has no scale."
    ),
    rejected(
        "CONV_2D",
        (IMAGE, _filter(0.5, 0.5, dimension=3), BIAS),
        "tensor 1 has 2 scales along dimension 3 instead of 1 or 8 along 0.",
    ),
    rejected(
        "CONV_2D",
        (IMAGE, _filter(math.nan), BIAS),
        "tensor 1 has scales that are no positive numbers.",
    ),
    rejected(
        "CONV_2D",
        (IMAGE, replace(FILTER, quantization=Quantization((0.5,), (2**30,))), BIAS),
        "tensor 1 has the zero point 1073741824, beyond its type.",
    ),
    rejected(
        "CONV_2D",
        (_image(quantization=Quantization((1e30,), (0,))), FILTER, BIAS),
        "The ratio of the scales is so large that the CPU shifts integers by 100 bits.",
    ),
    rejected(
        "CONV_2D",
        (IMAGE, FILTER, BIAS),
        "tensor 3 has the scale 1e-09, too fine for a fused activation.",
        params={"activation": "relu6"},
        quantization=Quantization((1e-9,), (0,)),
    ),
    rejected(
        "CONV_2D",
        (IMAGE, FILTER, replace(BIAS, dtype=DType.INT64)),
        "The bias, tensor 2, is no constant of 8 elements of INT32.",
    ),
    rejected(
        "CONV_2D",
        (IMAGE, FILTER, BIAS),
        "Fused activation tanh of quantized tensors.",
        params={"activation": "tanh"},
    ),
    rejected(
        "AVERAGE_POOL_2D",
        (IMAGE,),
        "A pool of INT8 into UINT8.",
        result=DType.UINT8,
    ),
    rejected(
        "MAX_POOL_2D",
        (IMAGE,),
        "The pool's input and output have different quantizations, but a pool does not rescale.",
        quantization=Quantization((0.5,), (4,)),
    ),
    rejected(
        "CONCATENATION",
        (IMAGE, _image(quantization=EVEN)),
        "tensor 1 has another scale or zero point than the result; only UINT8 parts are rescaled.",
    ),
)
