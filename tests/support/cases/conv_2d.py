"""Cases of CONV_2D."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Pair, Shape, Sheet, Windowed

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH")
"""Every fused activation that the file format has and that is defined for floats."""


@dataclass(frozen=True, kw_only=True)
class Conv(Windowed):
    """A convolution with seeded weights."""

    image: Shape = (1, 5, 4, 4)
    filters: int = 4
    kernel: Pair = (1, 1)
    activation: str = "NONE"
    groups: int = 1
    bias: str = "constant"
    weights: str = "constant"

    def write(self, sheet: Sheet) -> None:
        """One input, one convolution, one output."""
        depth = self.image[3] // self.groups
        shape = (self.filters, *self.kernel, depth)
        image = sheet.input(self.image)
        weights = sheet.operands(shape, self.weights, self.bias)
        inputs = [image, *weights]
        sheet.output(sheet.fused("CONV_2D", inputs, self.activation, self.window()))


_ODD = (2, 9, 7, 5)

CASES: tuple[Case, ...] = (
    # Channels
    *(Conv(image=(1, 5, 4, c), filters=10 - c) for c in range(1, 10)),
    *(Conv(image=(1, 5, 4, c), filters=c, kernel=(3, 3)) for c in range(1, 10)),
    Conv(image=(1, 7, 5, 64), filters=96),
    Conv(image=(1, 7, 5, 40), filters=36, kernel=(3, 3)),
    Conv(image=(3, 5, 3, 12), filters=20, kernel=(3, 3)),
    Conv(image=(2, 1, 9, 64), filters=64, kernel=(3, 3)),
    Conv(image=(2, 9, 1, 64), filters=64, kernel=(3, 3), stride=(2, 2)),
    # Padding, strides, dilation, kernel sizes
    *(
        Conv(image=_ODD, filters=6, kernel=(3, 2), stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for stride in ((1, 1), (2, 1), (1, 2), (2, 2), (3, 3))
    ),
    *(
        Conv(image=_ODD, filters=6, kernel=(3, 2), dilation=dilation, padding=padding)
        for padding in ("SAME", "VALID")
        for dilation in ((2, 1), (1, 3), (2, 2))
    ),
    Conv(image=_ODD, filters=6, stride=(2, 2)),
    Conv(image=_ODD, filters=6, stride=(2, 3), padding="VALID"),
    Conv(image=_ODD, filters=3, kernel=(1, 5)),
    Conv(image=_ODD, filters=3, kernel=(5, 1), padding="VALID"),
    Conv(image=(1, 8, 6, 3), filters=8, kernel=(2, 2), stride=(2, 2)),
    Conv(image=(1, 3, 3, 4), filters=4, kernel=(7, 7)),
    Conv(image=(1, 5, 4, 4), filters=6, kernel=(5, 4), padding="VALID"),
    Conv(image=(1, 1, 1, 7), filters=5, kernel=(3, 3)),
    # Activation, bias, weights
    *(Conv(kernel=(3, 3), activation=activation) for activation in ACTIVATIONS[1:]),
    *(Conv(image=_ODD, filters=6, activation=activation) for activation in ACTIVATIONS),
    Conv(image=_ODD, filters=6, bias=""),
    Conv(image=_ODD, filters=6, kernel=(3, 3), bias="", activation="RELU6"),
    Conv(image=_ODD, filters=6, weights="half"),
    Conv(image=_ODD, filters=9, kernel=(3, 3), weights="half", bias=""),
    # Groups: of whole slices, of half tiles, and across slices
    Conv(image=(1, 5, 4, 16), filters=16, kernel=(3, 3), groups=2),
    Conv(image=(2, 5, 4, 16), filters=16, kernel=(1, 1), groups=4),
    Conv(image=(1, 5, 4, 8), filters=24, kernel=(3, 2), groups=2, activation="RELU"),
    Conv(image=(1, 5, 4, 6), filters=4, kernel=(3, 3), groups=2),
    Conv(image=(1, 5, 4, 9), filters=6, groups=3, bias=""),
    Conv(image=(1, 5, 4, 8), filters=8, kernel=(3, 3), stride=(2, 2), groups=8),
    Conv(image=(1, 5, 4, 8), filters=12, kernel=(3, 3), groups=2),
    # Groups of one channel
    *(
        Conv(image=(2, 6, 5, c), filters=c * m, kernel=(3, 2), groups=c, activation="RELU6")
        for c in range(2, 10)
        for m in ((1, 2, 3)[c % 3],)
    ),
    Conv(image=_ODD, filters=5, kernel=(3, 3), stride=(2, 2), dilation=(1, 1), groups=5, bias=""),
    Conv(image=_ODD, filters=10, kernel=(3, 3), dilation=(2, 2), groups=5, bias="computed"),
    Conv(image=(1, 7, 6, 16), filters=16, kernel=(7, 7), groups=16, weights="half"),
    # Many groups, which are padded to whole slices
    *(
        Conv(image=(2, 4, 3, groups * i), filters=groups * o, kernel=(3, 2), groups=groups)
        for groups, i, o in ((20, 2, 1), (12, 5, 3), (24, 3, 8), (18, 8, 5), (32, 2, 2))
    ),
    Conv(image=(1, 5, 4, 60), filters=60, groups=12, bias="computed", activation="RELU"),
    Conv(image=(1, 5, 4, 60), filters=36, groups=12, kernel=(2, 2), bias="", weights="half"),
    Conv(image=(1, 5, 4, 60), filters=60, groups=12, kernel=(3, 3), stride=(2, 1), items=LARGE),
    # Every tile: 1, 2 or 4 pixels by 1 or 2 slices
    *(
        Conv(image=(1, 1, rows, 6), filters=filters, items=SMALL, kernel=(1, 2))
        for rows in (1, 2, 3, 9)
        for filters in (4, 7, 12)
    ),
    *(Conv(image=(1, 3, 3, 6), filters=filters, items=LARGE) for filters in (4, 7, 12)),
    Conv(image=(1, 5, 4, 16), filters=16, kernel=(3, 3), groups=2, items=SMALL),
    Conv(image=(1, 5, 4, 16), filters=16, kernel=(3, 3), groups=4, items=LARGE),
    # Few outputs of many inputs, shared out over a work group
    Conv(image=(1, 1, 1, 1024), filters=11, items=LARGE),
    Conv(image=(2, 1, 3, 517), filters=6, items=LARGE, activation="RELU6"),
    Conv(image=(1, 5, 5, 64), filters=9, kernel=(3, 3), stride=(2, 2), items=LARGE),
    Conv(image=(2, 5, 4, 41), filters=5, kernel=(5, 3), dilation=(1, 2), items=LARGE, bias=""),
    Conv(image=(1, 7, 7, 32), filters=8, kernel=(7, 7), padding="VALID", items=LARGE),
    Conv(image=(1, 4, 4, 128), filters=8, kernel=(3, 3), groups=2, items=LARGE),
    Conv(image=(1, 4, 4, 130), filters=6, kernel=(3, 3), groups=2, items=LARGE, weights="half"),
    # Tiles of many pixels on tensor cores: widths, k-tiles of whole and of broken taps, edges
    *(
        Conv(image=(2, 9, 8, channels), filters=filters, kernel=kernel, items=SMALL)
        for channels, filters, kernel in (
            (16, 8, (1, 1)),
            (17, 33, (1, 1)),
            (72, 65, (1, 1)),
            (160, 129, (1, 1)),
            (3, 20, (3, 3)),
            (8, 40, (3, 2)),
            (20, 70, (3, 3)),
        )
    ),
    Conv(image=(2, 11, 13, 24), filters=24, kernel=(3, 3), stride=(2, 1), items=SMALL),
    Conv(image=(3, 12, 9, 12), filters=36, kernel=(3, 2), dilation=(2, 3), items=SMALL, bias=""),
    Conv(image=(1, 9, 9, 40), filters=9, stride=(2, 2), items=SMALL, activation="RELU6"),
    Conv(image=(1, 20, 15, 16), filters=16, kernel=(5, 5), padding="VALID", items=SMALL),
    # Windows that overlap much
    *(
        Conv(image=image, filters=filters, kernel=kernel, padding=padding, items=SMALL)
        for image, filters, kernel, padding in (
            ((1, 40, 41, 8), 8, (9, 9), "VALID"),
            ((1, 33, 35, 32), 32, (3, 3), "SAME"),
            ((2, 20, 37, 3), 9, (5, 5), "SAME"),
            ((1, 23, 50, 20), 17, (3, 4), "SAME"),
        )
    ),
    # Dense images of a few channels: rows of the window as one run
    *(
        Conv(image=(2, 13, 12, channels), filters=12, kernel=kernel, stride=stride, items=SMALL)
        for channels, kernel, stride in (
            (3, (7, 7), (2, 2)),
            (2, (5, 9), (1, 2)),
            (1, (4, 20), (1, 1)),
            (3, (6, 3), (3, 1)),
        )
    ),
    # Computed weights and bias
    *(
        Conv(image=(2, 5, 4, c), filters=10 - c, kernel=(3, 2), weights="computed", bias=bias)
        for c in range(1, 10)
        for bias in (("", "constant", "computed")[c % 3],)
    ),
    Conv(image=_ODD, filters=6, bias="computed", activation="RELU"),
    Conv(filters=1, bias="computed", activation="TANH"),
    Conv(image=_ODD, filters=6, weights="computed", bias="computed", activation="RELU6"),
    Conv(image=_ODD, filters=9, kernel=(3, 3), stride=(2, 1), weights="computed", items=SMALL),
    Conv(image=_ODD, filters=9, dilation=(2, 1), kernel=(2, 2), weights="computed", items=LARGE),
    *(
        Conv(image=image, filters=filters, kernel=(3, 2), groups=groups, weights="computed")
        for image, filters, groups in (
            ((1, 5, 4, 16), 16, 2),
            ((1, 5, 4, 8), 24, 2),
            ((2, 5, 4, 6), 4, 2),
            ((1, 5, 4, 9), 6, 3),
            ((1, 5, 4, 8), 12, 2),
            ((2, 5, 4, 7), 14, 7),
            ((1, 4, 3, 60), 36, 12),
        )
    ),
    Conv(image=(2, 1, 3, 517), filters=6, weights="computed", items=LARGE),
    Conv(image=(1, 4, 4, 128), filters=8, kernel=(3, 3), groups=2, weights="computed", items=LARGE),
)
