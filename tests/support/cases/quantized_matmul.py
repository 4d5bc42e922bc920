"""Cases of BATCH_MATMUL on quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from cases.base import EXACT, LARGE, SMALL, Case, Shape, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization


@dataclass(frozen=True, kw_only=True)
class QuantizedMatmul(Case):
    """BATCH_MATMUL; `left` and `right` are the batches, `kind` see cases.quantized."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int8"
    kind: str = ORDINARY
    left: Shape = ()
    right: Shape = ()
    rows: int = 5
    depth: int = 7
    columns: int = 6
    adj_x: bool = False
    adj_y: bool = False
    constant: bool = False
    """Whether the second matrix is one."""

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        random = sheet.random
        first, second = (quantization(random, self.dtype, self.kind) for _ in range(2))
        left = (self.depth, self.rows) if self.adj_x else (self.rows, self.depth)
        right = (self.columns, self.depth) if self.adj_y else (self.depth, self.columns)
        a = sheet.input((*self.left, *left), Stored(dtype=self.dtype), first)
        shape = (*self.right, *right)
        if self.constant:
            b = sheet.constant(Stored(dtype=self.dtype).draw(shape, random), self.dtype, second)
        else:
            b = sheet.input(shape, Stored(dtype=self.dtype), second)
        options = {"adj_x": self.adj_x, "adj_y": self.adj_y}
        result = quantization(random, self.dtype, self.kind, float(np.sqrt(self.depth)))
        version = 4 if self.dtype == "int16" else 2
        sheet.output(sheet.op("BATCH_MATMUL", [a, b], options, version, self.dtype, result))


@dataclass(frozen=True, kw_only=True)
class IntegerMatmul(Case):
    """BATCH_MATMUL of int8 whose result is int32: the sums of products, whatever the scales."""

    tolerance: ClassVar[float] = EXACT

    left: Shape = ()
    right: Shape = ()
    depth: int = 7
    adj_x: bool = False
    adj_y: bool = False
    constant: bool = False
    """Whether the second matrix is one."""
    scaled: bool = False

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        stored, random = Stored(dtype="int8"), sheet.random
        scales = [quantization(random, "int8", ORDINARY) if self.scaled else None for _ in "ab"]
        left = (self.depth, 5) if self.adj_x else (5, self.depth)
        right = (6, self.depth) if self.adj_y else (self.depth, 6)
        a = sheet.input((*self.left, *left), stored, scales[0])
        shape = (*self.right, *right)
        if self.constant:
            b = sheet.constant(stored.draw(shape, random), "int8", scales[1])
        else:
            b = sheet.input(shape, stored, scales[1])
        options = {"adj_x": self.adj_x, "adj_y": self.adj_y}
        sheet.output(sheet.op("BATCH_MATMUL", [a, b], options, 2, "int32"))


CASES: list[Case] = [
    *(
        IntegerMatmul(adj_x=adj_x, adj_y=adj_y, constant=constant, depth=33)
        for adj_x, adj_y, constant in product((False, True), repeat=3)
    ),
    *(IntegerMatmul(left=(2, 3), right=(3,), scaled=scaled) for scaled in (False, True)),
    IntegerMatmul(constant=True, scaled=True, left=(2,)),
    *(QuantizedMatmul(kind=kind, left=(2,), right=(2,)) for kind in (ORDINARY, POWER, WIDE)),
    *(
        QuantizedMatmul(
            adj_x=adj_x, adj_y=adj_y, constant=constant, kind=POWER, depth=33, columns=9
        )
        for adj_x, adj_y, constant in product((False, True), repeat=3)
    ),
    QuantizedMatmul(left=(2, 3), right=(3,), depth=16, columns=4, kind=POWER),
    QuantizedMatmul(left=(1, 2), right=(3, 1), depth=1, rows=1, columns=1),
    QuantizedMatmul(left=(2, 3), constant=True, kind=POWER, rows=3, depth=5, columns=17),
    *(
        QuantizedMatmul(items=items, rows=9, columns=19, adj_y=adj_y, left=(2,), right=(2,))
        for items in (SMALL, LARGE)
        for adj_y in (False, True)
    ),
    *(
        QuantizedMatmul(dtype="int16", kind=kind, left=(2,), right=(2,), adj_y=adj_y)
        for kind, adj_y in ((ORDINARY, False), (POWER, True), (WIDE, False))
    ),
    *(
        QuantizedMatmul(
            dtype="int16", constant=constant, adj_x=adj_x, kind=POWER, depth=33, columns=9
        )
        for constant, adj_x in ((True, False), (False, True))
    ),
]
