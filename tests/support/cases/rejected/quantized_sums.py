"""Rejected concatenations and reductions of quantized tensors."""

from __future__ import annotations

from dataclasses import replace

from cases.rejected.base import integers
from cases.rejected.quantized import IMAGE, STORABLE, rejected
from litegpu.graph import DType, Quantization

OTHER = replace(IMAGE, quantization=Quantization((0.25,), (3,)))
AXES = integers(1, 2)

CASES = (
    rejected(
        "CONCATENATION",
        (IMAGE, IMAGE),
        "Fused activation relu of quantized tensors.",
        params={"activation": "relu"},
    ),
    rejected(
        "CONCATENATION",
        (IMAGE, OTHER),
        "tensor 1 has another scale or zero point than the result; only UINT8 parts are rescaled.",
    ),
    rejected(
        "CONCATENATION",
        (replace(IMAGE, dtype=DType.UINT8, quantization=Quantization((0.0,), (0,))),),
        "tensor 0 has the scale 0.",
        result=DType.UINT8,
    ),
    rejected("MEAN", (IMAGE, AXES), "Its input is INT8, its result UINT8.", result=DType.UINT8),
    rejected(
        "MEAN",
        (replace(IMAGE, dtype=DType.INT32), AXES),
        "tensor 0 is INT32 instead of INT16, INT8 or UINT8.",
    ),
    rejected(
        "MEAN",
        (replace(IMAGE, quantization=Quantization((1e30,), (3,))), AXES),
        "The ratio of the scales is so large that the CPU shifts integers by 97 bits.",
        params={"keep_dims": True},
    ),
    rejected(
        "MEAN",
        (IMAGE, AXES),
        "The ratio of the scales is so large that the CPU shifts integers by 1025 bits.",
        params={"keep_dims": True},
        quantization=Quantization((1e-45,), (3,)),
    ),
    rejected(
        "BATCH_MATMUL",
        (replace(IMAGE, shape=(1, 5, 4, 4), quantization=Quantization((1e30,), (3,))),) * 2,
        "The ratio of the scales is so large that the CPU shifts integers by 1025 bits.",
    ),
    rejected(
        "SUM",
        (replace(IMAGE, quantization=Quantization((1e9,), (3,))), AXES),
        "The sums may exceed 2^31 steps of the result's scale, where the CPU's integers overflow.",
        params={"keep_dims": True},
        quantization=STORABLE,
    ),
    rejected(
        "REDUCE_PROD",
        (replace(IMAGE, dtype=DType.UINT8), AXES),
        "tensor 0 is UINT8 instead of INT16 or INT8.",
        result=DType.UINT8,
    ),
    rejected(
        "REDUCE_PROD",
        (replace(IMAGE, dtype=DType.INT16), AXES),
        "tensor 0 is INT16 and has the zero point 3.",
        result=DType.INT16,
    ),
    rejected(
        "REDUCE_PROD",
        (replace(IMAGE, quantization=Quantization((1e3,), (3,))), AXES),
        "The ratio of the scales is so large that the CPU shifts 64-bit sums by 11 bits; at most 7 "
        "are supported.",
        params={"keep_dims": True},
        quantization=Quantization((1e-4,), (3,)),
    ),
)
