"""Cases of the reductions of quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, Case, Range, Shape, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization


@dataclass(frozen=True, kw_only=True)
class StoredReduce(Case):
    """A reduction over some axes."""

    tolerance: ClassVar[float] = EXACT

    op: str = "MEAN"
    stored: str = "int8"
    kind: str = ORDINARY
    shape: Shape = (2, 5, 7, 6)
    axes: tuple[int, ...] = (1, 2)
    keep: bool = True
    same: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one reduction, one output."""
        source = quantization(sheet.random, self.stored, self.kind, 2.0)
        real = 20.0 if self.op == "SUM" else 1.0
        same = self.same or self.op.startswith("REDUCE")
        params = source if same else quantization(sheet.random, self.stored, self.kind, real)
        x = sheet.input(self.shape, Stored(dtype=self.stored), source)
        inputs, options = [x, sheet.constant(self.axes, "int32")], {"keep_dims": self.keep}
        sheet.output(sheet.op(self.op, inputs, options, 2, self.stored, params))


@dataclass(frozen=True, kw_only=True)
class StoredArg(Case):
    """ARG_MAX or ARG_MIN of few different stored integers."""

    tolerance: ClassVar[float] = EXACT

    op: str = "ARG_MAX"
    stored: str = "int8"
    shape: Shape = (2, 5, 7, 6)
    axis: int = 3

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        params = quantization(sheet.random, self.stored, ORDINARY)
        x = sheet.input(self.shape, Stored(dtype=self.stored), params)
        options = {"output_type": "INT32"}
        inputs = [x, sheet.constant(self.axis, "int32")]
        sheet.output(sheet.op(self.op, inputs, options, 2, "int32"))


@dataclass(frozen=True, kw_only=True)
class StoredProduct(Case):
    """REDUCE_PROD of integers up to `spread` steps from the zero point."""

    tolerance: ClassVar[float] = EXACT

    stored: str = "int8"
    shape: Shape = (2, 5, 3, 6)
    axes: tuple[int, ...] = (1, 2)
    keep: bool = True
    spread: int = 100
    step: float = 0.025
    result_step: float = 0.01

    def write(self, sheet: Sheet) -> None:
        """One input, one product, one output."""
        zeros = (0, 0) if self.stored == "int16" else (9, -20)
        source, result = (
            Quantization((step,), (zero,))
            for step, zero in zip((self.step, self.result_step), zeros, strict=True)
        )
        least = zeros[0] - self.spread
        values = Range(least, least + 2 * self.spread + 1, dtype=self.stored)
        x = sheet.input(self.shape, values, source)
        inputs, options = [x, sheet.constant(self.axes, "int32")], {"keep_dims": self.keep}
        sheet.output(sheet.op("REDUCE_PROD", inputs, options, 2, self.stored, result))


_BYTES = ("int8", "uint8")
_AXES = ((1,), (3,), (2, 1), (-3, -2), (0, 3), (0, 1, 2, 3))

CASES: tuple[Case, ...] = (
    *(
        StoredReduce(stored=each, shape=(2, 3, 4, c), kind=POWER)
        for each in _BYTES
        for c in (5, 33)
    ),
    *(StoredReduce(kind=kind, shape=(1, 7, 7, 17), axes=(2, 1)) for kind in (ORDINARY, WIDE)),
    *(StoredReduce(stored=each, axes=axes, kind=POWER) for each in _BYTES for axes in _AXES),
    *(
        StoredReduce(axes=axes, keep=False, kind=kind)
        for axes in _AXES
        for kind in (ORDINARY, WIDE)
    ),
    StoredReduce(shape=(3, 40), axes=(1,), keep=False, stored="uint8"),
    StoredReduce(shape=(2, 3, 2, 4, 5), axes=(1, 3), kind=POWER),
    *(
        StoredReduce(stored="int16", axes=axes, kind=kind)
        for axes, kind in (((1, 2), ORDINARY), ((3,), POWER), ((0, 1, 2, 3), WIDE))
    ),
    StoredReduce(same=True),
    StoredReduce(same=True, keep=False, stored="uint8"),
    *(
        StoredReduce(op="SUM", stored=each, axes=axes, kind=kind)
        for each in (*_BYTES, "int16")
        for axes, kind in (((1, 2), ORDINARY), ((3,), POWER), ((0, 3), WIDE))
    ),
    StoredReduce(op="SUM", shape=(2, 3, 2, 4, 5), axes=(1, 3), keep=False),
    StoredReduce(op="SUM", same=True),
    # Nothing to add up: axes of size 1 among more than 4, and no axes.
    *(
        StoredReduce(op=op, shape=(1, 3, 2, 1, 4, 5), axes=axes, keep=keep, kind=kind)
        for op in ("SUM", "MEAN")
        for axes, keep in (((0,), True), ((3, 0), False), ((), True))
        for kind in (ORDINARY, WIDE)
    ),
    *(
        StoredReduce(op=op, stored=each, axes=axes, keep=False)
        for op in ("REDUCE_MAX", "REDUCE_MIN")
        for each in (*_BYTES, "int16")
        for axes in ((1, 2), (3,))
    ),
    *(
        StoredArg(op=op, stored=each, axis=axis)
        for op in ("ARG_MAX", "ARG_MIN")
        for each in _BYTES
        for axis in (1, 3)
    ),
    StoredArg(shape=(3, 301), axis=-1),
    *(StoredProduct(stored=each, axes=axes) for each in ("int8", "int16") for axes in _AXES),
    *(StoredProduct(step=step, result_step=step) for step in (0.9, 0.002, 2.0**-6)),
    *(
        StoredProduct(stored=each, shape=(1, 3, 2, 1, 4, 5), axes=axes, keep=False)
        for each in ("int8", "int16")
        for axes in ((1, 4), (5,), (-4, 0, 1), (0, 3), ())
    ),
    StoredProduct(step=1e3, result_step=1e-4, shape=(3, 1, 5), axes=(1,)),
    # Products leave 32 bits, each time, or only at the end.
    StoredProduct(stored="int16", step=20.0, result_step=0.3),
    StoredProduct(step=30.0, result_step=0.3, shape=(3, 6), axes=(0,)),
    StoredProduct(step=1.0, result_step=1e-3, spread=2, shape=(2, 9, 11), axes=(1,)),
    StoredProduct(step=1.0, result_step=1.0, spread=1, shape=(5000, 2, 3), axes=(0,)),
)
