"""Rejected LSTMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cases.rejected.base import Rejected, Tensor, computed, floats, integers
from litegpu.graph import DType, Quantization

_SCALED = Quantization((0.5,), (0,))
_Operands = Mapping[int, Tensor | None]
_SIZE, _CELLS = 5, 6


def _operands(cells: int, outputs: int) -> dict[int, Tensor | None]:
    found: dict[int, Tensor | None] = dict.fromkeys(range(24))
    found[0] = computed(2, 4, _SIZE)
    found |= {i: floats(cells, _SIZE) for i in range(1, 5)}
    found |= {i: floats(cells, outputs) for i in range(5, 9)}
    found |= {i: floats(cells) for i in range(12, 16)}
    return found | {18: _state(2, outputs), 19: _state(2, cells)}


def _state(*shape: int) -> Tensor:
    return Tensor(shape=shape, variable=True)


def _full(
    changed: _Operands, reason: str, cells: int = _CELLS, outputs: int = _CELLS, **params: Any
) -> Rejected:
    operands = tuple({**_operands(cells, outputs), **changed}.values())
    return Rejected("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, reason, params=params)


def _basic(
    changed: _Operands, reason: str, outputs: int = 4, version: int = 2, **params: Any
) -> Rejected:
    operands = (computed(2, 5), _state(2, 6), floats(24, 11), floats(24), _state(2, 6))
    inputs = tuple({**dict(enumerate(operands)), **changed}.values())
    return Rejected("LSTM", inputs, reason, params, version, outputs)


_GATE_SCALES = (0.0, 0.0, 0.0, 0.0, 0.5)


def _bytes(*shape: int, dtype: DType = DType.INT8) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, data=1, quantization=_SCALED)


def _integer(
    changed: _Operands, reason: str, cells: int = _CELLS, outputs: int = _CELLS, **params: Any
) -> Rejected:
    operands: dict[int, Tensor | None] = dict.fromkeys(range(24))
    operands[0] = Tensor(shape=(2, 4, _SIZE), dtype=DType.INT8, quantization=_SCALED)
    operands |= {i: _bytes(cells, _SIZE) for i in range(1, 5)}
    operands |= {i: _bytes(cells, outputs) for i in range(5, 9)}
    operands |= {i: replace(integers(0), shape=(cells,)) for i in range(12, 16)}
    state = replace(_state(2, outputs), dtype=DType.INT8, quantization=_SCALED)
    operands |= {18: state, 19: _cell_state(2.0**-12, cells)}
    params = {
        "intermediate_scales": _GATE_SCALES,
        "intermediate_zero_points": (0,) * 5,
        **params,
    }
    return Rejected(
        *("UNIDIRECTIONAL_SEQUENCE_LSTM", tuple({**operands, **changed}.values()), reason, params),
        result=DType.INT8,
        quantization=_SCALED,
    )


def _cell_state(scale: float, cells: int = _CELLS) -> Tensor:
    return replace(_state(2, cells), dtype=DType.INT16, quantization=Quantization((scale,), (0,)))


_OUTPUT_STATE = Tensor(shape=(2, _CELLS), dtype=DType.INT8, variable=True)
_PEEPHOLES = {i: _bytes(_CELLS, dtype=DType.INT16) for i in (9, 10, 11)}
_INTEGERS = (
    _integer({}, "The activation of an integer LSTM must be tanh, not relu.", activation="relu"),
    _integer(
        {20 + i: _bytes(_CELLS, dtype=DType.INT16) for i in range(4)},
        "The intermediate tensors of an integer LSTM must be 5, with scales of those numbered 0, "
        "1, 2, 3, 4; the node has 5.",
    ),
    _integer(
        {**_PEEPHOLES, 16: _bytes(7, _CELLS)},
        "The CPU reads 7 peephole weights of an integer LSTM with a projection, more than its 6 "
        "cells have.",
        outputs=7,
    ),
    _integer(
        {},
        "The CPU computes integer LSTMs with 12 intermediate tensors partly in floats, and reads "
        "beyond the end of its list of multipliers.",
        intermediate_scales=(0.5,) * 12,
    ),
    _integer(
        {},
        "The intermediate tensors of an integer LSTM must be 5, with scales of those numbered 4; "
        "the node has 5.",
        intermediate_scales=(0.0,) * 5,
    ),
    _integer(
        {16: _bytes(_CELLS, 4100)},  # a projection: without one the weights have 67 MB
        "4100 cells are more than the 4096 that one work group computes.",
        cells=4100,
    ),
    _integer(
        {19: _cell_state(2.0**-8)},
        "The cell state has the scale 0.00390625; the GPU computes powers of two from 2^-15 to "
        "2^-9.",
    ),
    _integer(
        {19: _cell_state(0.001)},
        "The cell state has the scale 0.001; the GPU computes powers of two from 2^-15 to 2^-9.",
    ),
    _integer({18: _OUTPUT_STATE}, "tensor 18 needs one scale and one zero point."),
    _integer(
        {19: replace(_cell_state(1.0), quantization=None)},
        "tensor 19 needs one scale and the zero point 0.",
    ),
    _integer({19: _state(2, _CELLS)}, "The state (input 19) is FLOAT32 instead of INT16."),
    _integer(
        {13: floats(_CELLS)}, "The bias of the forget gate (input 13) is FLOAT32 instead of INT32."
    ),
    Rejected(
        "LSTM",
        (Tensor(shape=(2, _SIZE), dtype=DType.UINT8, quantization=_SCALED),),
        "The GPU does not compute integer LSTMs of the basic kernel.",
        version=2,
    ),
)
_INT8 = Tensor(shape=(_CELLS, _SIZE), dtype=DType.INT8, data=1)

_NO_PEEPHOLE = "The peephole weights of the input gate (input 9) "

CASES = (
    _full(
        {1: replace(_INT8, quantization=_SCALED)},
        "The CPU computes an LSTM's logistic and tanh with vector instructions, whose last bits "
        "a GPU cannot reproduce, also with quantized weights.",
    ),
    *_INTEGERS,
    Rejected(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        (computed(2, 4, _SIZE),),
        "Expected 20 or 24 input tensors, but node has 1 input(s).",
    ),
    Rejected(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        tuple(_operands(6, 6).values()),
        "Expected 1 output tensor, but node has 2 output(s).",
        outputs=2,
    ),
    Rejected(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        tuple(_operands(6, 6).values()),
        "Max version supported: 4. Requested version 5.",
        version=5,
    ),
    _full(
        {0: floats(2, 4, 5)}, "The input (input 0) is constant; only computed ones are supported."
    ),
    _full({}, "Unsupported fused activation: sign_bit", activation="sign_bit"),
    _full(
        {},
        "The recurrent weights are diagonals (diagonal_recurrent_tensors = True).",
        diagonal_recurrent_tensors=True,
        activation="tanh",
    ),
    _full(
        {},
        "The activation of an LSTM must not be none: the CPU leaves its result undefined.",
        activation="none",
    ),
    _full({}, "cell_clip must not be negative, but it is -1.0.", cell_clip=-1.0),
    _full({7: None}, "The recurrent weights of the cell (input 7) is missing."),
    _full({12: None}, "The bias of the input gate (input 12) is missing."),
    _full(
        {10: floats(6), 11: floats(6)},
        _NO_PEEPHOLE + "is missing.",
    ),
    _full({9: floats(6)}, _NO_PEEPHOLE + "needs further operands, which are missing."),
    _full(
        {17: floats(6)},
        "The bias of the projection (input 17) needs further operands, which are missing.",
    ),
    _full(
        {2: _INT8},
        "The input weights of the forget gate (input 2) is INT8 instead of FLOAT16 or FLOAT32.",
    ),
    _full(
        {14: computed(6)},
        "The bias of the cell (input 14) must be constant, but it is computed at run time.",
    ),
    _full({0: computed(2, 5)}, "The input must have 3 dimensions, not [2, 5]."),
    _full(
        {8: floats(6)}, "The recurrent weights of the output gate must have 2 dimensions, not [6]."
    ),
    _full({0: computed(2, 4, 7)}, "The input has 7 channels, its weights 5."),
    _full({13: floats(7)}, "The bias of the forget gate has the shape [7] instead of [6]."),
    _full({}, "Without a projection, 6 cells cannot have 3 outputs.", outputs=3),
    _full(
        {},
        "2000 cells and 2000 outputs need 16512 bytes of work-group memory; some devices have only "
        "16384.",
        cells=2000,
        outputs=2000,
    ),
    _full({19: None}, "The state (input 19) is missing."),
    _full({19: _state(1, 6)}, "The state (input 19) has the shape [1, 6] instead of [2, 6]."),
    Rejected(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        tuple(_operands(6, 6).values()),
        "The state (input 18) is read 2 times; the values that other nodes read would depend on "
        "the order of the nodes.",
        same={19: 18},
    ),
    _basic({}, "Expected 4 output tensor(s), but node has 1 output(s).", outputs=1),
    _basic({}, "Only TANH activation is supported. but node has relu", activation="relu"),
    _basic({}, "proj_clip is not supported: it is 0.5.", proj_clip=0.5),
    _basic({0: computed(2, 1, 5)}, "Input [2, 1, 5] and activation [2, 6] must have 2 dimensions."),
    _basic(
        {2: floats(24, 12)},
        "Weights of [24, 12] and a bias of [24] do not form 4 gates of 6 cells.",
    ),
    _basic({3: integers(*range(24))}, "The bias (input 3) is INT32 instead of FLOAT16 or FLOAT32."),
    _basic({4: _state(2, 7)}, "The state (input 4) has the shape [2, 7] instead of [2, 6]."),
)
