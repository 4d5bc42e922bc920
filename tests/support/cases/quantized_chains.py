"""Cases of several quantized operations that are fused into the kernels before them."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import EXACT, HALF, Case, Pair, Range, Shape, Sheet
from cases.quantized import ORDINARY, POWER, Stored, quantization
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


@dataclass(frozen=True, kw_only=True)
class QuantizedBlocks(Weighted):
    """SPACE_TO_BATCH_ND, a convolution with `outputs` (0: depthwise), BATCH_TO_SPACE_ND."""

    shape: Shape = (1, 8, 6, 5)
    outputs: int = 7
    pads: tuple[Pair, Pair] = ((2, 2), (2, 2))
    crops: tuple[Pair, Pair] = ((0, 0), (0, 0))

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        depth = self.shape[-1]
        source = quantization(sheet.random, self.dtype, self.kind, 2.0)
        result = self.result(sheet, 9 * (depth if self.outputs else 1))
        sizes = sheet.constant((2, 2), "int32")
        x = sheet.input(self.shape, Stored(dtype=self.dtype), source)
        cut = [x, sizes, sheet.constant(self.pads, "int32")]
        x = sheet.op("SPACE_TO_BATCH_ND", cut, None, 2, self.dtype, source)
        options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
        options["fused_activation_function"] = self.activation
        if self.outputs:
            name, kernel = "CONV_2D", self.operands(sheet, source, (self.outputs, 3, 3, depth))
        else:
            name, kernel = "DEPTHWISE_CONV_2D", self.operands(sheet, source, (1, 3, 3, depth), 3)
            options["depth_multiplier"] = 1
        y = sheet.op(name, [x, *kernel], options, 3, self.dtype, result)
        join = [y, sizes, sheet.constant(self.crops, "int32")]
        sheet.output(sheet.op("BATCH_TO_SPACE_ND", join, None, 2, self.dtype, result))


@dataclass(frozen=True, kw_only=True)
class QuantizedView(Weighted):
    """A convolution of an image that was mirrored at its edges, or enlarged."""

    shape: Shape = (2, 5, 6, 7)
    outputs: int = 5
    mode: str = ""
    """How it is mirrored, if it is."""
    padding: str = "VALID"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        depth = self.shape[-1]
        source = quantization(sheet.random, self.dtype, self.kind, 2.0)
        x = sheet.input(self.shape, Stored(dtype=self.dtype), source)
        if self.mode:
            pads = sheet.constant(((0, 0), (1, 2), (2, 1), (0, 0)), "int32")
            view = ("MIRROR_PAD", [x, pads], {"mode": self.mode})
        else:
            size = sheet.constant((2 * self.shape[1], 3 * self.shape[2]), "int32")
            view = ("RESIZE_NEAREST_NEIGHBOR", [x, size], {})
        x = sheet.op(*view, 2, self.dtype, source)
        operands = self.operands(sheet, source, (self.outputs, 3, 3, depth))
        options = {"padding": self.padding, "stride_h": 1, "stride_w": 1}
        result = self.result(sheet, 9 * depth)
        sheet.output(sheet.op("CONV_2D", [x, *operands], options, 3, self.dtype, result))


@dataclass(frozen=True, kw_only=True)
class QuantizedFloats(Case):
    """A function of dequantized numbers that begins with a product or a sum of constants."""

    op: str
    shape: Shape = (1, 4, 2048, 8)

    def limit(self, half: bool) -> float:
        """Return no error."""
        return EXACT

    def write(self, sheet: Sheet) -> None:
        """One input, one output, which are 16-bit integers."""
        source, result = (Quantization((scale,), (0,)) for scale in (2.25036711e-4, 2.03815769e-4))
        x = sheet.input(self.shape, Stored(dtype="int16"), source)
        x = sheet.op("DEQUANTIZE", [x], None, 3)
        operands = [] if self.op == "HARD_SWISH" else [sheet.constant(0.1666667, "float32")]
        x = sheet.op(self.op, [x, *operands])
        sheet.output(sheet.op("QUANTIZE", [x], None, 2, "int16", result))


_CUT = ((2, 1), (1, 0))
CASES = (
    [
        QuantizedResidual(dtype=dtype, shape=shape)
        for dtype in ("int8", "uint8")
        for shape in ((1, 5, 3, 8), (2, 3, 1, 7))
    ]
    + [
        QuantizedBlocks(
            dtype=dtype, outputs=outputs, shape=shape, kind=kind, crops=crops, pads=pads
        )
        for dtype, outputs, kind in (
            ("int8", 7, POWER),
            ("int8", 0, ORDINARY),
            ("uint8", 3, ORDINARY),
            ("uint8", 0, POWER),
        )
        for shape, pads, crops in (
            ((2, 8, 6, 9), ((2, 2), (2, 2)), ((0, 0), (0, 0))),
            ((1, 7, 6, 16), ((2, 3), (1, 3)), ((0, 1), (1, 0))),
            ((1, 8, 8, 5), ((0, 0), (0, 0)), _CUT),
        )
    ]
    + [QuantizedFloats(op=op) for op in ("HARD_SWISH", "MUL", "ADD")]
    + [
        QuantizedView(dtype=dtype, kind=POWER, mode=mode, padding=padding)
        for dtype in ("int8", "uint8")
        for mode, padding in (("REFLECT", "VALID"), ("SYMMETRIC", "VALID"), ("", "SAME"))
    ]
)
