"""Cases of a depthwise and a pointwise convolution, which tensor cores compute in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Range, Shape, Sheet, Windowed
from litegpu.zoo.writer import TensorRef


@dataclass(frozen=True, kw_only=True)
class Separable(Windowed):
    """A depthwise and a pointwise convolution, and perhaps the sum with what they began from."""

    image: Shape = (2, 7, 9, 24)
    filters: int = 24
    activation: str = "RELU6"
    bias: str = "constant"
    """That of the depthwise convolution."""
    residual: bool = False
    added: bool = False
    """Whether a constant for each pixel is added between the two."""

    def write(self, sheet: Sheet) -> None:
        """One input, both convolutions, one output."""
        source, channels = sheet.input(self.image), self.image[3]
        spread = 1.5 / channels**0.5
        taps = (1, *self.kernel, channels)
        first = [source, *sheet.operands(taps, "constant", self.bias, channels)]
        second = [
            sheet.weights((self.filters, 1, 1, channels), Range(-spread, spread)),
            sheet.weights((self.filters,), Range(-0.5, 0.5)),
        ]
        options = self.window(depth_multiplier=1)
        version = 2 if self.dilation != (1, 1) else 1
        middle = sheet.fused("DEPTHWISE_CONV_2D", first, self.activation, options, version)
        if self.added:
            middle = sheet.fused(
                "ADD", [middle, sheet.weights(self.image, Range(-1.0, 1.0))], "NONE"
            )
        point = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        result = sheet.fused("CONV_2D", [middle, *second], "NONE", point)
        if self.residual:
            result = sheet.fused("ADD", [result, source], "RELU")
        sheet.output(result)


@dataclass(frozen=True, kw_only=True)
class MeanDense(Case):
    """A mean over pixels, in either spelling, that a dense layer reads."""

    image: Shape = (1, 7, 7, 40)
    outputs: int = 33
    pool: bool = False
    activation: str = "NONE"
    half_weights: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, the mean, one dense layer or convolution."""
        source, channels = sheet.input(self.image), self.image[3]
        bias = sheet.weights((self.outputs,), Range(-0.5, 0.5))
        if self.pool:
            view = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
            size = {"filter_height": self.image[1], "filter_width": self.image[2]}
            mean = sheet.fused("AVERAGE_POOL_2D", [source], "RELU", view | size)
            weights = self._weights(sheet, (self.outputs, 1, 1, channels))
            result = sheet.fused("CONV_2D", [mean, weights, bias], self.activation, view)
        else:
            mean = sheet.op("MEAN", [source, sheet.constant([1, 2], "int32")], {"keep_dims": False})
            weights = self._weights(sheet, (self.outputs, channels))
            result = sheet.fused("FULLY_CONNECTED", [mean, weights, bias], self.activation, {})
        sheet.output(result)

    def _weights(self, sheet: Sheet, shape: Shape) -> TensorRef:
        spread = 1.5 / self.image[3] ** 0.5
        return sheet.weights(shape, Range(-spread, spread), half=self.half_weights)


_PAIRS: tuple[Case, ...] = tuple(
    case
    for items in (None, SMALL, LARGE)
    for case in (
        Separable(items=items),
        Separable(image=(1, 5, 6, 17), filters=9, kernel=(3, 2), bias="", items=items),
        Separable(image=(3, 8, 5, 40), filters=70, stride=(2, 2), items=items),
        Separable(image=(1, 9, 11, 21), filters=33, dilation=(2, 2), items=items),
        Separable(image=(1, 9, 8, 16), filters=20, kernel=(5, 4), padding="VALID", items=items),
        Separable(image=(2, 6, 6, 32), filters=32, residual=True, items=items),
        Separable(image=(2, 7, 9, 21), filters=20, added=True, items=items),
        Separable(image=(2, 1, 13, 40), filters=36, stride=(2, 2), items=items),
        Separable(image=(2, 13, 1, 40), filters=36, items=items),
        Separable(image=(1, 14, 14, 96), filters=130, activation="NONE", items=items),
        Separable(image=(2, 9, 8, 8), filters=8, items=items),
        Separable(image=(1, 16, 16, 11), filters=128, bias="", items=items),
    )
)

CASES = (
    *_PAIRS,
    *(
        MeanDense(image=image, outputs=outputs, pool=pool, activation=activation, half_weights=half)
        for image, outputs, activation, half in (
            ((1, 7, 7, 40), 33, "NONE", False),
            ((3, 4, 9, 17), 8, "RELU6", False),
            # So many weights are rounded to float16 at fp16.
            ((1, 8, 8, 600), 1001, "NONE", True),
            ((17, 3, 2, 16), 9, "NONE", False),
            ((1, 9, 8, 20), 12, "NONE", False),
        )
        for pool in (False, True)
    ),
)
