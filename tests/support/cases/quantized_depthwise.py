"""Cases of DEPTHWISE_CONV_2D on quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cases.base import LARGE, SMALL, Shape, Sheet, Windowed
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from cases.quantized_conv import Weighted, of_16_bits, of_all_types


@dataclass(frozen=True, kw_only=True)
class QuantizedDepthwise(Windowed, Weighted):
    """DEPTHWISE_CONV_2D."""

    image: Shape = (2, 5, 6, 5)
    multiplier: int = 1

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        outputs = self.image[3] * self.multiplier
        source = quantization(sheet.random, self.dtype, self.kind, 2.0)
        operands = self.operands(sheet, source, (1, *self.kernel, outputs), axis=3)
        options = self.window(
            depth_multiplier=self.multiplier, fused_activation_function=self.activation
        )
        x = sheet.input(self.image, Stored(dtype=self.dtype), source)
        result = self.result(sheet, self.kernel[0] * self.kernel[1])
        version = {"int8": 3, "uint8": 1, "int16": 5}[self.dtype]
        if self.dilation != (1, 1):
            version = max(version, 3)
        computed = sheet.op(
            "DEPTHWISE_CONV_2D", [x, *operands], options, version, self.dtype, result
        )
        sheet.output(computed)


_all_types = partial(of_all_types, QuantizedDepthwise)

CASES = [
    *(
        case
        for kind, channels in ((ORDINARY, 1), (POWER, 19), (WIDE, 8), (POWER, 16), (POWER, 33))
        for case in _all_types(kind=kind, image=(1, 5, 4, channels))
    ),
    *_all_types(stride=(2, 2), padding="VALID", kernel=(2, 3), kind=POWER, activation="RELU6"),
    *_all_types(dilation=(2, 3), image=(1, 9, 8, 12), kind=POWER, activation="RELU"),
    *(
        case
        for channels, multiplier in ((1, 9), (3, 3), (2, 4), (5, 8))
        for case in _all_types(image=(1, 4, 5, channels), multiplier=multiplier, kind=POWER)
    ),
    # One pixel or several for each work item
    *(
        case
        for items in (SMALL, LARGE)
        for case in _all_types(items=items, image=(2, 5, 6, 12), kernel=(5, 2))
    ),
    QuantizedDepthwise(image=(2, 1, 24, 96), stride=(2, 2), per_channel=True),
    QuantizedDepthwise(image=(2, 24, 1, 40)),
    *(QuantizedDepthwise(bits=4, per_channel=each, kind=POWER) for each in (True, False)),
    *(
        case
        for kind, channels, multiplier in ((ORDINARY, 5, 1), (POWER, 19, 2), (WIDE, 8, 1))
        for case in of_16_bits(
            QuantizedDepthwise,
            "int64",
            **{"kind": kind, "image": (2, 5, 4, channels), "multiplier": multiplier},
        )
    ),
    *of_16_bits(QuantizedDepthwise, "int64", stride=(2, 2), padding="VALID", activation="RELU6"),
]
