"""Cases of LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import EXACT, HALF, LARGE, Case, Range, Shape, Sheet
from cases.conv_2d import ACTIVATIONS
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization
from litegpu.zoo.writer import TensorRef

_SMALL = Range(-0.5, 0.5)


@dataclass(frozen=True, kw_only=True)
class Lstm(Case):
    """An LSTM with seeded float weights; `steps` of 0 is the operation for one step.

    `outputs` of 0 means no projection; with `cifg` the input gate is what the forget gate leaves.
    """

    batch: int = 2
    steps: int = 4
    inputs: int = 5
    cells: int = 6
    outputs: int = 0
    projection_bias: bool = False
    cifg: bool = False
    peephole: bool = False
    normalized: bool = False
    time_major: bool = False
    activation: str = "TANH"
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    half_weights: bool = False
    all_slots: bool = True

    @property
    def has_large_weights(self) -> bool:
        """See Case.has_large_weights."""
        return self.cells > 128

    def write(self, sheet: Sheet) -> None:
        """One input, two states, one LSTM, one output."""
        sequence = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        shape = (*(sequence if self.steps else (self.batch,)), self.inputs)
        options = {
            "fused_activation_function": self.activation,
            "cell_clip": self.cell_clip,
            "proj_clip": self.proj_clip,
        }
        if self.steps:
            options["time_major"] = self.time_major
        name = "UNIDIRECTIONAL_SEQUENCE_LSTM" if self.steps else "LSTM"
        sheet.output(sheet.op(name, [sheet.input(shape), *self.operands(sheet)], options))

    def operands(self, sheet: Sheet) -> list[TensorRef | None]:
        """Add weights and states: all inputs but the first."""
        outputs = self.outputs or self.cells
        gates = (not self.cifg, True, True, True)

        def some(present: bool, *shape: int, values: Range = _SMALL) -> TensorRef | None:
            return sheet.weights(shape, values, half=self.half_weights) if present else None

        cells, peephole = (self.cells,), (gates[0], True, True)
        operands = [some(each, *cells, self.inputs) for each in gates]
        operands += [some(each, *cells, outputs) for each in gates]
        operands += [some(each and self.peephole, *cells) for each in peephole]
        operands += [some(each, *cells) for each in gates]
        operands.append(some(self.outputs > 0, outputs, self.cells))
        operands.append(some(self.projection_bias, outputs))
        operands += [sheet.variable((self.batch, outputs)), sheet.variable((self.batch, *cells))]
        if self.all_slots:
            ones = Range(0.5, 1.5)
            operands += [some(each and self.normalized, *cells, values=ones) for each in gates]
        return operands


@dataclass(frozen=True, kw_only=True)
class BasicLstm(Case):
    """One step of the basic LSTM; all 4 of its results are outputs."""

    batch: int = 2
    inputs: int = 5
    cells: int = 6
    half_weights: bool = False

    def write(self, sheet: Sheet) -> None:
        """Three inputs, one LSTM, four outputs."""
        state: Shape = (self.batch, self.cells)
        data, before, last = map(sheet.input, ((self.batch, self.inputs), state, state))
        gates = 4 * self.cells
        shapes: tuple[Shape, ...] = ((gates, self.inputs + self.cells), (gates,))
        weights, bias = (sheet.weights(each, _SMALL, half=self.half_weights) for each in shapes)
        options = {"kernel_type": "BASIC", "fused_activation_function": "TANH"}
        inputs = [data, before, weights, bias, last]
        sheet.output(*sheet.multi("LSTM", inputs, 4, options, version=2))


@dataclass(frozen=True, kw_only=True)
class IntegerLstm(Case):
    """An LSTM of int8 with gates and cells of int16; equal to the CPU's in every bit.

    `cell_bits` is the number of integer bits of the cell state. With `floats` input and output are
    float32, between QUANTIZE and DEQUANTIZE. The other fields are as of `Lstm`.
    """

    tolerance = EXACT

    kind: str = ORDINARY
    batch: int = 2
    steps: int = 4
    inputs: int = 5
    cells: int = 6
    outputs: int = 0
    projection_bias: bool = False
    cifg: bool = False
    peephole: bool = False
    normalized: bool = False
    time_major: bool = False
    cell_bits: int = 3
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    all_slots: bool = True
    floats: bool = False

    def limit(self, half: bool) -> float:
        """Floats may be stored as half; bytes are exact."""
        return HALF if half and self.floats else self.tolerance

    def write(self, sheet: Sheet) -> None:
        """One input, two states, one LSTM, one output."""
        sequence = (self.steps, self.batch) if self.time_major else (self.batch, self.steps)
        shape = (*(sequence if self.steps else (self.batch,)), self.inputs)
        options = {
            "fused_activation_function": "TANH",
            "cell_clip": self.cell_clip,
            "proj_clip": self.proj_clip,
        }
        if self.steps:
            options["time_major"] = self.time_major
        source = quantization(sheet.random, "int8", self.kind, 2.0)
        if self.floats:
            data = sheet.op("QUANTIZE", [sheet.input(shape)], dtype="int8", quantization=source)
        else:
            data = sheet.input(shape, Stored(dtype="int8"), source)
        result = quantization(sheet.random, "int8", ORDINARY)
        # Converters give the hidden state without a projection the result's numbers.
        hidden = quantization(sheet.random, "int8", ORDINARY) if self.outputs else result
        name = "UNIDIRECTIONAL_SEQUENCE_LSTM" if self.steps else "LSTM"
        found = sheet.op(
            *(name, [data, *self._operands(sheet, result)], options),
            dtype="int8",
            quantization=result,
            intermediates=(*self._of_gates(sheet), hidden),
        )
        sheet.output(sheet.op("DEQUANTIZE", [found]) if self.floats else found)

    def _of_gates(self, sheet: Sheet) -> list[Quantization | None]:
        """Return the quantization of each gate before its normalization."""
        if not self.normalized:
            return [None] * 4
        return [quantization(sheet.random, "int16", self.kind, 8.0) for _ in range(4)]

    def _operands(self, sheet: Sheet, result: Quantization) -> list[TensorRef | None]:
        """Add weights and states: all inputs but the first."""
        outputs, random = self.outputs or self.cells, sheet.random
        gates, cells = (not self.cifg, True, True, True), (self.cells,)

        def some(present: bool, *shape: int, dtype: str = "int8") -> TensorRef | None:
            if not present:
                return None
            scale = quantization(random, dtype, self.kind, channels=1)
            return sheet.constant(Stored(dtype=dtype).draw(shape, random), dtype, scale)

        def bias(present: bool, count: int) -> TensorRef | None:
            return sheet.constant(random.integers(-9000, 9000, count), "int32") if present else None

        operands = [some(each, *cells, self.inputs) for each in gates]
        operands += [some(each, *cells, outputs) for each in gates]
        peephole = (gates[0], True, True)
        operands += [some(each and self.peephole, *cells, dtype="int16") for each in peephole]
        operands += [bias(each, self.cells) for each in gates]
        operands.append(some(self.outputs > 0, outputs, self.cells))
        operands.append(bias(self.projection_bias, outputs))
        cell = Quantization((2.0 ** (self.cell_bits - 15),), (0,))
        operands.append(sheet.variable((self.batch, outputs), "int8", result))
        operands.append(sheet.variable((self.batch, *cells), "int16", cell))
        if self.normalized:
            return operands + [some(each, *cells, dtype="int16") for each in gates]
        return operands + [None] * (4 if self.all_slots else 0)


CASES: tuple[Case, ...] = (
    # Sizes
    *(Lstm(cells=c, inputs=10 - c, batch=1 + c % 3, steps=1 + c % 4) for c in range(1, 10)),
    Lstm(cells=133, inputs=70, steps=9, batch=1),
    Lstm(cells=110, inputs=12, steps=3),
    Lstm(cells=90, inputs=9, outputs=67, steps=3),
    # Kinds
    *(
        Lstm(cifg=cifg, peephole=peephole, normalized=normalized, outputs=outputs, time_major=major)
        for cifg in (False, True)
        for peephole in (False, True)
        for normalized in (False, True)
        for outputs in (0, 3)
        for major in (False, True)
    ),
    Lstm(outputs=5, projection_bias=True),
    Lstm(outputs=5, projection_bias=True, cifg=True, time_major=True, all_slots=False),
    Lstm(half_weights=True, peephole=True, outputs=4, projection_bias=True),
    *(Lstm(activation=activation) for activation in ACTIVATIONS[1:4]),
    Lstm(cell_clip=0.25),
    Lstm(outputs=5, proj_clip=0.0625, cell_clip=0.5),
    Lstm(proj_clip=0.0625),
    Lstm(cells=133, items=LARGE, normalized=True, peephole=True),
    # One step
    *(Lstm(steps=0, cells=c, inputs=10 - c) for c in (1, 4, 7)),
    Lstm(steps=0, batch=1, outputs=5, peephole=True, cifg=True),
    Lstm(steps=0, normalized=True, all_slots=True),
    *(BasicLstm(cells=c, inputs=10 - c, batch=1 + c % 3) for c in range(1, 10)),
    BasicLstm(cells=40, inputs=33),
    BasicLstm(cells=4, inputs=4, half_weights=True),
    # Integers
    *(IntegerLstm(cells=c, inputs=10 - c, batch=1 + c % 3, steps=c) for c in (1, 3, 4, 5, 9)),
    IntegerLstm(time_major=True),
    IntegerLstm(outputs=3, time_major=True, kind=POWER),
    IntegerLstm(outputs=3, cifg=True, steps=6),
    *(IntegerLstm(cell_bits=bits, steps=9, batch=1) for bits in (0, 1, 5, 6)),
    IntegerLstm(cells=133, inputs=70, steps=9, batch=1),
    IntegerLstm(cells=90, inputs=9, outputs=67, steps=3, projection_bias=True),
    IntegerLstm(kind=WIDE, steps=7),
    IntegerLstm(outputs=5, projection_bias=True, all_slots=False, proj_clip=0.25),
    IntegerLstm(peephole=True, steps=5),
    IntegerLstm(peephole=True, cifg=True, kind=POWER),
    # Peephole weights are read by outputs, across sequences unless each is computed alone.
    *(
        IntegerLstm(peephole=True, outputs=outputs, time_major=major, batch=3, cifg=outputs == 3)
        for outputs in (3, 5, 6)
        for major in (False, True)
    ),
    IntegerLstm(steps=0, batch=3, outputs=4, cells=7, peephole=True),
    *(
        IntegerLstm(normalized=True, cells=c, inputs=10 - c, cifg=c == 5, kind=kind, steps=5)
        for kind in (ORDINARY, POWER, WIDE)
        for c in (1, 3, 5, 8)
    ),
    IntegerLstm(normalized=True, cells=133, inputs=70, steps=9, batch=1),
    IntegerLstm(normalized=True, peephole=True, outputs=3, projection_bias=True, time_major=True),
    IntegerLstm(steps=0, cells=7, normalized=True),
    IntegerLstm(floats=True, cells=9),
    IntegerLstm(cell_clip=0.5, steps=6),
    IntegerLstm(cell_clip=10.0, cell_bits=4, cells=20, inputs=28, steps=28, batch=1),
    IntegerLstm(steps=0, cells=7),
    IntegerLstm(steps=0, batch=1, outputs=5, cifg=True),
)
