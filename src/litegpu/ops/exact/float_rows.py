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
from litegpu.ops.quantize_rows import QUANTIZE_ROWS, QuantizeRowsAttributes
from litegpu.ops.row_ranges import RANGE_CHANNELS, ROW_RANGES, RowRangesAttributes, parts_of


@dataclass
class FloatRows:
    """Creates the nodes that quantize `source` to int8; a row spans the last `axes` axes.

    If `symmetric`, the greatest magnitude of a row is mapped to 127, and 0 is mapped to 0.
    Otherwise, the range from the least to the greatest element of a row, extended to include 0, is
    mapped to -128 to 127. The rows are used in one form: `stored`, `centred` or as an `image`.
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

    def __post_init__(self) -> None:
        """Create the values of each row."""
        self.scale = self._new_scale()
        if not self.symmetric:
            self.zero = self.new_value(self._shape_of_scales, dtype=DType.INT32)
        if self.factor_of_sums:
            self.scaled_sums = self._new_scale()

    def stored(self) -> int:
        """Return the value id of the int8 rows."""
        return self._quantized(DType.INT8)

    def centred(self) -> int:
        """Return the value id of the rows as int32 after subtraction of their zero points."""
        return self._quantized(DType.INT32)

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
        self._append(COPY, (self.centred(),), (padded,), begin, points)
        image = replace(self.source, id=padded, shape=shape, dtype=DType.INT8)
        return image, replace(window, pads=(0, 0))

    def _quantized(self, dtype: DType) -> int:
        shape = self.source.shape
        pixels, run = math.prod(shape[-self.axes : -1]), math.prod(shape[-self.axes :])
        parts = parts_of(shape, pixels) if self.axes > 1 else 1
        inputs: tuple[int, ...] = (self.source.id,)
        if parts > 1:
            ranges_shape = (math.prod(self._shape_of_scales), 1, parts, RANGE_CHANNELS)
            ranges = self.new_value(ranges_shape, dtype=DType.FLOAT32, precise=True)
            self._append(ROW_RANGES, inputs, (ranges,), RowRangesAttributes(pixels, parts))
            inputs = (*inputs, ranges)
        attributes = QuantizeRowsAttributes(
            self.symmetric,
            run // self.vector * self.vector,
            pixels,
            centred=dtype is DType.INT32,
            parts=parts,
            factor_of_sums=self.factor_of_sums,
        )
        output = self.new_value(shape, dtype=dtype)
        known = (v for v in (self.scale, self.zero, self.scaled_sums) if v != ABSENT)
        self._append(QUANTIZE_ROWS, inputs, (output, *known), attributes)
        return output

    def _new_scale(self) -> int:
        return self.new_value(self._shape_of_scales, dtype=DType.FLOAT32, precise=True)

    @property
    def _shape_of_scales(self) -> Shape:
        return (*self.source.shape[: -self.axes], *(1,) * self.axes)

    def _append(
        self,
        op: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        attributes: Any,
        epilogue: tuple[EpilogueOp, ...] = (),
    ) -> None:
        node = Node(self.index, op, 1, inputs, outputs, attributes=attributes, epilogue=epilogue)
        self.nodes.append(node)
