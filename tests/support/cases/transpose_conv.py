"""Cases of TRANSPOSE_CONV."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Pair, Shape, Sheet
from cases.conv_2d import ACTIVATIONS


@dataclass(frozen=True, kw_only=True)
class TransposeConv(Case):
    """A transposed convolution; `short` is by how much its output is smaller than it could be.

    `weights` are constant, float16 behind DEQUANTIZE, or computed.
    """

    image: Shape = (1, 4, 3, 4)
    filters: int = 4
    kernel: Pair = (3, 3)
    stride: Pair = (2, 2)
    padding: str = "SAME"
    short: Pair = (0, 0)
    activation: str = "NONE"
    bias: str = "constant"
    weights: str = "constant"

    def size(self, axis: int) -> int:
        """Return the output's height or width."""
        size, stride, kernel = self.image[1 + axis], self.stride[axis], self.kernel[axis]
        # A valid window that has become smaller stays within the last stride.
        whole = size * stride if self.padding == "SAME" else (size - 1) * stride + kernel
        return whole - self.short[axis]

    def write(self, sheet: Sheet) -> None:
        """One input (and computed weights), one transposed convolution, one output."""
        batch, _, _, depth = self.image
        size = (batch, self.size(0), self.size(1), self.filters)
        image = sheet.input(self.image)
        weights = sheet.operands((self.filters, *self.kernel, depth), self.weights, self.bias)
        options = {
            "padding": self.padding,
            "stride_h": self.stride[0],
            "stride_w": self.stride[1],
        }
        version = 4 if self.activation != "NONE" else 3 if len(weights) > 1 else 1
        inputs = [sheet.constant(size, "int32"), weights[0], image, *weights[1:]]
        result = sheet.fused("TRANSPOSE_CONV", inputs, self.activation, options, version)
        sheet.output(result)


_ODD = (2, 5, 3, 5)

CASES: tuple[Case, ...] = (
    *(TransposeConv(image=(1, 4, 3, c), filters=10 - c) for c in range(1, 10)),
    TransposeConv(image=(1, 5, 4, 40), filters=36),
    TransposeConv(image=(3, 3, 5, 12), filters=20, kernel=(2, 2)),
    *(
        TransposeConv(image=_ODD, filters=6, kernel=(3, 2), stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for stride in ((1, 1), (2, 1), (1, 2), (3, 3), (4, 2), (4, 4))
    ),
    *(
        TransposeConv(image=_ODD, filters=6, kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel in ((1, 1), (1, 5), (4, 4), (7, 6))
        for stride in ((1, 1), (2, 2), (3, 2))
    ),
    # Odd sizes that a SAME window with that stride comes from
    *(
        TransposeConv(image=_ODD, kernel=kernel, stride=(2, 3), short=short)
        for kernel in ((3, 3), (4, 5), (2, 1))
        for short in ((1, 1), (0, 2))
    ),
    TransposeConv(image=(1, 1, 1, 7), filters=5, kernel=(5, 5)),
    TransposeConv(image=(1, 6, 1, 3), filters=3, stride=(1, 3)),
    # Activation, bias, weights
    *(TransposeConv(image=_ODD, filters=6, activation=each) for each in ACTIVATIONS[1:]),
    *(
        TransposeConv(image=_ODD, filters=6, bias=bias, weights=weights)
        for bias in ("", "constant", "computed")
        for weights in ("constant", "half", "computed")
    ),
    TransposeConv(filters=9, weights="computed", activation="RELU", items=SMALL),
    # Every tile
    *(
        TransposeConv(image=(2, 3, width, 6), filters=filters, items=SMALL)
        for width in (1, 2, 5)
        for filters in (4, 7, 12)
    ),
    *(TransposeConv(image=(1, 3, 3, 6), filters=filters, items=LARGE) for filters in (4, 7, 12)),
    TransposeConv(image=(1, 3, 9, 8), filters=8, stride=(1, 1), items=SMALL),
    TransposeConv(image=(1, 3, 9, 8), filters=8, kernel=(4, 4), stride=(2, 3), items=SMALL),
    # Sums that are long enough for tensor cores: phases with and without taps
    *(
        TransposeConv(image=(2, 5, 3, 20), filters=9, kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel, stride in (((3, 3), (2, 2)), ((5, 4), (1, 3)), ((1, 2), (3, 2)))
    ),
    *(
        TransposeConv(image=(2, 5, 3, 16), filters=12, kernel=kernel, short=(1, 1), bias="")
        for kernel in ((2, 2), (4, 5), (1, 1))
    ),
    TransposeConv(image=(3, 4, 6, 24), filters=33, weights="half", activation="RELU6"),
    # ... and for tiles of many pixels
    *(
        TransposeConv(
            image=(2, 9, 8, c), filters=filters, kernel=kernel, padding=padding, items=SMALL
        )
        for c, filters, kernel, padding in (
            (20, 9, (3, 3), "SAME"),
            (72, 65, (2, 2), "VALID"),
            (3, 8, (6, 6), "SAME"),
        )
    ),
    TransposeConv(image=(1, 7, 9, 24), filters=40, kernel=(2, 2), short=(1, 1), items=SMALL),
)
