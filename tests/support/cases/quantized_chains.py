"""Cases of several quantized operations, whose steps are fused into the kernels before them."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import EXACT, HALF, Range, Shape, Sheet
from cases.quantized_conv import Weighted
from litegpu.graph import Quantization


@dataclass(frozen=True, kw_only=True)
class QuantizedResidual(Weighted):
    """Floats, quantized, a convolution, the sum of both, a table, and floats again."""

    shape: Shape = (1, 5, 3, 8)

    def limit(self, half: bool) -> float:
        """Return no error, but for results that are stored as half."""
        return HALF if half else EXACT

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        channels = self.shape[-1]
        source, result, total = (Quantization((scale,), (3,)) for scale in (0.02, 0.03, 0.025))
        x = sheet.input(self.shape, Range(-3.0, 3.0))
        x = sheet.op("QUANTIZE", [x], None, 1, self.dtype, source)
        operands = self.operands(sheet, source, (channels, 1, 1, channels))
        options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        version = {"int8": 3, "uint8": 1}[self.dtype]
        y = sheet.op("CONV_2D", [x, *operands], options, version, self.dtype, result)
        y = sheet.op("ADD", [y, x], {}, 2, self.dtype, total)
        y = sheet.op("TANH", [y], None, 2, self.dtype, total)
        sheet.output(sheet.op("DEQUANTIZE", [y], None, 2))


CASES = [
    QuantizedResidual(dtype=dtype, shape=shape)
    for dtype in ("int8", "uint8")
    for shape in ((1, 5, 3, 8), (2, 3, 1, 7))
]
