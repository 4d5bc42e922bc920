"""A case of WHILE; recurrent layers are in tests/ops/test_while_loop.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cases.base import Case, Sheet
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import Carried, counted, loop, with_row


@dataclass(frozen=True, kw_only=True)
class Loop(Case):
    """Running sums of the rows of a sequence."""

    steps: int = 3

    def write(self, sheet: Sheet) -> None:
        """One input, one loop, the sequence of sums."""
        x = sheet.input((self.steps, 2, 5))
        start = sheet.constant(0, "int32")
        rows, total = (sheet.constant(np.zeros(shape)) for shape in (x.shape, x.shape[1:]))
        sheet.ops.append("WHILE")
        sheet.tensors += 4
        found = loop(sheet.writer, (start, rows, total, x), _add_row, self.steps)
        sheet.output(found[1])


def _add_row(writer: ModelWriter, carried: Carried) -> list[TensorRef]:
    step, rows, total, x = carried
    after = counted(writer, step)
    row = writer.op("GATHER", [x, step], [total.shape])
    total = writer.op("ADD", [total, row], [total.shape])
    return [after, with_row(writer, rows, total, step, after), total, x]


CASES = (Loop(),)
