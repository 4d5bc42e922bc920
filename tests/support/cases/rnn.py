"""Cases of RNN, UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN and _LSTM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cases.base import Case, Range, Sheet
from cases.conv_2d import ACTIVATIONS
from cases.lstm import Lstm
from litegpu.zoo.writer import TensorRef

_SMALL = Range(-0.5, 0.5)
NO_AUXILIARY, OWN_WEIGHTS, BACKWARD = "none", "own_weights", "backward"
"""What an auxiliary input is: absent, a part of both inputs, or the input of the backward layer."""


@dataclass(frozen=True, kw_only=True)
class Rnn(Case):
    """An RNN with seeded float weights; `steps` of 0 is the operation for one step."""

    batch: int = 2
    steps: int = 4
    inputs: int = 5
    units: int = 6
    time_major: bool = False
    activation: str = "TANH"
    half_weights: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one state, one RNN, one output."""
        options: dict[str, Any] = {"fused_activation_function": self.activation}
        shape: tuple[int, ...] = (self.batch, self.inputs)
        if self.steps:
            options["time_major"] = self.time_major
            shape = _sequence(self.batch, self.steps, self.inputs, self.time_major)
        weights = _rnn_operands(sheet, self.inputs, self.units, self.batch, self.half_weights)
        name = "UNIDIRECTIONAL_SEQUENCE_RNN" if self.steps else "RNN"
        sheet.output(sheet.op(name, [sheet.input(shape), *weights], options))


def _sequence(batch: int, steps: int, channels: int, time_major: bool) -> tuple[int, int, int]:
    return (steps, batch, channels) if time_major else (batch, steps, channels)


def _rnn_operands(
    sheet: Sheet, inputs: int, units: int, batch: int, half: bool = False
) -> list[TensorRef]:
    weights, recurrent, bias = (
        sheet.weights(shape, _SMALL, half=half)
        for shape in ((units, inputs), (units, units), (units,))
    )
    return [weights, recurrent, bias, sheet.variable((batch, units))]


@dataclass(frozen=True, kw_only=True)
class _BothDirections(Case):
    batch: int = 2
    steps: int = 3
    inputs: int = 5
    auxiliary: str = NO_AUXILIARY
    auxiliary_inputs: int = 5
    time_major: bool = False
    merged: bool = False
    activation: str = "TANH"

    def options(self) -> dict[str, Any]:
        """Return the options of both."""
        return {
            "fused_activation_function": self.activation,
            "time_major": self.time_major,
            "merge_outputs": self.merged,
        }

    def data(self, sheet: Sheet) -> tuple[TensorRef, TensorRef | None]:
        """Add the input and the auxiliary input."""
        source, other = (
            _sequence(self.batch, self.steps, channels, self.time_major)
            for channels in (self.inputs, self.auxiliary_inputs)
        )
        first = sheet.input(source)
        return first, None if self.auxiliary == NO_AUXILIARY else sheet.input(other)


@dataclass(frozen=True, kw_only=True)
class BidirectionalRnn(_BothDirections):
    """An RNN over a sequence in both directions."""

    forward: int = 6
    backward: int = 6

    def write(self, sheet: Sheet) -> None:
        """One input or two, two states, one output or two."""
        source, other = self.data(sheet)
        units = (self.forward, self.backward)
        operands: list[TensorRef | None] = [source]
        for each in units:
            operands += _rnn_operands(sheet, self.inputs, each, self.batch)
        operands.append(other)
        own = self.auxiliary == OWN_WEIGHTS
        for each in units:
            shape = (each, self.auxiliary_inputs)
            operands.append(sheet.weights(shape, _SMALL) if own else None)
        count = 1 if self.merged else 2
        sheet.output(*sheet.multi("BIDIRECTIONAL_SEQUENCE_RNN", operands, count, self.options()))


@dataclass(frozen=True, kw_only=True)
class BidirectionalLstm(_BothDirections):
    """An LSTM over a sequence in both directions; `outputs` of 0 means no projection."""

    cells: int = 6
    outputs: int = 0
    projection_bias: bool = False
    cifg: bool = False
    peephole: bool = False
    cell_clip: float = 0.0
    proj_clip: float = 0.0

    def write(self, sheet: Sheet) -> None:
        """One input or two, four states, one output or two."""
        source, other = self.data(sheet)
        common = Lstm(
            batch=self.batch,
            inputs=self.inputs,
            projection_bias=self.projection_bias,
            cifg=self.cifg,
            peephole=self.peephole,
            all_slots=False,
        )
        lstm = replace(common, cells=self.cells, outputs=self.outputs)
        layers = [lstm.operands(sheet) for _ in range(2)]
        operands = [source, *(each for layer in layers for each in layer[:17])]
        operands += [*(each for layer in layers for each in layer[17:]), other]
        shape = (self.cells, self.auxiliary_inputs)
        for _ in layers:
            for gate in range(4):
                own = self.auxiliary == OWN_WEIGHTS and not (self.cifg and gate == 0)
                operands.append(sheet.weights(shape, _SMALL) if own else None)
        options = {**self.options(), "cell_clip": self.cell_clip, "proj_clip": self.proj_clip}
        count = 1 if self.merged else 2
        sheet.output(*sheet.multi("BIDIRECTIONAL_SEQUENCE_LSTM", operands, count, options, 3))


CASES: tuple[Case, ...] = (
    *(Rnn(units=n, inputs=10 - n, batch=1 + n % 3, steps=1 + n % 4) for n in range(1, 10)),
    Rnn(units=33, inputs=70, steps=9, batch=1),
    Rnn(time_major=True, half_weights=True),
    *(Rnn(activation=activation) for activation in ACTIVATIONS),
    *(Rnn(steps=0, units=n, inputs=10 - n, batch=1 + n % 3) for n in (1, 4, 7)),
    *(
        BidirectionalRnn(
            auxiliary=auxiliary, time_major=major, merged=merged, forward=forward, batch=batch
        )
        for auxiliary in (NO_AUXILIARY, OWN_WEIGHTS, BACKWARD)
        for major in (False, True)
        for merged, forward, batch in ((False, 6, 1), (True, 4, 3), (True, 7, 2))
    ),
    BidirectionalRnn(auxiliary=OWN_WEIGHTS, auxiliary_inputs=3, activation="RELU", steps=1),
    BidirectionalRnn(forward=9, backward=1, inputs=8, merged=True, activation="NONE"),
    *(
        BidirectionalLstm(
            auxiliary=auxiliary,
            time_major=major,
            merged=merged,
            cells=cells,
            cifg=cifg,
            batch=batch,
        )
        for auxiliary in (NO_AUXILIARY, OWN_WEIGHTS, BACKWARD)
        for major, merged, cells, cifg, batch in (
            (False, False, 6, False, 2),
            (False, True, 8, True, 1),
            (True, False, 8, True, 3),
            (True, True, 7, False, 2),
        )
    ),
    *(
        BidirectionalLstm(peephole=peephole, cifg=cifg, outputs=outputs, projection_bias=bias)
        for peephole, cifg, outputs, bias in (
            (True, False, 0, False),
            (True, True, 0, False),
            (True, True, 5, True),
            (False, False, 4, False),
        )
    ),
    *(BidirectionalLstm(activation=activation, batch=3) for activation in ACTIVATIONS[1:4]),
    BidirectionalLstm(cell_clip=0.25, outputs=5, proj_clip=0.0625, merged=True, batch=1),
    BidirectionalLstm(auxiliary=OWN_WEIGHTS, auxiliary_inputs=9, batch=1, steps=1, peephole=True),
    BidirectionalLstm(cells=1, inputs=1, batch=3, steps=5),
)
