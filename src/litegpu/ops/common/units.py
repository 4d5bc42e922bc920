"""The arithmetic units of a device, by which operations are counted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Unit(Enum):
    """Scalar or matrix units, by the type that they multiply."""

    FP32 = "fp32"
    INT32 = "int32"
    INT8_DOT = "int8_dot"
    """Dot products of four bytes, summed in int32."""
    FP16_MATRIX = "fp16_matrix"
    TF32_MATRIX = "tf32_matrix"
    INT8_MATRIX = "int8_matrix"

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies matrices; values are split into parts for more precision."""
        return self in (Unit.FP16_MATRIX, Unit.TF32_MATRIX, Unit.INT8_MATRIX)


Operations = Mapping[Unit, int]
"""Operations by unit; a multiply-add is two."""
