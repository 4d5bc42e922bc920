"""Cases of operations on one quantized tensor, and of conversions: equal to the CPU in all bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, HALF, Array, Case, Range, Shape, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization

_SHAPE = (2, 5, 3, 7)
_VERSIONS: Mapping[str, int] = {
    "LEAKY_RELU": 1,
    "HARD_SWISH": 1,
    "ELU": 1,
    "NEG": 1,
    "RELU_0_TO_1": 1,
    "RELU_N1_TO_1": 1,
}
"""Those of int8 that are not 2."""
_SHORT_VERSIONS = {
    **dict.fromkeys(("GELU", "LOGISTIC", "RELU", "RELU6", "RSQRT", "TANH"), 3),
    "ABS": 5,
    "NEG": 1,
}
"""Those of int16 that are not 2."""


@dataclass(frozen=True)
class FromZero(Stored):
    """Stored integers from a zero point on."""

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements."""
        highest = np.iinfo(self.dtype).max
        return random.integers(int(self.low), highest, shape, self.dtype, endpoint=True)


@dataclass(frozen=True, kw_only=True)
class QuantizedLookup(Case):
    """One input, a result of the same type; `real` is up to what the input is."""

    tolerance: ClassVar[float] = EXACT

    op: str
    dtype: str = "int8"
    kind: str = ORDINARY
    shape: Shape = _SHAPE
    real: float = 4.0
    result: float = 4.0
    options: tuple[tuple[str, Any], ...] = ()
    draw: int = 0
    """A number, for the names of cases that differ in nothing else."""

    def write(self, sheet: Sheet) -> None:
        """One input, one operation, one output."""
        source = quantization(sheet.random, self.dtype, self.kind, self.real)
        result = quantization(sheet.random, self.dtype, self.kind, self.result)
        if self.dtype == "int16" and self.op in ("LOGISTIC", "TANH"):
            result = Quantization((1 / 32768,), (0,))
        elif self.op == "LOGISTIC":
            result = Quantization((1 / 256,), result.zero_point)
        params = (
            FromZero(dtype=self.dtype, low=source.zero_point[0])
            if self.op in ("RSQRT", "SQRT")
            else Stored(dtype=self.dtype)
        )
        x = sheet.input(self.shape, params, source)
        versions = _VERSIONS if self.dtype == "int8" else _SHORT_VERSIONS
        version = 1 if self.dtype == "uint8" else versions.get(self.op, 2)
        sheet.output(
            sheet.op(self.op, [x], dict(self.options) or None, version, self.dtype, result)
        )


@dataclass(frozen=True)
class Ties(Range):
    """Floats that are whole or half multiples of scales, some beyond any stored integer."""

    scales: tuple[float, ...] = (1.0,)
    axis: int = 0
    """The dimension that has these scales, if there are several."""
    most: int = 150
    """About the greatest magnitude of stored integers."""
    at_end: bool = False
    """Whether all are at the ends of int32: perhaps inside when divided, beyond when multiplied."""

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements: ties and their neighbours; ends of floats and of integers."""
        sizes = [1] * len(shape)
        if len(self.scales) > 1:
            sizes[self.axis] = -1
        scale = np.broadcast_to(np.array(self.scales, np.float32).reshape(sizes), shape)
        if self.at_end:
            steps = random.integers(-20, 3, shape)
            end = random.choice(np.array([2**31, -(2**31)]), shape) * scale
            return (end * (1 + steps * 2.0**-24)).astype(np.float32)
        tie = scale * (random.integers(-2 * self.most, 2 * self.most, shape) / 2).astype(np.float32)
        ends = random.choice(np.array([-np.inf, np.inf], np.float32), shape)
        near = random.choice(np.array([0, 1]), shape) == 0
        numbers = np.where(near, np.nextafter(tie, ends), tie)
        far = [-np.inf, np.inf, -3e38, 3e38, 0]
        whole = [2**31, -(2**31), 2**31 - 128]
        beyond = random.choice(np.array([*far, *whole], np.float32), shape)
        finite = np.abs(beyond) < 1e38
        beyond = np.where(finite, beyond * scale, beyond)
        rare = random.integers(0, 8, shape) == 0
        return np.where(rare, beyond, numbers).astype(np.float32)

    def scaled(self, factor: float) -> Range:
        """Return the same: it is the scale that they are of."""
        return self


@dataclass(frozen=True, kw_only=True)
class Quantize(Case):
    """QUANTIZE of a type, `source`, to `dtype`; the new scale is `ratio` times as large.

    With an `axis` there is a scale for each of its channels.
    """

    tolerance: ClassVar[float] = EXACT

    source: str = "float32"
    dtype: str = "int8"
    kind: str = ORDINARY
    shape: Shape = _SHAPE
    ratio: float = 1.0
    axis: int | None = None
    at_end: bool = False
    draw: int = 0

    def write(self, sheet: Sheet) -> None:
        """One input, one operation, one output."""
        channels = 0 if self.axis is None else self.shape[self.axis]
        result = quantization(sheet.random, self.dtype, self.kind, 2.0, channels)
        zero = result.zero_point
        if channels:
            ends = np.iinfo(self.dtype)
            zero = tuple(map(int, sheet.random.integers(ends.min, ends.max, channels)))
        result = dataclasses.replace(result, zero_point=zero, dimension=self.axis or 0)
        if self.source == "float32":
            most = 40000 if self.dtype == "int16" else 150
            x = sheet.input(
                self.shape,
                Ties(scales=result.scale, axis=self.axis or 0, most=most, at_end=self.at_end),
            )
        else:
            params = _without_zero(
                quantization(sheet.random, self.source, self.kind, 2.0 / self.ratio), self.source
            )
            result = _without_zero(result, self.dtype)
            x = sheet.input(self.shape, Stored(dtype=self.source), params)
        version = 3 if channels else 2 if self.dtype == "int16" else 1
        # The runtime reads whose dimension has the scales before it infers any shape.
        found = sheet.multi(
            "QUANTIZE", [x], 1, None, version, self.shape, self.dtype, quantization=result
        )
        sheet.output(*found)


@dataclass(frozen=True, kw_only=True)
class DequantizeStored(Case):
    """DEQUANTIZE, of `channels` with scales of their own along an `axis` if there are any."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int8"
    kind: str = ORDINARY
    shape: Shape = _SHAPE
    axis: int | None = None
    constant: bool = False
    draw: int = 0

    def limit(self, half: bool) -> float:
        """Return no error, but for results that are stored as half."""
        return HALF if half else EXACT

    def write(self, sheet: Sheet) -> None:
        """One input, one operation, one output."""
        channels = 0 if self.axis is None else self.shape[self.axis]
        params = quantization(sheet.random, self.dtype, self.kind, 2.0, channels)
        params = _without_zero(dataclasses.replace(params, dimension=self.axis or 0), self.dtype)
        values = Stored(dtype=self.dtype)
        if self.constant:
            x = sheet.constant(values.draw(self.shape, sheet.random), self.dtype, params)
        else:
            x = sheet.input(self.shape, values, params)
        version = 5 if channels else {"uint8": 1, "int8": 2, "int16": 3}[self.dtype]
        computed = sheet.op("DEQUANTIZE", [x], None, version)
        # What is computed of constants alone is no node of the GPU's.
        other = sheet.input(self.shape, Range(0.0, 0.0)) if self.constant else None
        sheet.output(computed if other is None else sheet.op("MAXIMUM", [computed, other]))


def _without_zero(found: Quantization, dtype: str) -> Quantization:
    zeros = (0,) * len(found.scale)
    return dataclasses.replace(found, zero_point=zeros) if dtype in ("int16", "int32") else found


_ROUNDED = ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "HARD_SWISH")
_LEAKS = tuple((("alpha", alpha),) for alpha in (0.3, -0.7))
_BETWEEN = (
    *(("int8", "uint8"), ("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")),
    *(("int8", "int16"), ("uint8", "int16"), ("int16", "int8"), ("int16", "int16")),
    *(("int16", "int32"), ("int32", "int8"), ("int32", "int16")),
)

CASES: tuple[Case, ...] = (
    *(QuantizedLookup(op=op, kind=POWER, dtype=d) for op in _ROUNDED for d in ("int8", "uint8")),
    *(
        QuantizedLookup(op="LEAKY_RELU", kind=POWER, dtype=dtype, options=options)
        for options in _LEAKS
        for dtype in ("int8", "uint8")
    ),
    *(QuantizedLookup(op=op, dtype=d) for op in ("LOGISTIC", "TANH") for d in ("int8", "uint8")),
    *(QuantizedLookup(op=op) for op in ("ELU", "EXP", "LOG", "RSQRT", "HARD_SWISH")),
    *(
        QuantizedLookup(op="GELU", dtype=dtype, options=(("approximate", approximate),))
        for dtype in ("int8", "uint8")
        for approximate in (False, True)
    ),
    *(
        QuantizedLookup(
            op=op, dtype="int16", kind=POWER if op == "LEAKY_RELU" else ORDINARY, options=options
        )
        for op, options in (
            *((op, ()) for op in ("ABS", "EXP", "LOG", "LOGISTIC", "RELU", "RELU6", "TANH")),
            *((op, ()) for op in ("RSQRT", "SQRT")),
            *(("LEAKY_RELU", options) for options in _LEAKS),
        )
    ),
    QuantizedLookup(op="LOGISTIC", dtype="int16", kind=POWER, real=8.0),
    QuantizedLookup(op="GELU", dtype="int16", options=(("approximate", True),)),
    *(QuantizedLookup(op="NEG", dtype=dtype) for dtype in ("int8", "int16")),
    QuantizedLookup(op="SQRT"),
    *(QuantizedLookup(op="EXP", real=real) for real in (40.0, 400.0)),
    QuantizedLookup(op="ABS", kind=POWER),
    QuantizedLookup(op="RELU", shape=(3, 33)),
    *(Quantize(dtype=dtype, kind=kind) for dtype in ("int8", "uint8") for kind in (ORDINARY, WIDE)),
    *(Quantize(shape=shape) for shape in ((), (5,), (3, 8), (1, 3, 3, 9))),
    *(
        Quantize(dtype=dtype, shape=(7,), at_end=True, draw=draw)
        for dtype in ("int8", "uint8")
        for draw in (1, 2)
    ),
    *(Quantize(dtype="int16", kind=POWER, shape=shape) for shape in ((2, 5, 3, 8), (5, 23), (7,))),
    Quantize(dtype="int16", shape=(3, 5, 41)),
    Quantize(dtype="int16", shape=(7,), at_end=True),
    *(
        Quantize(dtype=dtype, kind=kind, shape=(2, 3, 5, 29), axis=axis)
        for dtype in ("int8", "uint8", "int16")
        for kind, axis in ((POWER, 3), (ORDINARY, 1))
    ),
    *(Quantize(dtype=dtype, shape=(3, 31), axis=0, at_end=True) for dtype in ("int8", "int16")),
    *(Quantize(dtype="int8", kind=WIDE, shape=shape, axis=0) for shape in ((6,), (4, 5, 6))),
    Quantize(dtype="int8", shape=(2, 2, 3, 4, 5), axis=3),
    *(Quantize(source=source, dtype=dtype, kind=POWER) for source, dtype in _BETWEEN),
    Quantize(source="uint8", kind=POWER, shape=(2, 5, 3, 16)),
    Quantize(source="int8", kind=POWER, shape=(3, 5)),
    *(DequantizeStored(dtype=dtype) for dtype in ("int8", "uint8", "int16")),
    *(DequantizeStored(shape=shape) for shape in ((7,), (2, 3, 4, 8))),
    *(DequantizeStored(axis=axis) for axis in (0, 3)),
    *(DequantizeStored(constant=True, axis=axis) for axis in (None, 3)),
)
