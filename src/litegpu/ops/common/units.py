"""The arithmetic units of a device; operations are counted for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Unit(Enum):
    """A kind of scalar or matrix unit, by the type that it multiplies."""

    FP32 = "fp32"
    INT32 = "int32"
    INT8_DOT = "int8_dot"
    """Dot products of four bytes, summed in int32."""
    FP16_MATRIX = "fp16_matrix"
    TF32_MATRIX = "tf32_matrix"
    INT8_MATRIX = "int8_matrix"

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix unit; for more precision, values may be split into parts."""
        return self in (Unit.FP16_MATRIX, Unit.TF32_MATRIX, Unit.INT8_MATRIX)


Operations = Mapping[Unit, int]
"""Number of operations by unit; a multiply-add counts as two."""
