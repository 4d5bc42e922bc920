"""Cases of inverted residual blocks: pointwise, depthwise and pointwise convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cases.base import Case, Range, Shape, Sheet, Windowed
from litegpu.zoo.writer import TensorRef


@dataclass(frozen=True, kw_only=True)
class Inverted(Windowed):
    """The three convolutions of maxima, and perhaps the sum with what they began from."""

    image: Shape = (2, 7, 9, 16)
    expanded: int = 48
    first: tuple[int, int] = (1, 1)
    """Taps of the convolution that expands, in both directions, and its stride."""
    filters: int = 24
    activation: str = "RELU6"
    """That of the first two convolutions."""
    bias: bool = True
    residual: bool = False
    small: tuple[float, float] = (1.0, 1.0)
    """Factors of the weights of the first two, and of their bias."""

    def write(self, sheet: Sheet) -> None:
        """One input, maxima of two neighbours, three convolutions, one output."""
        n, height, width, channels = self.image
        point = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        view = {**point, "padding": "VALID", "filter_height": 1, "filter_width": 2}
        given = sheet.input((n, height, width + 1, channels))
        source = sheet.fused("MAX_POOL_2D", [given], "NONE", view)
        one, taps = self.expanded, (1, *self.kernel, self.expanded)
        size, stride = self.first
        shape, terms = (one, size, size, channels), size * size * channels
        first = [source, *self._operands(sheet, shape, terms, self.small[0])]
        options = {**point, "stride_h": stride, "stride_w": stride}
        value = self._bounded(sheet, "CONV_2D", first, options, 1)
        second = [
            value,
            *self._operands(sheet, taps, self.kernel[0] * self.kernel[1], self.small[1]),
        ]
        options, version = self.window(depth_multiplier=1), 2 if self.dilation != (1, 1) else 1
        value = self._bounded(sheet, "DEPTHWISE_CONV_2D", second, options, version)
        third = [value, *self._operands(sheet, (self.filters, 1, 1, one), one, 1.0)]
        result = sheet.fused("CONV_2D", third, "NONE", point)
        if self.residual:
            result = sheet.fused("ADD", [result, source], "NONE")
        sheet.output(result)

    def _bounded(
        self,
        sheet: Sheet,
        builtin: str,
        inputs: Sequence[TensorRef],
        options: Mapping[str, Any],
        version: int,
    ) -> TensorRef:
        """Add a convolution with its activation, fused or not."""
        apart = self.activation == "RELU_0_TO_1"
        inside = "NONE" if apart else self.activation
        value = sheet.fused(builtin, inputs, inside, options, version)
        return sheet.op(self.activation, [value]) if apart else value

    def _operands(self, sheet: Sheet, shape: Shape, terms: int, small: float) -> list[TensorRef]:
        """Return weights for sums of so many terms, and a bias for each channel."""
        spread = 3.0 * small / terms**0.5
        outputs = shape[0] if shape[0] > 1 else shape[-1]
        weights = sheet.weights(shape, Range(-spread, spread))
        bias = 0.5 * small if self.bias else 0.0
        return [weights, sheet.weights((outputs,), Range(-bias, bias))]


CASES: tuple[Case, ...] = (
    Inverted(),
    Inverted(image=(1, 9, 11, 24), expanded=72, filters=24, residual=True),
    Inverted(image=(3, 8, 5, 9), expanded=41, filters=33, stride=(2, 2), bias=False),
    Inverted(image=(1, 9, 8, 16), expanded=32, filters=20, kernel=(5, 5), padding="VALID"),
    Inverted(image=(2, 1, 13, 16), expanded=48, filters=24, stride=(2, 2)),
    Inverted(image=(2, 17, 15, 3), expanded=24, filters=16, first=(3, 2)),
)
