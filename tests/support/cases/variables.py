"""Cases of variables; tests/ops/test_variables.py tests their values between invokes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cases.base import ANY, CLOSE, EXACT, Case, Range, Sheet
from cases.quantized import ORDINARY, Stored, quantization
from litegpu.ops.variables import VARIABLES
from variable_models import assign, first_value, handle, read


@dataclass(frozen=True, kw_only=True)
class Variable(Case):
    """A variable that is assigned the input and read again, twice."""

    shape: tuple[int, ...] = (2, 3, 5)
    dtype: str = "float32"
    """The type of the elements; integers have a scale and a zero point."""
    tolerance = CLOSE

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        values: Range = ANY
        stored: dict[str, Any] = {"dtype": self.dtype}
        if self.dtype != "float32":
            values = Stored(dtype=self.dtype)
            stored["quantization"] = quantization(sheet.random, self.dtype, ORDINARY)
        x = sheet.input(self.shape, values, stored.get("quantization"))
        sheet.ops.extend(VARIABLES)
        sheet.tensors += 2
        name, ones = f"variable{sheet.tensors}", np.ones(self.shape, self.dtype)
        first_value(sheet.writer, {name: ones}, stored.get("quantization"))
        variable = handle(sheet.writer, name)
        assign(sheet.writer, variable, x)
        assign(sheet.writer, variable, read(sheet.writer, variable, self.shape, **stored))
        sheet.output(read(sheet.writer, variable, self.shape, **stored))


@dataclass(frozen=True, kw_only=True)
class QuantizedVariable(Variable):
    """A variable of integers, whose bytes do not change."""

    dtype: str = "int8"
    tolerance = EXACT


CASES = (
    Variable(),
    Variable(shape=(7,)),
    *(QuantizedVariable(dtype=dtype) for dtype in ("int8", "uint8", "int16")),
    QuantizedVariable(shape=(9,)),
)
