"""QUANTIZED_LSTM: the time steps of an integer LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT, round_up
from litegpu.graph import ABSENT, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit
from litegpu.ops.exact import fixed_point
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.lstm_cells import require_memory, shares

QUANTIZED_LSTM = "QUANTIZED_LSTM"
MAX_CELLS = 4096
"""Maximum number of cells, so that the kernel text is not too long."""

_Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class IntegerNormalization:
    """Value ids of weights and bias, and the multiplier from products to the normalized gate.

    `guard` replaces a variance below 1.
    """

    weights: int
    bias: int
    to_gate: Multiplier
    guard: int


@dataclass(frozen=True, slots=True)
class IntegerGate:
    """Value ids (or ABSENT) of a gate's weights, and the multipliers from products to the gate."""

    recurrent: int
    to_gate: Multiplier
    peephole: int
    peephole_to_gate: Multiplier | None
    normalization: IntegerNormalization | None


@dataclass(frozen=True, slots=True)
class IntegerProjection:
    """Value ids of weights [outputs, cells] and bias (or ABSENT), and how sums become outputs."""

    weights: int
    bias: int
    to_output: Multiplier
    output_zero: int
    clip: int
    """The greatest magnitude of stored outputs; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class QuantizedLstmAttributes:
    """An integer LSTM without its input weights, with 3 `gates` if two gates are coupled."""

    cells: int
    gates: tuple[IntegerGate, ...]
    output_zero: int
    cell_bits: int
    """Number of integer bits of the cell state."""
    cell_clip: int
    """The greatest magnitude of stored cell states; 0 for no limit."""
    to_hidden: Multiplier
    hidden_zero: int
    projection: IntegerProjection | None
    time_major: bool

    @property
    def constants(self) -> tuple[int, ...]:
        found = [v for gate in self.gates for v in (gate.recurrent, gate.peephole)]
        for normalization in filter(None, (gate.normalization for gate in self.gates)):
            found += (normalization.weights, normalization.bias)
        if self.projection is not None:
            found += (self.projection.weights, self.projection.bias)
        return tuple(found)


@register
class QuantizedLstm(InternalOp):
    """Computes output, output state and cell state from the input's shares of the gates."""

    name = QUANTIZED_LSTM

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: QuantizedLstmAttributes = node.attributes
        source, output, cell = (ctx.storage(v) for v in node.inputs)
        batch = output.shape[2]
        channel_blocks, output_blocks = (-(-each.channels // 4) for each in (cell, output))
        widest = max(channel_blocks, *(ctx.storage(v).channel_blocks for v in node.outputs))
        what = f"An LSTM of {attributes.cells} cells"
        owned, items = shares(widest, what, ctx)
        slots = items * owned
        projection = attributes.projection
        arrays = ("hidden", "inner") if projection else ("hidden",)
        shared = [("int", name, 2 * slots if name == "hidden" else slots) for name in arrays]
        gates = dict(zip(_names(attributes), attributes.gates, strict=True))
        normalized = attributes.gates[0].normalization is not None
        if normalized:
            shared.append(("int", "sums", 3 * len(gates) * items))
        require_memory(4 * sum(size for _, _, size in shared), what, ctx)
        # The CPU applies peepholes to rows of outputs, not of cells: each sequence has its own.
        rows = batch if attributes.projection and attributes.time_major else 1
        packed = _packed(attributes, ctx, channel_blocks, output_blocks, rows)
        tables = {
            "logistic": fixed_point.logistic_table(),
            "tanh": fixed_point.tanh_table(fixed_point.GATE_BITS),
        }
        if attributes.cell_bits != fixed_point.GATE_BITS:
            tables["cell_tanh"] = fixed_point.tanh_table(attributes.cell_bits)
        request = KernelRequest(
            template="quantized_lstm",
            grid=(items, batch, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "last": node.inputs[1], "cell": node.inputs[2]},
            writes={"new_output": node.outputs[1], "new_cell": node.outputs[2]},
            constants={
                "weights": np.concatenate(packed.weights),
                "vectors": np.concatenate(packed.vectors),
                **tables,
            },
            variables={
                "ITEMS": items,
                "owned": owned,
                "slots": slots,
                "batch": batch,
                "steps": source.rows // batch,
                "channel_blocks": channel_blocks,
                "output_blocks": output_blocks,
                "gates": gates,
                "normalized": normalized,
                "peephole_rows": rows,
                "offsets": packed.offsets,
                "lstm": attributes,
                "cell_tanh_table": "cell_tanh" if "cell_tanh" in tables else "tanh",
                "projection_weights": len(attributes.gates) * output_blocks * channel_blocks,
            },
            shared=tuple(shared),
            work={Unit.INT32: 8 * source.rows * sum(map(len, packed.weights))},
            accumulator=INT,
        )
        return (request,)


@dataclass
class _Packed:
    """Weights as words of 4 bytes, vectors as int32, and the offset (of 4) of each vector.

    The layout of a matrix is [block of 4 inputs][block of 4 outputs][output], with 4 inputs in each
    word.
    """

    weights: list[_Words] = field(default_factory=list)
    vectors: list[_Words] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, vector: npt.NDArray[Any]) -> None:
        """Add a vector, zero-padded to whole channel blocks; its numbers wrap to 32 bits."""
        self.offsets[name] = sum(map(len, self.vectors)) // 4
        missing = round_up(len(vector), 4) - len(vector)
        self.vectors.append(np.pad(vector.astype(np.int64), (0, missing)).astype(np.int32))


def _names(attributes: QuantizedLstmAttributes) -> str:
    return "ifgo"[4 - len(attributes.gates) :]


def _packed(
    attributes: QuantizedLstmAttributes,
    ctx: LowerContext,
    channel_blocks: int,
    output_blocks: int,
    peephole_rows: int,
) -> _Packed:
    packed = _Packed()
    for name, gate in zip(_names(attributes), attributes.gates, strict=True):
        matrix = _matrix(ctx, gate.recurrent)
        packed.weights.append(_words(matrix, output_blocks, channel_blocks))
        packed.add(f"bias_{name}", -attributes.output_zero * matrix.sum(axis=1))
        if gate.peephole != ABSENT:
            weights = _matrix(ctx, gate.peephole)
            outputs = matrix.shape[1]
            packed.add(f"peephole_{name}", _peepholes(weights, outputs, peephole_rows).ravel())
        if (normalization := gate.normalization) is not None:
            packed.add(f"normalization_{name}", _matrix(ctx, normalization.weights))
            packed.add(f"offset_{name}", _matrix(ctx, normalization.bias))
    if projection := attributes.projection:
        matrix = _matrix(ctx, projection.weights)
        packed.weights.append(_words(matrix, channel_blocks, output_blocks))
        # The CPU subtracts the zero point twice: from the bytes that it multiplies, and here.
        sums = attributes.hidden_zero * matrix.sum(axis=1)
        bias = 0 if projection.bias == ABSENT else _matrix(ctx, projection.bias)
        packed.add("projection_bias", sums + bias)
    return packed


def _peepholes(weights: npt.NDArray[np.int64], outputs: int, rows: int) -> npt.NDArray[np.int64]:
    """Return the peephole weights of each cell of `rows` sequences, padded to channel blocks.

    The CPU goes through all cells of all sequences with as many weights as there are outputs, and
    stops after as many cells.
    """
    cells = len(weights)
    flat = np.arange(rows * cells)
    read = np.where(flat < rows * outputs, weights[flat % outputs], 0).reshape(rows, cells)
    return np.pad(read, [(0, 0), (0, round_up(cells, 4) - cells)])


def _matrix(ctx: LowerContext, value: int) -> npt.NDArray[np.int64]:
    return np.asarray(ctx.value(value).data).astype(np.int64)


def _words(matrix: npt.NDArray[np.int64], inputs: int, outputs: int) -> _Words:
    """Return weights [outputs, inputs] as `_Packed` describes, padded to whole channel blocks."""
    padded = np.zeros((outputs * 4, inputs * 4), np.int8)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(outputs * 4, inputs, 4).transpose(1, 0, 2)
    return np.ascontiguousarray(blocks).view("<i4").astype(np.int32).ravel()
