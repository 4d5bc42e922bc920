"""Rejected SVDFs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases.rejected.base import Rejected, Tensor, computed, floats
from litegpu.graph import DType, Quantization

_SCALED = Quantization((0.5,), (0,))
_PER_CHANNEL = Quantization((0.5,) * 4, (0,) * 4)
_STATE = Tensor(shape=(2, 12), variable=True)


def _stored(dtype: DType, *shape: int, data: Any = 1) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, quantization=_SCALED, data=data)


_FLOATS = (computed(2, 5), floats(4, 5), floats(4, 3), floats(4), _STATE)
_HYBRID = (
    *(computed(2, 5), _stored(DType.INT8, 4, 5), _stored(DType.INT8, 4, 3), floats(4), _STATE),
)
_BYTES = (
    _stored(DType.INT8, 2, 5, data=None),
    _stored(DType.INT8, 4, 5),
    _stored(DType.INT16, 4, 3),
    replace(_stored(DType.INT32, 4), quantization=None),
    replace(_STATE, dtype=DType.INT16, quantization=_SCALED),
)


def _svdf(
    operands: tuple[Tensor, ...],
    changed: dict[int, Tensor | None],
    reason: str,
    rank: int = 1,
    activation: str = "relu",
) -> Rejected:
    inputs = tuple({**dict(enumerate(operands)), **changed}.values())
    params = {"rank": rank, "activation": activation}
    stored = operands is _BYTES
    return Rejected(
        *("SVDF", inputs, reason, params),
        result=DType.INT8 if stored else DType.FLOAT32,
        quantization=_SCALED if stored else None,
    )


_ONE_SCALE = "tensor {} needs one scale and the zero point 0."

CASES = (
    _svdf(_FLOATS, {}, "The rank must be positive, but it is 0.", rank=0),
    _svdf(
        _FLOATS,
        {},
        "An input of [2, 5] with weights of [4, 5] and [4, 3] does not form an SVDF of rank 3.",
        rank=3,
    ),
    _svdf(_FLOATS, {3: floats(3)}, "The bias has the shape [3] instead of [4]."),
    _svdf(
        _FLOATS,
        {3: computed(4)},
        "The bias (input 3) must be constant, but it is computed at run time.",
    ),
    _svdf(_FLOATS, {4: None}, "The state (input 4) is missing."),
    _svdf(
        _FLOATS,
        {4: replace(_STATE, shape=(2, 4))},
        "The state (input 4) has the shape [2, 4] instead of [2, 12].",
    ),
    _svdf(_HYBRID, {2: floats(4, 3)}, "The weights in time (input 2) is FLOAT32 instead of INT8."),
    _svdf(
        _HYBRID,
        {1: replace(_HYBRID[1], quantization=_PER_CHANNEL)},
        _ONE_SCALE.format(1),
    ),
    _svdf(
        _HYBRID,
        {4: replace(_STATE, dtype=DType.INT16)},
        "The state (input 4) is INT16 instead of FLOAT32.",
    ),
    _svdf(_BYTES, {}, "Fused activation none of quantized tensors.", activation="none"),
    _svdf(_BYTES, {4: replace(_BYTES[4], quantization=None)}, _ONE_SCALE.format(4)),
    _svdf(_BYTES, {4: _STATE}, "The state (input 4) is FLOAT32 instead of INT16."),
)
