"""QUANTIZED_RESIZE: bilinear interpolation of stored integers, by tables of indices and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT
from litegpu.graph import DType, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit

QUANTIZED_RESIZE = "QUANTIZED_RESIZE"
ONE = 1 << 10
"""The sum of the integer weights of two source pixels."""

Between = tuple[int, int, float, float]
"""The indices of two source rows or columns, and their weights."""


@dataclass(frozen=True, slots=True)
class QuantizedResizeAttributes:
    """The two source positions and their weights, for each row and each column of the result."""

    rows: tuple[Between, ...]
    columns: tuple[Between, ...]


@register
class QuantizedResize(InternalOp):
    """Computes weighted means of four pixels; only exact resizes create this op."""

    name = QUANTIZED_RESIZE

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        attributes: QuantizedResizeAttributes = node.attributes
        # The tensor's type, not its storage's: int16 may be stored as int32.
        stored = ctx.value(node.inputs[0]).dtype
        integer = stored is not DType.UINT8
        request = KernelRequest(
            template="quantized_resize",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants={
                **_tables("row", attributes.rows, integer),
                **_tables("column", attributes.columns, integer),
            },
            variables={"integer": integer, "is_short": stored is DType.INT16},
            work={Unit.FP32: 8 * dst.rows * dst.channels},
            needed={"src": 4 * dst.rows * dst.padded_channels},
            accumulator=INT,
        )
        return (request,)


def _tables(
    name: str, between: Sequence[Between], integer: bool
) -> dict[str, npt.NDArray[np.generic]]:
    """Return indices followed by two zeros, and float32 weights.

    With `integer`, integer weights replace the two zeros.
    """
    found = np.array(between, np.float64)
    if integer:
        return {f"{name}_coordinates": found.astype(np.int32)}
    table = np.zeros((len(between), 4), np.int32)
    weights = np.zeros((len(between), 4), np.float32)
    table[:, :2], weights[:, :2] = found[:, :2], found[:, 2:]
    return {f"{name}_coordinates": table, f"{name}_weights": weights}


def scale_of(size: int, out: int, align_corners: bool) -> float:
    """Return the input steps per output step along an axis, in float32 as the runtime does."""
    if align_corners and out > 1:
        return float(np.float32(size - 1) / np.float32(out - 1))
    return float(np.float32(size) / np.float32(out))
