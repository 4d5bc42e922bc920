"""Cases of variables; tests/ops/test_variables.py tests their values between invokes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cases.base import CLOSE, Case, Sheet
from litegpu.ops.variables import VARIABLES
from variable_models import assign, first_value, handle, read


@dataclass(frozen=True, kw_only=True)
class Variable(Case):
    """A variable that is assigned the input and read again, twice."""

    shape: tuple[int, ...] = (2, 3, 5)
    tolerance = CLOSE

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        x = sheet.input(self.shape)
        sheet.ops.extend(VARIABLES)
        sheet.tensors += 2
        name = f"variable{sheet.tensors}"
        first_value(sheet.writer, {name: np.ones(self.shape, np.float32)})
        variable = handle(sheet.writer, name)
        assign(sheet.writer, variable, x)
        assign(sheet.writer, variable, read(sheet.writer, variable, self.shape))
        sheet.output(read(sheet.writer, variable, self.shape))


CASES = (Variable(), Variable(shape=(7,)))
