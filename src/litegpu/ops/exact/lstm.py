"""Integer LSTMs: int8 activations and weights, gates and cell states of 16 bits.

The input's share of each gate is a product that is requantized to 16 bits by itself; so is the
share of the previous output. The sum of both saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import frexp, inf

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks, lstm_operands
from litegpu.ops.common.lstm_operands import (
    BIASES,
    CELL_STATE,
    DATA,
    INPUT_WEIGHTS,
    NORMALIZATIONS,
    OUTPUT_STATE,
    PEEPHOLES,
    PROJECTION,
    PROJECTION_BIAS,
    RECURRENT_WEIGHTS,
    ROLES,
    operand_of,
    sizes_of,
)
from litegpu.ops.common.window import POINT
from litegpu.ops.exact import numbers
from litegpu.ops.exact.numbers import Multiplier, float32
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_lstm import (
    MAX_CELLS,
    QUANTIZED_LSTM,
    IntegerGate,
    IntegerNormalization,
    IntegerProjection,
    QuantizedLstmAttributes,
)

SCALES, ZERO_POINTS = "intermediate_scales", "intermediate_zero_points"
"""Parameters of nodes with intermediates: their scales and zero points; 0 for those without."""
_INTERMEDIATES = 5
_OF_BYTES = 12
"""Number of the intermediates of an LSTM whose gates are stored as bytes."""
_HIDDEN = 4
"""Index of the intermediate with the product of output gate and cell, before a projection."""
_GATE_BITS = 12
"""Number of fraction bits of a gate before its activation."""
_GATE_SCALE = 2.0**-_GATE_BITS
_FRACTIONS = 15
"""Number of fraction bits of activated gates."""
_CELL_EXPONENTS = range(-15, -8)
"""The CPU's tanh of the cell state has 0 to 6 integer bits."""
_INT32 = {*BIASES, PROJECTION_BIAS}
_INT16 = {*PEEPHOLES.values(), *NORMALIZATIONS}
"""The positions of the operands of these types; the other operands are int8."""
_PRODUCTS = (
    (DATA, dict(enumerate(INPUT_WEIGHTS))),
    (OUTPUT_STATE, dict(enumerate(RECURRENT_WEIGHTS))),
    (CELL_STATE, PEEPHOLES),
)
"""Each factor of products with weights, and the position of the weights of each gate."""
_BASIC = 1
OF_FLOATS = (
    "The CPU computes an LSTM's logistic and tanh with vector instructions, whose last bits a GPU "
    "cannot reproduce, also with quantized weights."
)
"""Why LSTMs with dynamic-range quantization have no exact implementation."""


class ExactLstm(Exact):
    """LSTM of int8 with an int16 cell state; rescaled sums round half away from zero.

    `rank` is the number of dimensions of the input: 3 for a sequence, 2 for one step.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def check(self, graph: Graph, node: Node) -> str:
        if node.params.get("kernel_type") == _BASIC:
            return "The GPU does not compute integer LSTMs of the basic kernel."
        if graph.values[node.inputs[DATA]].dtype is DType.FLOAT32:
            return _why_not_floats(graph, node)
        return checks.first_of(
            lstm_operands.check_counts(node),
            lambda: checks.computed(graph, node, DATA, "The input"),
            lambda: numbers.check_tensors(
                graph, (node.inputs[DATA], node.outputs[0]), frozenset({DType.INT8})
            ),
            lambda: lstm_operands.check_numbers(node),
            lambda: lstm_operands.check_presence(node),
            lambda: _check_variant(node),
            lambda: _check_types(graph, node),
            lambda: lstm_operands.check_shapes(graph, node, self._rank),
            lambda: _check_size(graph, node),
            lambda: lstm_operands.check_states(graph, node, self._rank),
            lambda: _check_scales(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        gates = lstm_operands.gates_of(node)
        cells = round_up(sizes_of(graph, node).cells, 4)
        source = graph.values[node.inputs[DATA]]
        weights = np.concatenate([_rows(graph, node, INPUT_WEIGHTS[k]) for k in gates])
        biases = np.concatenate([_rows(graph, node, BIASES[k]) for k in gates])
        if _is_normalized(node):
            biases = np.zeros_like(biases)  # which the normalization adds
        shape = (len(weights), 1, 1, int(weights.shape[1]))
        attributes = QuantizedConvAttributes(
            POINT,
            weights=new_value(shape, weights.reshape(shape), dtype=DType.INT8),
            bias=new_value(biases.shape, biases, dtype=DType.INT32),
            shape=shape,
            groups=1,
            input_zero=numbers.zero_point(source),
            weight_zero=0,
        )
        to_gates = [
            _to_gate(graph, node, k, DATA, INPUT_WEIGHTS[k]) for k in gates for _ in range(cells)
        ]
        projected = new_value((*source.shape[:-1], len(weights)), dtype=DType.INT16)
        product = Node(
            *(node.index, QUANTIZED_CONV, 1, (source.id,), (projected,)),
            attributes=attributes,
            epilogue=numbers.requantize(
                new_value, to_gates, [True], 0, numbers.LIMITS[DType.INT16]
            ),
        )
        steps = replace(
            node,
            op=QUANTIZED_LSTM,
            inputs=(projected, *lstm_operands.states_of(node)),
            attributes=_cells(graph, node, gates),
        )
        return product, steps


def _cells(graph: Graph, node: Node, gates: Sequence[int]) -> QuantizedLstmAttributes:
    cell = graph.values[node.inputs[CELL_STATE]]
    hidden_scale, hidden_zero = _hidden(node)
    projection = None
    if operand_of(node, PROJECTION) != ABSENT:
        projection = IntegerProjection(
            node.inputs[PROJECTION],
            operand_of(node, PROJECTION_BIAS),
            _to_output(graph, node),
            numbers.zero_point(graph.values[node.inputs[OUTPUT_STATE]]),
            _clip(node.params["proj_clip"], numbers.scale(graph.values[node.outputs[0]]), 127),
        )
    return QuantizedLstmAttributes(
        cells=sizes_of(graph, node).cells,
        gates=tuple(_gate(graph, node, k) for k in gates),
        output_zero=numbers.zero_point(graph.values[node.inputs[OUTPUT_STATE]]),
        cell_bits=_FRACTIONS + _exponent(numbers.scale(cell)),
        cell_clip=_clip(node.params["cell_clip"], numbers.scale(cell), 2**15 - 1),
        to_hidden=_to_hidden(hidden_scale),
        hidden_zero=hidden_zero,
        projection=projection,
        time_major=bool(node.params.get("time_major", True)),
    )


def _gate(graph: Graph, node: Node, number: int) -> IntegerGate:
    recurrent, peephole = RECURRENT_WEIGHTS[number], PEEPHOLES.get(number)
    weights = ABSENT if peephole is None else node.inputs[peephole]
    return IntegerGate(
        node.inputs[recurrent],
        _to_gate(graph, node, number, OUTPUT_STATE, recurrent),
        weights,
        None
        if peephole is None or weights == ABSENT
        else _to_gate(graph, node, number, CELL_STATE, peephole),
        _normalization(graph, node, number) if _is_normalized(node) else None,
    )


def _normalization(graph: Graph, node: Node, number: int) -> IntegerNormalization:
    weights = node.inputs[NORMALIZATIONS[number]]
    scale = numbers.scale(graph.values[weights])
    return IntegerNormalization(
        weights,
        node.inputs[BIASES[number]],
        _from_normalized(scale),
        max(1, int(float32(10000 * scale))),
    )


def _rows(graph: Graph, node: Node, position: int) -> npt.NDArray[np.generic]:
    """Return a constant whose rows are zero-padded to a multiple of 4."""
    rows = np.asarray(graph.values[node.inputs[position]].data)
    missing = round_up(len(rows), 4) - len(rows)
    return np.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])


def _to_gate(graph: Graph, node: Node, gate: int, factor: int, weights: int) -> Multiplier:
    """Return the multiplier from a product of two inputs (positions) to a gate's 16 bits."""
    scales = [numbers.scale(graph.values[node.inputs[p]]) for p in (factor, weights)]
    result = node.params[SCALES][gate] if _is_normalized(node) else _GATE_SCALE
    return Multiplier.of(float32(float32(scales[0] * scales[1]) / result))


def _from_normalized(scale: float) -> Multiplier:
    """Return the multiplier from products with normalization weights to a gate's 16 bits."""
    plain = Multiplier.of(scale)
    return Multiplier(plain.number, plain.shift + _GATE_BITS)


def _is_normalized(node: Node) -> bool:
    return operand_of(node, NORMALIZATIONS[1]) != ABSENT


def _to_hidden(scale: float) -> Multiplier:
    return Multiplier.of(float32(float32(2.0**-_FRACTIONS / scale) * 2.0**-_FRACTIONS))


def _to_output(graph: Graph, node: Node) -> Multiplier:
    """Return the multiplier from the sums of the projection to the output state."""
    weights = numbers.scale(graph.values[node.inputs[PROJECTION]])
    state = numbers.scale(graph.values[node.inputs[OUTPUT_STATE]])
    return Multiplier.of(float32(float32(weights * _hidden(node)[0]) / state))


def _hidden(node: Node) -> tuple[float, int]:
    """Return scale and zero point of the product of output gate and cell."""
    return node.params[SCALES][_HIDDEN], node.params[ZERO_POINTS][_HIDDEN]


def _clip(limit: float, scale: float, most: int) -> int:
    """Return the stored integer of a limit; 0 for none."""
    return int(min(float32(limit / scale), most))


def _exponent(scale: float) -> int:
    """Return the exponent of a power of two."""
    return frexp(scale)[1] - 1


def _why_not_floats(graph: Graph, node: Node) -> str:
    """Return why an LSTM of floats is not computed exactly, or an integer LSTM not as floats."""
    cell = graph.values.get(operand_of(node, CELL_STATE))
    if cell is not None and cell.dtype is DType.INT16:
        return 'The GPU computes integer LSTMs only with quantized="exact".'
    return OF_FLOATS


def _check_variant(node: Node) -> str:
    if node.params["activation"] != "tanh":
        return f"The activation of an integer LSTM must be tanh, not {node.params['activation']}."
    scales = node.params.get(SCALES, ())
    if len(scales) == _OF_BYTES:
        return (
            "The CPU computes integer LSTMs with 12 intermediate tensors partly in floats, and "
            "reads beyond the end of its list of multipliers."
        )
    needed = [*(lstm_operands.gates_of(node) if _is_normalized(node) else ()), _HIDDEN]
    if len(scales) != _INTERMEDIATES or not all(0 < scales[i] < inf for i in needed):
        listed = ", ".join(map(str, needed))
        return (
            f"The intermediate tensors of an integer LSTM must be {_INTERMEDIATES}, with scales of "
            f"those numbered {listed}; the node has {len(scales)}."
        )
    return ""


def _check_types(graph: Graph, node: Node) -> str:
    reasons = []
    for p in sorted(lstm_operands.present(node)):
        wide = DType.INT16 if p in _INT16 else DType.INT8
        kind = DType.INT32 if p in _INT32 else wide
        reasons.append(checks.integers(graph, node, p, ROLES[p].what, kinds=(kind,)))
    states = ((OUTPUT_STATE, DType.INT8), (CELL_STATE, DType.INT16))
    for p, kind in states:
        reasons.append(checks.integers(graph, node, p, "The state", constant=False, kinds=(kind,)))
    return checks.first_of(*reasons)


def _check_size(graph: Graph, node: Node) -> str:
    sizes = sizes_of(graph, node)
    if sizes.outputs > sizes.cells and PEEPHOLES[1] in lstm_operands.present(node):
        return (
            f"The CPU reads {sizes.outputs} peephole weights of an integer LSTM with a projection, "
            f"more than its {sizes.cells} cells have."
        )
    if max(sizes.cells, sizes.outputs) <= MAX_CELLS:
        return ""
    return f"{sizes.cells} cells are more than the {MAX_CELLS} that one work group computes."


def _check_scales(graph: Graph, node: Node) -> str:
    found = lstm_operands.present(node)
    factors = [node.inputs[p] for p in sorted(found - _INT32)]
    cell = graph.values[node.inputs[CELL_STATE]]
    reason = checks.first_of(
        numbers.check_one_scale(graph, (*factors, cell.id)),
        lambda: numbers.check_one_scale(graph, (node.inputs[OUTPUT_STATE],), symmetric=False),
    )
    if reason:
        return reason
    scale = numbers.scale(cell)
    if frexp(scale)[0] != 0.5 or _exponent(scale) not in _CELL_EXPONENTS:
        return (
            f"The cell state has the scale {scale:g}; the GPU computes powers of two from 2^-15 to "
            "2^-9."
        )
    multipliers = [
        *(
            _to_gate(graph, node, gate, factor, p)
            for factor, positions in _PRODUCTS
            for gate, p in positions.items()
            if p in found
        ),
        *(
            _from_normalized(numbers.scale(graph.values[node.inputs[p]]))
            for p in found.intersection(NORMALIZATIONS)
        ),
        _to_hidden(_hidden(node)[0]),
        *([_to_output(graph, node)] if PROJECTION in found else []),
    ]
    return checks.first_of(*map(numbers.check_multiplier, multipliers))
