"""Rejected element-wise nodes of quantized tensors, and conversions between types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases.rejected.base import Rejected, Tensor
from cases.rejected.quantized import IMAGE, STORABLE, rejected
from litegpu.graph import DType, Quantization

_FAR, _TINY = Quantization((1e30,), (0,)), Quantization((1e-30,), (0,))
_POWERS = replace(IMAGE, dtype=DType.INT16, quantization=Quantization((0.5,), (0,)))
_FLOATS = Tensor(shape=(1, 5, 4, 6))
_BY_CHANNEL = Quantization((0.5,) * 6, (0,) * 6, 3)


def _params(quantization: Quantization | None, **changes: Any) -> Tensor:
    return replace(IMAGE, quantization=quantization, **changes)


def _dequantized(source: Tensor, reason: str, **others: Any) -> Rejected:
    fields = {"result": DType.FLOAT32, "quantization": None, **others}
    return rejected("DEQUANTIZE", (source,), reason, **fields)


CASES = (
    rejected(
        "ADD",
        (_POWERS, _POWERS),
        "The scales are powers of two, for which the CPU adds INT16 in another way.",
        params={"pot_scale_int16": True},
        result=DType.INT16,
        quantization=_POWERS.quantization,
    ),
    rejected(
        "SUB",
        (IMAGE, _params(_FAR)),
        "The scale of its result is so small that sums have 3.8147e+24 times as many steps.",
    ),
    rejected(
        "MUL",
        (_params(_FAR), IMAGE),
        "The ratio of the scales is so large that the CPU shifts integers by 100 bits.",
    ),
    rejected(
        "EQUAL",
        (IMAGE, _params(Quantization((1.0,), (0,)))),
        "tensor 1 has a scale of 1 or more, which the CPU cannot compare.",
        result=DType.BOOL,
        quantization=None,
    ),
    rejected(
        "DIV",
        (_params(_FAR), IMAGE),
        "The ratio of the scales is so large that the CPU shifts integers by 102 bits.",
    ),
    rejected("DIV", (IMAGE, IMAGE), "The CPU's kernel does not divide INT8."),
    rejected("LOGISTIC", (IMAGE,), "The scale of the result is 0.5 instead of 1 / 256."),
    rejected(
        "HARD_SWISH",
        (IMAGE,),
        "The scale of the result is below the input's scale / 128, which the CPU rejects.",
        quantization=_TINY,
        version=1,
    ),
    rejected(
        "RSQRT",
        (_params(Quantization((1e-38,), (0,))),),
        "The scales are too small for the CPU.",
        quantization=Quantization((1e-38,), (0,)),
    ),
    rejected(
        "RELU_N1_TO_1",
        (_POWERS,),
        "The CPU's kernel does not support INT16 with these scales.",
        result=DType.INT16,
        version=1,
    ),
    rejected("QUANTIZE", (_FLOATS,), "Its tensors have no scales.", quantization=None),
    rejected(
        "QUANTIZE",
        (_FLOATS,),
        "Its tensors have no scales.",
        result=DType.FLOAT32,
        quantization=STORABLE,
    ),
    rejected(
        "QUANTIZE",
        (_FLOATS,),
        "tensor 1 has the scale 1e-31, too small for float32 arithmetic.",
        quantization=Quantization((1e-31,), (0,)),
    ),
    rejected(
        "QUANTIZE",
        (_FLOATS,),
        "tensor 1, INT8, has 6 scales instead of 1.",
        quantization=replace(_BY_CHANNEL, dimension=2),
    ),
    rejected(
        "QUANTIZE",
        (IMAGE,),
        "tensor 1 has 6 scales instead of 1.",
        quantization=_BY_CHANNEL,
    ),
    rejected(
        "QUANTIZE",
        (_POWERS,),
        "The CPU rejects zero points if both input and output are INT16.",
        result=DType.INT16,
        quantization=STORABLE,
    ),
    rejected(
        "QUANTIZE",
        (_POWERS,),
        "The CPU does not quantize INT16 to UINT8.",
        result=DType.UINT8,
    ),
    _dequantized(_FLOATS, "Only float16 constants are dequantized; the input is FLOAT32."),
    _dequantized(IMAGE, "tensor 1 is FLOAT16 instead of FLOAT32.", result=DType.FLOAT16),
    _dequantized(
        replace(_POWERS, quantization=STORABLE), "tensor 0 is INT16 and has the zero point 3."
    ),
    _dequantized(
        _params(replace(_BY_CHANNEL, dimension=2)), "tensor 0, INT8, has 6 scales instead of 1."
    ),
    _dequantized(
        replace(IMAGE, shape=(6, 1, 5, 4, 3), quantization=replace(_BY_CHANNEL, dimension=0)),
        "tensor 0 has scales along dimension 0 of 5.",
    ),
    _dequantized(
        _params(replace(_BY_CHANNEL, scale=(0.5,) * 5 + (0.0,))),
        "tensor 0 has scales that are no positive numbers.",
    ),
)
