"""Rejected RNNs, and LSTMs in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cases.rejected.base import Rejected, Tensor, computed, floats
from litegpu.graph import DType, Quantization

_SCALED = Quantization((0.5,), (0,))
_SIZE, _UNITS = 5, 6
_Changed = Mapping[int, Tensor | None]
_INT8 = Tensor(shape=(_UNITS, _SIZE), dtype=DType.INT8, quantization=_SCALED, data=1)


def _state(units: int) -> Tensor:
    return Tensor(shape=(2, units), variable=True)


def _layer(units: int = _UNITS) -> list[Tensor]:
    return [floats(units, _SIZE), floats(units, units), floats(units), _state(units)]


def _rnn(changed: _Changed, reason: str, units: int = _UNITS, **params: Any) -> Rejected:
    operands = dict(enumerate([computed(2, 4, _SIZE), *_layer(units)]))
    return Rejected(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        tuple({**operands, **changed}.values()),
        reason,
        params={"activation": "tanh", "time_major": False, **params},
    )


_BOTH_WAYS = {"activation": "tanh", "time_major": False, "merge_outputs": False}


def _both(changed: _Changed, reason: str, outputs: int = 2, **params: Any) -> Rejected:
    operands = [computed(2, 4, _SIZE), *_layer(), *_layer(), None, None, None]
    return Rejected(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        tuple({**dict(enumerate(operands)), **changed}.values()),
        reason,
        params={**_BOTH_WAYS, **params},
        outputs=outputs,
    )


def _lstm(changed: _Changed, reason: str, outputs: int = 2, **params: Any) -> Rejected:
    operands: dict[int, Tensor | None] = dict.fromkeys(range(48))
    operands[0] = computed(2, 4, _SIZE)
    for first in (1, 18):
        operands |= {first + i: floats(_UNITS, _SIZE) for i in range(4)}
        operands |= {first + i: floats(_UNITS, _UNITS) for i in range(4, 8)}
        operands |= {first + i: floats(_UNITS) for i in range(11, 15)}
    operands |= {i: _state(_UNITS) for i in range(35, 39)}
    return Rejected(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        tuple({**operands, **changed}.values()),
        reason,
        params={**_BOTH_WAYS, "cell_clip": 0.0, "proj_clip": 0.0, **params},
        outputs=outputs,
    )


_OWN = {10: floats(_UNITS, 3), 11: floats(_UNITS, 3)}

CASES = (
    _rnn(
        {1: _INT8},
        "An RNN's state is quantized at each step, and its rounding depends on the last bits of "
        "the sums.",
    ),
    _rnn(
        {0: Tensor(shape=(2, 4, _SIZE), dtype=DType.INT8, quantization=_SCALED)},
        "The CPU does not compute integer RNNs.",
    ),
    _rnn({0: computed(2, _SIZE)}, f"The input must have 3 dimensions, not [2, {_SIZE}]."),
    _rnn(
        {2: floats(6, 5)},
        "Weights of [6, 5] and [6, 5] with a bias of [6] do not fit an RNN of 5 inputs.",
    ),
    _rnn(
        {},
        "2050 units need 16928 bytes of work-group memory; some devices have only 16384.",
        units=2050,
    ),
    _rnn({4: _state(7)}, "The state (input 4) has the shape [2, 7] instead of [2, 6]."),
    _both({}, "Expected 1 output tensor(s), but node has 2.", merge_outputs=True),
    _both(
        {7: floats(7)},
        "Backward, as UNIDIRECTIONAL_SEQUENCE_RNN: Weights of [6, 5] and [6, 6] with a bias of [7] "
        "do not fit an RNN of 5 inputs.",
    ),
    _both(_OWN, "The auxiliary input (input 9) is missing."),
    _both(
        {9: computed(2, 4, 3)},
        "The auxiliary input has the shape [2, 4, 3], the input [2, 4, 5].",
    ),
    _both(
        {**_OWN, 9: computed(2, 3, 3)},
        "The auxiliary input has the shape [2, 3, 3], the input [2, 4, 5].",
    ),
    _both(
        {**_OWN, 9: computed(2, 4, 7)},
        "The auxiliary weights (input 10) have the shape [6, 3] instead of [6, 7].",
    ),
    _both(
        {10: _OWN[10], 9: computed(2, 4, 3)},
        "The auxiliary weights (input 11) is missing.",
    ),
    _both(
        {
            **{0: computed(4, 2, _SIZE), 9: computed(4, 2, 3)},
            **_OWN,
        },
        "In time-major layout, the CPU reads 5 channels of an auxiliary input that has 3.",
        time_major=True,
    ),
    _lstm(
        {20: None},
        "Backward, as UNIDIRECTIONAL_SEQUENCE_LSTM: The input weights of the cell (input 3) is "
        "missing.",
    ),
    _lstm(
        {},
        "With merged outputs and 2 sequences the CPU reads beyond the state of an LSTM, unless "
        "time is the first dimension.",
        outputs=1,
        merge_outputs=True,
    ),
)
