"""Cases of activations that a model expresses in several ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cases.base import Case, Range, Shape, Sheet
from spellings import SPELLED, spell


@dataclass(frozen=True, kw_only=True)
class SpelledActivation(Case):
    """An activation behind a convolution (`channels` > 0) or an input, and a sum after it."""

    spelling: str
    shape: Shape = (1, 4, 3, 5)
    channels: int = 0

    def write(self, sheet: Sheet) -> None:
        """Write the operations that spell the activation out."""
        x = sheet.input(self.shape, Range(-6.0, 6.0))
        if self.channels:
            operands = sheet.operands((self.channels, 1, 1, self.shape[-1]), "constant", "constant")
            options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
            x = sheet.op("CONV_2D", [x, *operands], options)

        def build(name: str, operands: list[Any], activation: str) -> Any:
            refs = [sheet.constant(each) if isinstance(each, float) else each for each in operands]
            return (
                sheet.fused(name, refs, activation)
                if activation != "NONE"
                else sheet.op(name, refs)
            )

        sheet.output(spell(SPELLED[self.spelling], x, build))


CASES: tuple[Case, ...] = (
    *(SpelledActivation(spelling=name, channels=7) for name in SPELLED),
    *(
        SpelledActivation(spelling=name, shape=shape)
        for name in ("product_by_sixth", "tanh_of_power", "sigmoid")
        for shape in ((2, 3, 4, 8), (3, 9), (1, 1, 1, 1), (2, 2, 3, 4, 3))
    ),
)
