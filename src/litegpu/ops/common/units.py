"""The arithmetic units of a device, for which operations are counted separately."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Unit(Enum):
    """A kind of scalar or matrix unit, named by the type of its operands."""

    FP32 = "fp32"
    INT32 = "int32"
    INT8_DOT = "int8_dot"
    """The unit for dot products of four bytes with int32 sums."""
    FP16_MATRIX = "fp16_matrix"
    TF32_MATRIX = "tf32_matrix"
    INT8_MATRIX = "int8_matrix"

    @property
    def is_matrix(self) -> bool:
        """Whether the unit multiplies matrices; values may be split to increase precision."""
        return self in (Unit.FP16_MATRIX, Unit.TF32_MATRIX, Unit.INT8_MATRIX)


Operations = Mapping[Unit, int]
"""Number of operations by unit; a multiply-add counts as two."""
