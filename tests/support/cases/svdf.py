"""Cases of SVDF: floats, floats with 8-bit weights, and 8-bit integers."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import ANY, EXACT, Case, Range, Shape, Sheet
from cases.conv_2d import ACTIVATIONS
from cases.hybrid import Rows
from cases.quantized import ORDINARY, POWER, Stored, quantization
from litegpu.graph import Quantization
from litegpu.zoo.writer import TensorRef

_SMALL = Range(-0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class Svdf(Case):
    """One step; `hybrid` has weights of int8."""

    batch: int = 2
    inputs: int = 5
    units: int = 6
    rank: int = 1
    memory: int = 3
    bias: bool = True
    activation: str = "NONE"
    hybrid: bool = False
    asymmetric: bool = False
    half_weights: bool = False
    values: Range = ANY

    def write(self, sheet: Sheet) -> None:
        """One input, one state, one output."""
        filters = self.units * self.rank
        options = {
            "rank": self.rank,
            "fused_activation_function": self.activation,
            "asymmetric_quantize_inputs": self.asymmetric,
        }
        inputs: list[TensorRef | None] = [
            sheet.input((self.batch, self.inputs), self.values),
            self._weights(sheet, (filters, self.inputs)),
            self._weights(sheet, (filters, self.memory)),
            sheet.weights((self.units,), _SMALL) if self.bias else None,
            sheet.variable((self.batch, filters * self.memory)),
        ]
        sheet.output(sheet.op("SVDF", inputs, options, 4 if self.hybrid else 1))

    def _weights(self, sheet: Sheet, shape: Shape) -> TensorRef:
        if not self.hybrid:
            return sheet.weights(shape, _SMALL, half=self.half_weights)
        data = sheet.random.integers(-127, 128, shape)
        return sheet.constant(data, "int8", Quantization((2.0**-7,), (0,)))


@dataclass(frozen=True, kw_only=True)
class QuantizedSvdf(Case):
    """One step of int8 with a state of int16; equal to the CPU's in every bit."""

    tolerance = EXACT

    kind: str = ORDINARY
    batch: int = 2
    inputs: int = 5
    units: int = 6
    rank: int = 1
    memory: int = 3
    bias: bool = True

    def write(self, sheet: Sheet) -> None:
        """One input, one state, one output."""
        random, filters = sheet.random, self.units * self.rank
        source = quantization(random, "int8", self.kind, 2.0)
        scales = {
            name: Quantization((real / ends,), (0,))
            for name, real, ends in (("features", 1, 128), ("time", 1, 2**15), ("state", 4, 2**15))
        }
        options = {"rank": self.rank, "fused_activation_function": "RELU"}
        time = random.integers(-(2**11), 2**11, (filters, self.memory))
        inputs: list[TensorRef | None] = [
            sheet.input((self.batch, self.inputs), Stored(dtype="int8"), source),
            sheet.constant(
                Stored(dtype="int8").draw((filters, self.inputs), random),
                *("int8", scales["features"]),
            ),
            sheet.constant(time, "int16", scales["time"]),
            sheet.constant(random.integers(-3000, 3000, self.units), "int32")
            if self.bias
            else None,
            sheet.variable((self.batch, filters * self.memory), "int16", scales["state"]),
        ]
        result = quantization(random, "int8", self.kind, 0.25)
        sheet.output(sheet.op("SVDF", inputs, options, 3, "int8", result))


CASES: tuple[Case, ...] = (
    *(Svdf(units=n, inputs=10 - n, batch=1 + n % 3, memory=1 + n % 4) for n in range(1, 10)),
    *(Svdf(rank=rank, units=units) for rank, units in ((2, 3), (3, 5), (4, 8))),
    Svdf(units=33, inputs=70, memory=9, batch=1, rank=2),
    Svdf(bias=False),
    Svdf(half_weights=True, rank=2),
    *(Svdf(activation=activation) for activation in ACTIVATIONS),
    *(
        Svdf(hybrid=True, asymmetric=asymmetric, values=values, rank=rank)
        for asymmetric in (False, True)
        for values, rank in ((Rows(), 1), (Rows(zeros=True), 2), (Range(), 1))
    ),
    Svdf(hybrid=True, bias=False, activation="RELU6", units=9, inputs=33, batch=3),
    *(
        QuantizedSvdf(units=n, inputs=10 - n, batch=1 + n % 3, memory=1 + n % 4, kind=kind)
        for n in range(1, 10)
        for kind in (ORDINARY, POWER)
    ),
    QuantizedSvdf(rank=2, memory=8, units=7, inputs=40),
    QuantizedSvdf(rank=3, bias=False),
)
