"""Rejected products with dynamic-range quantization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases.rejected.base import Rejected, Tensor
from litegpu.graph import DType, Quantization

EVEN = Quantization((0.5,), (0,))
IMAGE = Tensor(shape=(1, 5, 4, 6))
FILTER = Tensor(shape=(6, 3, 3, 6), dtype=DType.INT8, data=1, quantization=EVEN)
BIAS = Tensor(shape=(6,), data=1.0)
LEAST = replace(FILTER, data=-128)
_BLOCKS = Tensor(shape=(6, 64), dtype=DType.INT4, data=1, block=32)
_NEGATED = "Some weights are -128, whose products with floats have a wrong sign on the CPU."


def _hybrid(inputs: tuple[Tensor | None, ...], reason: str, **others: Any) -> Rejected:
    return Rejected(**{"op": "CONV_2D", "inputs": inputs, "reason": reason, "version": 2, **others})


CASES = (
    _hybrid(
        (IMAGE, FILTER, BIAS),
        "tensor 3 is INT8 instead of FLOAT32.",
        result=DType.INT8,
    ),
    _hybrid(
        (replace(IMAGE, variable=True), FILTER, BIAS),
        "tensor 0 is a variable tensor, whose state is on the CPU.",
    ),
    _hybrid(
        (IMAGE, replace(FILTER, dtype=DType.UINT8), BIAS),
        "Its weights, tensor 1, are UINT8 instead of INT8.",
    ),
    _hybrid(
        (IMAGE, replace(FILTER, shape=(1, 3, 3, 6), dtype=DType.INT4)),
        "Its weights, tensor 1, have 4 bits (INT4), which the CPU rejects here.",
        op="DEPTHWISE_CONV_2D",
        version=6,
    ),
    _hybrid(
        (IMAGE, replace(FILTER, dtype=DType.INT2), BIAS),
        "Its weights, tensor 1, have 2 bits (INT2), which the CPU rejects here.",
    ),
    _hybrid(
        (Tensor(shape=(2, 64)), replace(_BLOCKS, dtype=DType.INT2), BIAS),
        "Its weights, tensor 1, are INT2 [6, 64] with a scale for each block; the CPU multiplies "
        "INT4 of at least [4, 32] that way.",
        op="FULLY_CONNECTED",
        version=10,
    ),
    _hybrid(
        (Tensor(shape=(2, 64)), replace(_BLOCKS, block=4), BIAS),
        "The blocks have 4 weights; multiples of 8 up to 8192 are supported.",
        op="FULLY_CONNECTED",
        version=10,
    ),
    _hybrid(
        (Tensor(shape=(2, 64)), _BLOCKS, BIAS),
        "The CPU ignores the fused activation relu if weights have blocks.",
        op="FULLY_CONNECTED",
        version=10,
        params={"activation": "relu"},
    ),
    _hybrid(
        (Tensor(shape=(2, 64)), _BLOCKS, replace(BIAS, data=None)),
        "Expected 1 runtime input tensor(s), but node has 2 runtime input(s).",
        op="FULLY_CONNECTED",
        version=10,
    ),
    _hybrid(
        (Tensor(shape=(2, 32)), replace(FILTER, dtype=DType.INT4, shape=(6, 32), data=-8), BIAS),
        "Some weights of 4 bits are -8, which the CPU's kernel computes incorrectly.",
        op="FULLY_CONNECTED",
        version=10,
    ),
    _hybrid(
        (Tensor(shape=(2, 6)), replace(FILTER, shape=(6, 6), sparse=True), BIAS),
        "The quantized weights, tensor 1, are sparse; the CPU multiplies them in another way "
        "than dense weights.",
        op="FULLY_CONNECTED",
        version=9,
    ),
    _hybrid(
        (IMAGE, replace(FILTER, data=None), BIAS),
        "The quantized weights, tensor 1, are computed.",
    ),
    _hybrid(
        (IMAGE, replace(FILTER, quantization=Quantization((0.5,), (3,))), BIAS),
        "Its weights, tensor 1, have zero points other than 0.",
    ),
    _hybrid(
        (IMAGE, FILTER, replace(BIAS, dtype=DType.INT32)),
        "The bias, tensor 2, is no constant of 6 elements of FLOAT32.",
    ),
    _hybrid(
        (IMAGE, FILTER, BIAS),
        "Fused activation tanh of quantized tensors.",
        params={"activation": "tanh"},
    ),
    _hybrid((IMAGE, LEAST, BIAS), _NEGATED),
    _hybrid(
        (Tensor(shape=(2, 6)), replace(LEAST, shape=(6, 6)), BIAS),
        _NEGATED,
        op="FULLY_CONNECTED",
        version=3,
    ),
    _hybrid(
        (IMAGE, replace(FILTER, shape=(6, 3, 3, 3)), BIAS),
        "Its weights, tensor 1, have 1 scale for 6 channels, which the CPU rejects with floats.",
        version=6,
    ),
    _hybrid(
        (IMAGE, replace(FILTER, shape=(1, 3, 3, 6)), BIAS),
        "Its weights, tensor 1, have 1 scale for 6 channels, which the CPU rejects with floats.",
        op="DEPTHWISE_CONV_2D",
        version=4,
    ),
    _hybrid(
        (Tensor(shape=(2, 3, 5, 6)), replace(FILTER, shape=(6, 4))),
        "The batch is [1, 2, 3]: if several batch dimensions are above 1, the CPU uses the "
        "scales of wrong rows.",
        op="BATCH_MATMUL",
        version=4,
    ),
    _hybrid(
        (Tensor(shape=(5, 6)), replace(FILTER, shape=(6, 4), data=None)),
        "tensor 1 is computed, but asymmetric quantization needs constants.",
        op="BATCH_MATMUL",
        params={"asymmetric_quantize_inputs": True},
        version=4,
    ),
)
