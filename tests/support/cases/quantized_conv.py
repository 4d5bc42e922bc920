"""Cases of CONV_2D and FULLY_CONNECTED on quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from cases.base import EXACT, Case, Pair, Shape, Sheet, Windowed
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization
from litegpu.zoo.writer import TensorRef


@dataclass(frozen=True, kw_only=True)
class Weighted(Case):
    """Sums of products of quantized values; `kind` see cases.quantized."""

    tolerance: ClassVar[float] = EXACT
    lowest: ClassVar[int | None] = None
    """The smallest weight, if not any."""
    lowest_of_4_bits: ClassVar[int] = -8
    typed_version: ClassVar[int] = 8
    """The version from which on options tell of the type of the bias."""

    dtype: str = "int8"
    kind: str = ORDINARY
    per_channel: bool = False
    activation: str = "NONE"
    batch: int = 1
    bits: int = 8
    """Of the weights."""
    bias: str = "int32"
    """The type of the bias, on which that of sums depends where activations have 16 bits."""

    def operands(
        self, sheet: Sheet, source: Quantization, shape: Shape, axis: int = 0
    ) -> list[TensorRef]:
        """Add weights, whose outputs lie along an axis, and a bias."""
        symmetric = self.dtype == "int16" or (self.dtype == "int8" and len(shape) == 4)
        weights, factors = self.weights(sheet, shape, axis, symmetric)
        scales = tuple(float(np.float32(source.scale[0] * each)) for each in factors)
        most = 3000 * (2**8 if self.dtype == "int16" else 1)
        bias = sheet.random.integers(-most, most, shape[axis])
        found = Quantization(scales, (0,) * len(scales))
        return [weights, sheet.constant(bias, self.bias, found)]

    def typed(self, options: dict[str, Any], version: int) -> tuple[dict[str, Any], int]:
        """Return the options with the type of the bias, and the version that this brings."""
        if self.dtype != "int16" or self.bias == "int64":
            return options, version
        return {**options, "quantized_bias_type": "INT32"}, self.typed_version

    def weights(
        self, sheet: Sheet, shape: Shape, axis: int, symmetric: bool
    ) -> tuple[TensorRef, tuple[float, ...]]:
        """Add weights, whose outputs lie along an axis; return their scales, too."""
        random, count = sheet.random, shape[axis] * self.per_channel
        dtype = "int8" if self.dtype == "int16" else self.dtype
        drawn = quantization(random, dtype, self.kind, 1.0, count)
        if symmetric or self.bits < 8:
            drawn = replace(drawn, zero_point=(0,) * len(drawn.scale), dimension=axis)
        data = Stored(dtype=dtype).draw(shape, random)
        if self.bits < 8:
            dtype, data = (
                f"int{self.bits}",
                np.maximum(data >> (8 - self.bits), self.lowest_of_4_bits),
            )
        if self.lowest is not None:
            data = np.maximum(data, self.lowest)
        return sheet.constant(data, dtype, drawn), drawn.scale

    def result(self, sheet: Sheet, terms: int) -> Quantization:
        """Draw the quantization of sums of so many products."""
        return quantization(sheet.random, self.dtype, self.kind, 2.0 * float(np.sqrt(terms)))


@dataclass(frozen=True, kw_only=True)
class QuantizedConv(Windowed, Weighted):
    """CONV_2D."""

    channels: int = 5
    filters: int = 7
    groups: int = 1
    size: Pair = (6, 5)
    pads: tuple[Pair, Pair] | None = None
    """Zeros that a PAD puts around H and W before the convolution."""
    magnitude: float = 1.0
    """Factor of the scales of input and result."""

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        depth = self.channels // self.groups
        source = self._scaled(quantization(sheet.random, self.dtype, self.kind, 2.0))
        operands = self.operands(sheet, source, (self.filters, *self.kernel, depth))
        options = self.window(fused_activation_function=self.activation)
        shape = (self.batch, *self.size, self.channels)
        x = sheet.input(shape, Stored(dtype=self.dtype), source)
        if self.pads:
            pads = sheet.constant(((0, 0), *self.pads, (0, 0)), "int32")
            x = sheet.op("PAD", [x, pads], None, 2, self.dtype, source)
        result = self._scaled(self.result(sheet, depth * self.kernel[0] * self.kernel[1]))
        options, version = self.typed(options, {"int8": 3, "uint8": 1, "int16": 4}[self.dtype])
        computed = sheet.op("CONV_2D", [x, *operands], options, version, self.dtype, result)
        sheet.output(computed)

    def _scaled(self, given: Quantization) -> Quantization:
        return replace(given, scale=tuple(self.magnitude * each for each in given.scale))


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix(Weighted):
    """FULLY_CONNECTED."""

    typed_version: ClassVar[int] = 11

    inputs: int = 33
    outputs: int = 7
    has_bias: bool = True
    states_bias: bool = False
    """Whether the options tell of the type of a bias without one."""

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        source = quantization(sheet.random, self.dtype, self.kind, 2.0)
        weights, bias = self.operands(sheet, source, (self.outputs, self.inputs))
        x = sheet.input((self.batch, self.inputs), Stored(dtype=self.dtype), source)
        options: dict[str, Any] = {"fused_activation_function": self.activation}
        version = {"int8": 4, "uint8": 1, "int16": 7}[self.dtype] if self.has_bias else 7
        if self.has_bias or self.states_bias:
            options, version = self.typed(options, version)
        if self.states_bias and self.bias == "int64":  # as converters do, with an old version
            options["quantized_bias_type"] = "INT64"
        operands = [x, weights, bias] if self.has_bias else [x, weights]
        result = self.result(sheet, self.inputs)
        computed = sheet.op("FULLY_CONNECTED", operands, options, version, self.dtype, result)
        sheet.output(computed)


_Weighted = TypeVar("_Weighted", bound=Weighted)


def of_all_types(family: type[_Weighted], **fields: Any) -> list[_Weighted]:
    """Return a case for each type; int8 also with scales for each channel."""
    kinds = (("int8", True), ("int8", False), ("uint8", False))
    return [family(dtype=dtype, per_channel=each, **fields) for dtype, each in kinds]


def of_16_bits(family: type[_Weighted], *biases: str, **fields: Any) -> list[_Weighted]:
    """Return cases with activations of 16 bits, for each type of bias."""
    return [
        family(dtype="int16", bias=bias, per_channel=each, **fields)
        for bias in biases
        for each in (True, False)
    ]


_all_types = partial(of_all_types, QuantizedConv)

_CHANNELS = ((1, 1), (2, 9), (3, 4), (4, 8), (8, 3), (9, 2), (16, 33), (33, 16))

CASES = [
    *(case for kind in (ORDINARY, POWER, WIDE) for case in _all_types(kind=kind)),
    *(
        case
        for channels, filters in _CHANNELS
        for case in _all_types(channels=channels, filters=filters, kind=POWER)
    ),
    *_all_types(kernel=(1, 1), channels=17, filters=19, kind=POWER),
    *_all_types(kernel=(1, 1), stride=(2, 2), channels=8),
    *_all_types(stride=(2, 1), padding="VALID", batch=3, kind=POWER),
    *_all_types(dilation=(2, 3), size=(9, 8), kind=POWER),
    *_all_types(kernel=(5, 2), batch=2),
    *_all_types(pads=((1, 2), (2, 1)), stride=(2, 2), padding="VALID", kind=POWER),
    *(
        case
        for activation in ("RELU", "RELU6", "RELU_N1_TO_1")
        for case in _all_types(activation=activation)
    ),
    *_all_types(channels=16, filters=24, groups=4, kind=POWER),
    *_all_types(channels=6, filters=4, groups=2, kind=POWER),
    *_all_types(channels=9, filters=9, groups=9, kind=POWER),
    *_all_types(channels=6, filters=12, groups=6, activation="RELU6", stride=(2, 2)),
    *_all_types(channels=60, filters=36, groups=12, kind=POWER, batch=2),
    *_all_types(channels=40, filters=40, groups=20, kernel=(1, 2), padding="VALID"),
    *(
        QuantizedMatrix(dtype=dtype, kind=kind, inputs=inputs, outputs=outputs, batch=batch)
        for dtype in ("int8", "uint8")
        for kind, inputs, outputs, batch in (
            (ORDINARY, 33, 7, 1),
            (POWER, 64, 17, 3),
            (WIDE, 5, 4, 2),
            (POWER, 1, 1, 1),
        )
    ),
    *(QuantizedConv(bits=4, per_channel=each, channels=7, filters=3) for each in (True, False)),
    QuantizedConv(bits=4, per_channel=True, channels=8, filters=4, groups=2, kernel=(1, 1)),
    *(QuantizedMatrix(bits=4, inputs=inputs, outputs=8) for inputs in (32, 33)),
    *(QuantizedMatrix(bits=2, per_channel=each, inputs=33, batch=2) for each in (False, True)),
    QuantizedMatrix(per_channel=True, kind=POWER, batch=2),
    QuantizedMatrix(has_bias=False),
    QuantizedMatrix(activation="RELU6", dtype="uint8"),
    *(
        case
        for kind in (ORDINARY, POWER, WIDE)
        for case in of_16_bits(QuantizedConv, "int32", "int64", kind=kind)
    ),
    *(
        case
        for channels, filters in ((1, 1), (8, 3), (33, 16))
        for case in of_16_bits(
            QuantizedConv, "int32", "int64", channels=channels, filters=filters, kind=POWER
        )
    ),
    *of_16_bits(QuantizedConv, "int32", "int64", stride=(2, 1), padding="VALID", batch=3),
    *of_16_bits(QuantizedConv, "int32", "int64", kernel=(1, 1), activation="RELU6"),
    *of_16_bits(QuantizedConv, "int32", "int64", kernel=(1, 1), activation="RELU", magnitude=1e-9),
    *_all_types(activation="RELU", magnitude=1e-9),
    *of_16_bits(QuantizedConv, "int32", "int64", channels=16, filters=24, groups=4, kind=POWER),
    *(
        case
        for kind, inputs, outputs, batch in (
            (ORDINARY, 33, 7, 1),
            (POWER, 64, 17, 3),
            (WIDE, 5, 4, 2),
            (POWER, 1, 1, 1),
            (POWER, 700, 5, 2),
        )
        for case in of_16_bits(
            QuantizedMatrix,
            *("int32", "int64"),
            **{"kind": kind, "inputs": inputs, "outputs": outputs, "batch": batch},
        )
    ),
    QuantizedMatrix(dtype="int16", has_bias=False, activation="RELU"),
    QuantizedConv(dtype="int16", bias="int64", bits=4, per_channel=True, channels=7),
    QuantizedMatrix(dtype="int16", bits=4, inputs=32, outputs=8),
    QuantizedMatrix(dtype="int16", bits=2, per_channel=True, bias="int64", batch=2),
    QuantizedMatrix(dtype="int16", has_bias=False, states_bias=True, batch=3),
    QuantizedMatrix(
        dtype="int16", has_bias=False, states_bias=True, bias="int64", kind=POWER, batch=31
    ),
]
