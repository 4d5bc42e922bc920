"""Cases of dynamic-range quantization, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cases.base import EXACT, HALF, SMALL, Array, Case, Pair, Range, Shape, Sheet, Windowed
from cases.quantized import ORDINARY, POWER, Stored, quantization
from cases.quantized_conv import Weighted
from litegpu.graph import Blockwise, Quantization
from litegpu.zoo.writer import TensorRef


@dataclass(frozen=True)
class Rows(Range):
    """Floats whose scales make ties frequent: the ends of each row are powers of two.

    From `low` to `high`, all multiples of 2^-10; with `zeros` the first row is nothing else.
    """

    low: float = -1.0
    high: float = 1.0
    zeros: bool = False

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements, both ends in every row but perhaps the first."""
        steps = random.integers(int(self.low * 1024), int(self.high * 1024) + 1, shape)
        found = np.asarray(steps / 1024, np.float32)
        rows = found.reshape(shape[0], -1)
        rows[:, :1], rows[:, -1:] = self.low, self.high
        if self.zeros:
            rows[0] = 0
        return found

    def scaled(self, factor: float) -> Range:
        """Stay as it is: other factors would make other bytes."""
        return self


@dataclass(frozen=True, kw_only=True)
class Hybrid(Weighted):
    """Products of floats and bytes."""

    lowest: ClassVar[int] = -127

    values: Range = Rows()
    has_bias: bool = True

    def limit(self, half: bool) -> float:
        """Allow for what halves lose: that of the input decides about the bytes."""
        return HALF if half else EXACT

    def layer(self, sheet: Sheet, shape: Shape, axis: int = 0) -> list[TensorRef]:
        """Add weights, whose outputs lie along an axis, and a bias."""
        weights, _ = self.weights(sheet, shape, axis, symmetric=True)
        bias = [sheet.constant(sheet.random.normal(size=shape[axis]))] if self.has_bias else []
        return [weights, *bias]


@dataclass(frozen=True, kw_only=True)
class HybridConv(Windowed, Hybrid):
    """CONV_2D, or DEPTHWISE_CONV_2D where there are no filters but a multiplier."""

    channels: int = 5
    filters: int = 7
    groups: int = 1
    size: Pair = (6, 5)
    multiplier: int = 0

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        options = self.window(fused_activation_function=self.activation)
        x = sheet.input((self.batch, *self.size, self.channels), self.values)
        if self.multiplier:
            shape = (1, *self.kernel, self.channels * self.multiplier)
            options["depth_multiplier"] = self.multiplier
            inputs = [x, *self.layer(sheet, shape, axis=3)]
            sheet.output(sheet.op("DEPTHWISE_CONV_2D", inputs, options, 6))
            return
        shape = (self.filters, *self.kernel, self.channels // self.groups)
        inputs = [x, *self.layer(sheet, shape)]
        sheet.output(sheet.op("CONV_2D", inputs, options, 5 if self.per_channel else 2))


@dataclass(frozen=True, kw_only=True)
class HybridTransposeConv(Hybrid):
    """TRANSPOSE_CONV."""

    size: Pair = (4, 3)
    channels: int = 5
    filters: int = 7
    kernel: Pair = (3, 3)
    stride: Pair = (2, 2)
    padding: str = "SAME"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        weights, *bias = self.layer(sheet, (self.filters, *self.kernel, self.channels))
        sides = [
            n * s if self.padding == "SAME" else (n - 1) * s + k
            for n, s, k in zip(self.size, self.stride, self.kernel, strict=True)
        ]
        shape = sheet.constant([self.batch, *sides, self.filters], "int32")
        x = sheet.input((self.batch, *self.size, self.channels), self.values)
        options = {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
            "fused_activation_function": self.activation,
        }
        version = 4 if self.activation != "NONE" else 3
        sheet.output(sheet.op("TRANSPOSE_CONV", [shape, weights, x, *bias], options, version))


@dataclass(frozen=True, kw_only=True)
class HybridMatrix(Hybrid):
    """FULLY_CONNECTED."""

    lowest_of_4_bits: ClassVar[int] = -7

    inputs: int = 33
    outputs: int = 7
    asymmetric: bool = False
    rows: Shape = (1,)
    block: int = 0
    """How many weights of a row share a scale, if not all."""

    def weights(
        self, sheet: Sheet, shape: Shape, axis: int, symmetric: bool
    ) -> tuple[TensorRef, tuple[float, ...]]:
        """Add weights, with a scale for each block if there are any."""
        if not self.block:
            return super().weights(sheet, shape, axis, symmetric)
        random, blocks = sheet.random, (shape[0], shape[1] // self.block)
        scales = 2.0 ** random.integers(-6, -2, blocks)
        if self.kind == ORDINARY:
            scales = random.uniform(0.01, 0.2, blocks)
        data = random.integers(-8, 8, shape)
        found = Blockwise(scales.astype(np.float16), self.block)
        return sheet.constant(data, f"int{self.bits}", found), ()

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        x = sheet.input((*self.rows, self.inputs), self.values)
        options = {
            "fused_activation_function": self.activation,
            "asymmetric_quantize_inputs": self.asymmetric,
            "keep_num_dims": len(self.rows) > 1,
        }
        inputs = [x, *self.layer(sheet, (self.outputs, self.inputs))]
        version = 12 if self.per_channel else {2: 14, 4: 10, 8: 9}[self.bits]
        sheet.output(sheet.op("FULLY_CONNECTED", inputs, options, version))


@dataclass(frozen=True, kw_only=True)
class HybridMatmul(Case):
    """BATCH_MATMUL of floats and int8; `left` and `right` are the batches."""

    tolerance: ClassVar[float] = EXACT

    values: Range = Rows()
    asymmetric: bool = False
    left: Shape = ()
    right: Shape = ()
    rows: int = 5
    depth: int = 19
    columns: int = 6
    adj_x: bool = False
    adj_y: bool = False
    constant: bool = True
    """Whether the second matrix is one."""

    def limit(self, half: bool) -> float:
        """Allow for what halves lose: that of the input decides about the bytes."""
        return HALF if half else EXACT

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        scale = quantization(sheet.random, "int8", ORDINARY)
        even = Quantization(scale.scale, (0,))
        left = (self.depth, self.rows) if self.adj_x else (self.rows, self.depth)
        right = (self.columns, self.depth) if self.adj_y else (self.depth, self.columns)
        a = sheet.input((*self.left, *left), self.values)
        shape = (*self.right, *right)
        if self.constant:
            b = sheet.constant(Stored().draw(shape, sheet.random), "int8", even)
        else:
            b = sheet.input(shape, Stored(), even)
        options = {
            "adj_x": self.adj_x,
            "adj_y": self.adj_y,
            "asymmetric_quantize_inputs": self.asymmetric,
        }
        sheet.output(sheet.op("BATCH_MATMUL", [a, b], options, 4))


_BELOW, _ABOVE = Rows(-4.0, 0.125), Rows(-0.5, 8.0)

CASES: tuple[Case, ...] = (
    *(
        HybridConv(per_channel=each, kind=kind, values=values)
        for each in (False, True)
        for kind, values in ((ORDINARY, Range()), (POWER, Rows()))
    ),
    HybridConv(per_channel=True, channels=16, filters=33, values=_BELOW, batch=2),
    HybridConv(per_channel=True, channels=3, filters=8, stride=(2, 1), dilation=(1, 2)),
    HybridConv(per_channel=True, kernel=(1, 1), values=_ABOVE, activation="RELU6", kind=POWER),
    HybridConv(per_channel=True, padding="VALID", values=Rows(0.0, 2.0, zeros=True), batch=3),
    HybridConv(channels=4, filters=8, groups=2, per_channel=True, values=_ABOVE),
    HybridConv(channels=9, filters=18, groups=9, per_channel=True, batch=2),
    HybridConv(channels=7, filters=7, groups=7, per_channel=True, values=_ABOVE, stride=(2, 2)),
    HybridConv(channels=60, filters=36, groups=12, per_channel=True, values=_ABOVE, batch=2),
    *(HybridConv(bits=4, per_channel=each, values=_BELOW) for each in (True, False)),
    HybridConv(channels=9, filters=4, stride=(2, 2), activation="RELU", values=_ABOVE, batch=2),
    # Rows whose ranges are found in parts
    *(
        HybridConv(
            per_channel=True,
            size=size,
            channels=channels,
            filters=3,
            kernel=kernel,
            values=_ABOVE,
            batch=batch,
        )
        for size, channels, kernel, batch in (
            ((96, 91), 4, (1, 1), 1),
            ((47, 61), 7, (3, 2), 2),
            ((33, 32), 18, (3, 3), 1),
        )
    ),
    HybridConv(multiplier=1, channels=5, size=(61, 53), per_channel=True, values=_BELOW, batch=2),
    HybridConv(multiplier=1, channels=12, size=(30, 47), per_channel=True, kind=POWER),
    *(
        HybridConv(multiplier=multiplier, channels=channels, per_channel=each, values=values)
        for multiplier, channels, each, values in (
            (1, 5, True, Range()),
            (1, 8, True, _BELOW),
            (2, 3, True, Rows()),
        )
    ),
    HybridConv(multiplier=1, per_channel=True, stride=(2, 2), kind=POWER, values=_ABOVE, batch=2),
    # So large that some devices have kernels of their own, for bytes.
    *(
        HybridConv(
            multiplier=1,
            channels=channels,
            size=(18, 17),
            per_channel=True,
            values=_ABOVE,
            items=SMALL,
        )
        for channels in (12, 32)
    ),
    *(
        HybridMatrix(asymmetric=asymmetric, kind=kind, values=values, rows=rows)
        for asymmetric in (False, True)
        for kind, values, rows in (
            (ORDINARY, Range(), (1,)),
            (POWER, Rows(), (3,)),
            (ORDINARY, _BELOW, (2, 3)),
            (ORDINARY, Rows(zeros=True), (2,)),
        )
    ),
    HybridMatrix(per_channel=True, inputs=64, outputs=17, activation="RELU_N1_TO_1"),
    HybridMatrix(per_channel=True, inputs=44, rows=(3,), asymmetric=True, values=_ABOVE),
    HybridMatrix(per_channel=True, asymmetric=True, inputs=7, has_bias=False, values=_ABOVE),
    *(
        HybridMatrix(bits=4, per_channel=each, inputs=inputs, outputs=outputs, rows=rows)
        for each in (False, True)
        for inputs, outputs, rows in ((46, 7, (3,)), (46, 3, (3,)), (33, 7, (2, 2)))
    ),
    *(
        HybridMatrix(
            bits=4,
            inputs=96,
            outputs=18,
            rows=(2, 3),
            kind=kind,
            asymmetric=kind == POWER,
            has_bias=kind == POWER,
            values=values,
            activation=activation,
        )
        for kind, values, activation in (
            (POWER, Rows(zeros=True), "RELU6"),
            (ORDINARY, _BELOW, "NONE"),
            (POWER, Rows(), "NONE"),
        )
    ),
    *(
        HybridMatrix(bits=4, block=block, inputs=inputs, outputs=outputs, rows=rows, kind=kind)
        for block, inputs, outputs, rows, kind in (
            (32, 32, 4, (1,), ORDINARY),
            (32, 96, 18, (2, 3), POWER),
            (64, 192, 7, (3,), ORDINARY),
            (8, 40, 9, (1, 2, 2), POWER),
        )
    ),
    HybridMatrix(bits=4, block=32, inputs=64, outputs=5, has_bias=False, values=_BELOW, rows=(2,)),
    HybridMatrix(bits=4, block=32, inputs=64, outputs=6, values=Rows(zeros=True), rows=(2,)),
    *(
        HybridMatrix(bits=2, per_channel=each, inputs=inputs, outputs=7, rows=(3,), asymmetric=each)
        for each in (False, True)
        for inputs in (33, 64)
    ),
    *(
        HybridMatmul(asymmetric=asymmetric, adj_x=adj_x, adj_y=adj_y, values=values)
        for asymmetric in (False, True)
        for adj_x, adj_y, values in (
            (False, False, Range()),
            (True, False, _BELOW),
            (False, True, _ABOVE),
        )
    ),
    *(
        HybridMatmul(asymmetric=asymmetric, left=left, right=right, depth=33, columns=9)
        for asymmetric in (False, True)
        for left, right in (((3,), ()), ((2,), (2,)), ((), (3,)), ((1, 3), (1, 1)), ((1,), (2,)))
    ),
    *(
        HybridTransposeConv(per_channel=each, kind=kind, values=values)
        for each in (False, True)
        for kind, values in ((ORDINARY, Range()), (POWER, Rows()))
    ),
    HybridTransposeConv(per_channel=True, channels=16, filters=9, stride=(1, 3), values=_BELOW),
    HybridTransposeConv(kernel=(4, 2), padding="VALID", batch=2, has_bias=False, values=_ABOVE),
    HybridTransposeConv(kernel=(1, 2), stride=(3, 3), activation="RELU6", batch=2, filters=4),
    HybridMatmul(constant=False, left=(2,), right=(2,), adj_x=True),
    HybridMatmul(constant=False, values=Rows(zeros=True), adj_y=True),
)
