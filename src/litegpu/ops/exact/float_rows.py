"""Dynamic quantization of float rows to int8, with one scale and one zero point per row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from litegpu.graph import ABSENT, DType, EpilogueOp, Node, Value
from litegpu.ops.base import COPY, NewValue, Shape
from litegpu.ops.common.functions import of_integers
from litegpu.ops.common.window import Window
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.exact import numbers
from litegpu.ops.exact.loops import Body
from litegpu.ops.quantize_rows import QUANTIZE_ROWS, QuantizeRowsAttributes
from litegpu.ops.reduce import ReduceAttributes, direct_steps
from litegpu.ops.row_scales import ROW_SCALES, RowScalesAttributes


@dataclass
class FloatRows:
    """Creates the nodes that quantize `source` to int8; a row spans the last `axes` axes.

    If `symmetric`, the greatest magnitude of a row is mapped to 127, and 0 is mapped to 0.
    Otherwise, the range from the least to the greatest element of a row, extended to include 0, is
    mapped to -128 to 127. A row of one axis is quantized by one node, a longer one in several
    steps.
    """

    index: int
    """Index of the model's node to which the created nodes belong."""
    source: Value
    axes: int
    symmetric: bool
    new_value: NewValue
    vector: int = 8
    """Number of elements that the CPU rounds as one vector; scalar code rounds the remaining
    elements.
    """
    factor_of_sums: int = 0
    """If set, `scaled_sums` has that number times the sum of a row's bytes, times its scale. Rows
    have one axis then.
    """
    nodes: list[Node] = field(default_factory=list)
    scale: int = ABSENT
    zero: int = ABSENT
    """Value ids of the rows' scales and zero points; ABSENT if zero points are 0."""
    scaled_sums: int = ABSENT
    _inverse: int = ABSENT
    _bytes: int = ABSENT

    def __post_init__(self) -> None:
        """Create the nodes that compute the scale of each row."""
        self.scale = self._new_scale()
        if not self.symmetric:
            self.zero = self.new_value(self._shape_of_scales, dtype=DType.INT32)
        if self.axes == 1:
            self._quantize_at_once()
            return
        self._inverse = self._new_scale()
        ranges = tuple(self._reduced(op) for op in ("REDUCE_MIN", "REDUCE_MAX"))
        outputs = _present(self.scale, self._inverse, self.zero)
        attributes = RowScalesAttributes(self.symmetric)
        self._append(ROW_SCALES, ranges, outputs, attributes=attributes)

    def _quantize_at_once(self) -> None:
        self._bytes = self.new_value(self.source.shape, dtype=DType.INT8)
        if self.factor_of_sums:
            self.scaled_sums = self._new_scale()
        body = self.source.shape[-1] // self.vector * self.vector
        attributes = QuantizeRowsAttributes(self.symmetric, body, self.factor_of_sums)
        outputs = _present(self._bytes, self.scale, self.zero, self.scaled_sums)
        self._append(QUANTIZE_ROWS, (self.source.id,), outputs, attributes=attributes)

    def stored(self) -> int:
        """Return the value id of the int8 rows."""
        return self._rounded(self.source.id, DType.INT8) if self._bytes == ABSENT else self._bytes

    def centred(self) -> int:
        """Return the value id of the rows as int32 after subtraction of their zero points."""
        subtraction = () if self.symmetric else (EpilogueOp(of_integers("SUB"), (self.zero,)),)
        return self._rounded(self.source.id, DType.INT32, subtraction)

    def image(self, window: Window, result: Shape) -> tuple[Value, Window]:
        """Return the quantized image and its window, with zero points as padding.

        `result` is the shape of the window's output, [N, H, W, C].
        """
        batch, *size, channels = self.source.shape
        result_size = (result[1], result[2])
        if self.symmetric or not window.leaves((size[0], size[1]), result_size):
            return replace(self.source, id=self.stored(), dtype=DType.INT8), window
        reached = [
            max((out - 1) * stride + (taps - 1) * dilation + 1, pad + own)
            for out, stride, taps, dilation, pad, own in zip(
                *(result_size, window.stride, window.kernel, window.dilation, window.pads, size),
                strict=True,
            )
        ]
        # The values are centred here: zero padding is the zero point after it is added.
        shape = (batch, *reached, channels)
        padded = self.new_value(shape, dtype=DType.INT8)
        begin = CopyAttributes((0, -window.pads[0], -window.pads[1], 0))
        points = (EpilogueOp(of_integers("ADD"), (self.zero,)),)
        self._append(COPY, (self.centred(),), (padded,), attributes=begin, epilogue=points)
        image = replace(self.source, id=padded, shape=shape, dtype=DType.INT8)
        return image, replace(window, pads=(0, 0))

    def _new_scale(self) -> int:
        return self.new_value(self._shape_of_scales, dtype=DType.FLOAT32, precise=True)

    @property
    def _shape_of_scales(self) -> Shape:
        return (*self.source.shape[: -self.axes], *(1,) * self.axes)

    def _reduced(self, op: str) -> int:
        shape = self.source.shape
        reduced = {axis + len(shape) for axis in range(-self.axes, 0)}
        current = self.source.id
        for _, after, over in direct_steps(shape, reduced):
            reduced_value = self.new_value(after, dtype=DType.FLOAT32, precise=True)
            self._append(op, (current,), (reduced_value,), attributes=ReduceAttributes(over))
            current = reduced_value
        return current

    def _rounded(self, source: int, dtype: DType, more: tuple[EpilogueOp, ...] = ()) -> int:
        run = math.prod(self.source.shape[-self.axes :])
        by = (self._inverse,)
        epilogue_ops = Body(run, run // self.vector * self.vector).epilogue(
            "ROUND_ROWS", EpilogueOp("ROUND_ROWS", by), EpilogueOp("ROUND_ROWS_TAIL", by)
        )
        low, high = numbers.LIMITS[DType.INT8]
        if not self.symmetric:
            epilogue_ops = (*epilogue_ops, EpilogueOp(of_integers("ADD"), (self.zero,)))
        epilogue_ops = (
            *epilogue_ops,
            numbers.clamp((-high if self.symmetric else low, high)),
            *more,
        )
        output = self.new_value(self.source.shape, dtype=dtype)
        self._append(COPY, (source,), (output,), epilogue=epilogue_ops)
        return output

    def _append(
        self, op: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **others: Any
    ) -> None:
        self.nodes.append(Node(self.index, op, 1, inputs, outputs, **others))


def _present(*values: int) -> tuple[int, ...]:
    return tuple(v for v in values if v != ABSENT)
