"""Cases of TRANSPOSE_CONV on quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from cases.base import LARGE, SMALL, Pair, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from cases.quantized_conv import Weighted, of_16_bits, of_all_types


@dataclass(frozen=True, kw_only=True)
class QuantizedTransposeConv(Weighted):
    """TRANSPOSE_CONV."""

    typed_version: ClassVar[int] = 5

    size: Pair = (4, 3)
    channels: int = 5
    filters: int = 7
    kernel: Pair = (3, 3)
    stride: Pair = (2, 2)
    padding: str = "SAME"
    has_bias: bool = True

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        source = quantization(sheet.random, self.dtype, self.kind, 2.0)
        shape = (self.filters, *self.kernel, self.channels)
        weights, bias = self.operands(sheet, source, shape)
        same = self.padding == "SAME"
        computed = [
            n * s if same else (n - 1) * s + k
            for n, s, k in zip(self.size, self.stride, self.kernel, strict=True)
        ]
        size = sheet.constant([self.batch, *computed, self.filters], "int32")
        image = (self.batch, *self.size, self.channels)
        x = sheet.input(image, Stored(dtype=self.dtype), source)
        options: dict[str, Any] = {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "fused_activation_function": self.activation,
        }
        inputs = [size, weights, x, bias] if self.has_bias else [size, weights, x]
        result = self.result(sheet, self.channels * 2)
        version = 4 if self.activation != "NONE" else 3 if self.has_bias else 2
        if self.has_bias:
            options, version = self.typed(options, version)
        sheet.output(sheet.op("TRANSPOSE_CONV", inputs, options, version, self.dtype, result))


_all_types = partial(of_all_types, QuantizedTransposeConv)


CASES = [
    *(case for kind in (ORDINARY, POWER, WIDE) for case in _all_types(kind=kind)),
    *_all_types(kernel=(2, 2), channels=16, filters=19, kind=POWER, batch=2),
    *_all_types(kernel=(4, 3), stride=(1, 3), channels=3, filters=8, padding="VALID", kind=POWER),
    *_all_types(kernel=(1, 2), stride=(3, 3), channels=1, filters=1, kind=POWER, size=(5, 5)),
    *_all_types(kernel=(5, 5), stride=(1, 1), channels=33, filters=9, activation="RELU6"),
    QuantizedTransposeConv(has_bias=False, kind=POWER),
    QuantizedTransposeConv(has_bias=False, dtype="uint8", kind=POWER, filters=16),
    *(case for items in (SMALL, LARGE) for case in _all_types(items=items, filters=10)),
    *of_16_bits(QuantizedTransposeConv, "int32", "int64", filters=10, kind=POWER),
    QuantizedTransposeConv(has_bias=False, dtype="int16"),
]
