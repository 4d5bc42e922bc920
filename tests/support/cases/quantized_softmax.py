"""Cases of SOFTMAX and similar ops on bytes, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, LARGE, Case, Shape, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization

_RESULTS = {
    ("SOFTMAX", "int8"): Quantization((1 / 256,), (-128,)),
    ("SOFTMAX", "uint8"): Quantization((1 / 256,), (0,)),
    ("LOG_SOFTMAX", "int8"): Quantization((1 / 16,), (127,)),
    ("LOG_SOFTMAX", "uint8"): Quantization((1 / 16,), (255,)),
    ("L2_NORMALIZATION", "int8"): Quantization((1 / 128,), (0,)),
    ("L2_NORMALIZATION", "uint8"): Quantization((1 / 128,), (128,)),
    ("SOFTMAX", "int16"): Quantization((1 / 32768,), (0,)),
}
"""The quantizations that the CPU wants."""


@dataclass(frozen=True, kw_only=True)
class StoredSoftmax(Case):
    """An operation over the last dimension."""

    tolerance: ClassVar[float] = EXACT

    op: str = "SOFTMAX"
    stored: str = "int8"
    kind: str = ORDINARY
    shape: Shape = (3, 9)
    beta: float = 1.0

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        source = quantization(sheet.random, self.stored, self.kind, 4.0)
        x = sheet.input(self.shape, Stored(dtype=self.stored), source)
        options = {"beta": self.beta} if self.op == "SOFTMAX" else None
        params = _RESULTS[self.op, self.stored]
        version = 3 if self.stored == "int16" else 2
        sheet.output(sheet.op(self.op, [x], options, version, self.stored, params))


CASES: tuple[Case, ...] = (
    *(
        StoredSoftmax(op=op, stored=stored, shape=shape, kind=kind)
        for op, stored in _RESULTS
        for shape, kind in (
            ((3, 1), ORDINARY),
            ((2, 3, 2, 5), POWER),
            ((5, 8), ORDINARY),
            ((2, 33), WIDE),
            ((1, 1001), ORDINARY),
        )
    ),
    *(
        StoredSoftmax(beta=beta, stored=each)
        for beta, each in ((0.5, "int8"), (2.0, "uint8"), (3.0, "int16"))
    ),
    *(
        StoredSoftmax(op=op, stored=stored, shape=(2, 515), items=LARGE, kind=POWER)
        for op, stored in _RESULTS
    ),
)
