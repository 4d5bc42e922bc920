"""The two kernels of an LSTM: the product of input and input weights, and the time steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import literal, round_up
from litegpu.errors import CompilationError
from litegpu.graph import ABSENT, EpilogueOp, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    SpecContext,
    as_float32,
    register,
)
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.functions import activation_epilogue, expressions
from litegpu.ops.common.units import Unit
from litegpu.ops.common.weights import Floats, Weights, in_precision
from litegpu.ops.common.window import POINT

PROJECT_INPUT, CELLS = "LSTM_INPUT", "LSTM_CELLS"
GROUP_MEMORY = 16384
"""Size of the work-group memory in bytes that every device provides."""
_MAX_ITEMS = 128
_MAX_OWNED = 16
"""Maximum channel blocks per work item, since the kernel text is unrolled over them."""
_SPARE_SLOTS = 16
"""Maximum number of channel blocks added by padding and by equal shares of the items."""


@dataclass(frozen=True, slots=True)
class InputAttributes:
    """Value ids of each gate's input weights [cells, inputs], and of biases unless added later."""

    weights: tuple[int, ...]
    biases: tuple[int, ...]

    @property
    def constants(self) -> tuple[int, ...]:
        return (*self.weights, *self.biases)

    def channels(self, cells: int) -> int:
        """Return the number of result channels, with each gate padded to whole channel blocks."""
        return len(self.weights) * round_up(cells, 4)


@dataclass(frozen=True, slots=True)
class GateOperands:
    """Value ids (or ABSENT) of the constants of one LSTM gate."""

    recurrent: int
    peephole: int
    normalization: int
    bias: int


@dataclass(frozen=True, slots=True)
class CellAttributes:
    """An LSTM without its input weights, with 3 `gates` if input and forget gates are coupled."""

    cells: int
    gates: tuple[GateOperands, ...]
    projection: int
    projection_bias: int
    activation: str
    cell_clip: float
    projection_clip: float
    time_major: bool
    reverse: bool = False
    """Whether the sequence is processed from its last step to its first."""

    @property
    def constants(self) -> tuple[int, ...]:
        of_gates = ((g.recurrent, g.peephole, g.normalization, g.bias) for g in self.gates)
        return (*(v for gate in of_gates for v in gate), self.projection, self.projection_bias)


@register
class LstmInput(InternalOp):
    """Multiplies a sequence by the input weights of all gates."""

    name = PROJECT_INPUT

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec]:
        attributes: InputAttributes = node.attributes
        rows = np.concatenate([_padded_rows(ctx, v) for v in attributes.weights])
        biases = [_padded_rows(ctx, v) for v in attributes.biases]
        bias = np.concatenate(biases) if biases else None
        outputs, inputs = rows.shape
        operand = Weights((outputs, 1, 1, inputs), array=rows[:, None, None, :], bias=bias)
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        return (ConvSpec(src, dst, operand, POINT, image=False),)


@register
class LstmCells(InternalOp):
    """Computes the time steps: output, output state and cell state from the projected input."""

    name = CELLS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: CellAttributes = node.attributes
        source, output, cell = (ctx.storage(v) for v in node.inputs)
        batch = output.shape[2]
        steps = source.rows // batch
        channel_blocks, output_blocks = (-(-each.channels // 4) for each in (cell, output))
        written = [ctx.storage(v) for v in node.outputs]
        widest = max(channel_blocks, *(each.channel_blocks for each in written))
        what = f"An LSTM of {attributes.cells} cells"
        owned, items = shares(widest, what, ctx)
        slots = items * owned
        normalized = attributes.gates[0].normalization != ABSENT
        require_memory(group_memory(attributes.cells, output.channels, normalized), what, ctx)
        packed = _pack(attributes, ctx, channel_blocks, output_blocks)
        projected = attributes.projection != ABSENT
        constants: dict[str, npt.NDArray[Any]] = {"weights": in_precision(packed.weights, ctx)}
        if packed.vectors:
            constants["vectors"] = np.concatenate(packed.vectors)
        shared = [("float4", "hidden", slots * (1 if projected else 2))]
        shared += [("float4", "inner", slots)] if projected else []
        shared += [("float4", "raw", slots)] if normalized else []
        request = KernelRequest(
            template="lstm_cells",
            grid=(items, batch, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "last": node.inputs[1], "cell": node.inputs[2]},
            writes={"new_output": node.outputs[1], "new_cell": node.outputs[2]},
            constants=constants,
            variables={
                "ITEMS": items,
                "owned": owned,
                "slots": slots,
                "batch": batch,
                "steps": steps,
                "time_major": attributes.time_major,
                "reverse": attributes.reverse,
                "cells": attributes.cells,
                "channel_blocks": channel_blocks,
                "output_blocks": output_blocks,
                "gates": ("i", "f", "g", "o")[4 - len(attributes.gates) :],
                "offsets": packed.offsets,
                "projected": projected,
                "normalized": normalized,
                "cell_clip": literal(attributes.cell_clip),
                "projection_clip": literal(attributes.projection_clip),
                "sigmoid": activation_text("sigmoid"),
                "activation": activation_text(attributes.activation),
            },
            shared=tuple(shared),
            work={Unit.FP32: 2 * source.rows * packed.weights.size},
        )
        return (request,)


@dataclass
class _Packed:
    """Constants in one array per dtype, and the offset (in float4) of each named vector.

    Weights are stored as [gate][input][block of 4 outputs], followed by the projection weights.
    """

    weights: Floats
    vectors: list[Floats] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, vector: Floats) -> None:
        """Add a vector, padded to whole channel blocks."""
        self.offsets[name] = sum(each.size for each in self.vectors) // 4
        self.vectors.append(vector)


def group_memory(cells: int, outputs: int, normalized: bool) -> int:
    """Return the maximum size in bytes of the work-group memory that the time steps need."""
    slots = -(-max(cells, outputs) // 4) + _SPARE_SLOTS
    return 16 * slots * (2 + normalized)


def shares(blocks: int, what: str, ctx: LowerContext) -> tuple[int, int]:
    """Return the numbers of channel blocks per work item and of work items per work group.

    Raises CompilationError if a work group on this device is too small for so many blocks.
    """
    owned = -(-blocks // min(_MAX_ITEMS, ctx.target.max_work_group_size))
    if owned > _MAX_OWNED:
        raise CompilationError(
            f"{what} is too wide for the {ctx.target.max_work_group_size} work items of "
            "a group. Use another device or backend."
        )
    return owned, -(-blocks // owned)


def require_memory(needed: int, what: str, ctx: LowerContext) -> None:
    """Raise CompilationError if the device has too little work-group memory."""
    if needed > ctx.target.local_memory_bytes:
        raise CompilationError(
            f"{what} needs {needed} bytes of work-group memory; the device has "
            f"{ctx.target.local_memory_bytes}. Use another device or backend."
        )


def _pack(
    attributes: CellAttributes, ctx: LowerContext, channel_blocks: int, output_blocks: int
) -> _Packed:
    matrices = [
        transposed(ctx, g.recurrent, output_blocks, channel_blocks) for g in attributes.gates
    ]
    if attributes.projection != ABSENT:
        matrices.append(transposed(ctx, attributes.projection, channel_blocks, output_blocks))
    packed = _Packed(np.concatenate([each.ravel() for each in matrices]))
    packed.offsets["projection"] = len(attributes.gates) * output_blocks * 4 * channel_blocks
    for name, gate in zip("ifgo"[4 - len(attributes.gates) :], attributes.gates, strict=True):
        vectors = (gate.peephole, gate.normalization, gate.bias)
        for what, v in zip(("peephole", "normalization", "bias"), vectors, strict=True):
            if v != ABSENT:
                packed.add(f"{what}_{name}", _padded_rows(ctx, v))
    if attributes.projection_bias != ABSENT:
        packed.add("projection_bias", _padded_rows(ctx, attributes.projection_bias))
    return packed


def _padded_rows(ctx: SpecContext, value: int) -> Floats:
    """Return a constant whose rows are zero-padded to a multiple of 4."""
    rows = as_float32(ctx.value(value))
    missing = round_up(rows.shape[0], 4) - rows.shape[0]
    return np.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])


def transposed(ctx: LowerContext, value: int, inputs: int, outputs: int) -> Floats:
    """Return weights [outputs, inputs] as [inputs, outputs], padded to whole channel blocks."""
    matrix = as_float32(ctx.value(value))
    padded = np.zeros((inputs * 4, outputs * 4), np.float32)
    padded[: matrix.shape[1], : matrix.shape[0]] = matrix.T
    return padded


def activation_text(activation: str) -> Any:
    """Return a function that returns the text of an activation applied to a variable."""
    epilogue: Iterable[EpilogueOp] = activation_epilogue({"activation": activation})
    texts = [text for epilogue_op in epilogue for text in expressions(epilogue_op)]
    return lambda name: f"({texts[0].format(x=name)})" if texts else name
