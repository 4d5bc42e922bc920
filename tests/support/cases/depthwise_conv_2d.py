"""Cases of DEPTHWISE_CONV_2D."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Shape, Sheet, Windowed
from cases.conv_2d import ACTIVATIONS


@dataclass(frozen=True, kw_only=True)
class Depthwise(Windowed):
    """A depthwise convolution with seeded weights."""

    image: Shape = (1, 5, 4, 4)
    multiplier: int = 1
    activation: str = "NONE"
    bias: str = "constant"
    weights: str = "constant"

    def write(self, sheet: Sheet) -> None:
        """One input, one convolution, one output."""
        outputs = self.image[3] * self.multiplier
        shape = (1, *self.kernel, outputs)
        image = sheet.input(self.image)
        weights = sheet.operands(shape, self.weights, self.bias, outputs)
        options = self.window(depth_multiplier=self.multiplier)
        version = 2 if self.dilation != (1, 1) else 1
        inputs = [image, *weights]
        sheet.output(sheet.fused("DEPTHWISE_CONV_2D", inputs, self.activation, options, version))


_ODD = (2, 9, 7, 5)

CASES: tuple[Case, ...] = (
    *(Depthwise(image=(1, 5, 4, c)) for c in range(1, 10)),
    Depthwise(image=(1, 7, 5, 40)),
    Depthwise(image=(3, 5, 3, 12), kernel=(1, 1)),
    *(Depthwise(image=(1, 5, 4, 3), multiplier=multiplier) for multiplier in (2, 3, 4, 8)),
    *(Depthwise(image=(1, 5, 4, 1), multiplier=multiplier) for multiplier in (2, 3, 4, 8)),
    Depthwise(image=_ODD, multiplier=2, stride=(2, 2)),
    Depthwise(image=_ODD, multiplier=4, padding="VALID", dilation=(2, 2)),
    Depthwise(image=(1, 5, 4, 8), multiplier=6, kernel=(2, 2)),
    *(
        Depthwise(image=_ODD, kernel=(3, 2), stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for stride in ((1, 1), (2, 2), (3, 3))
    ),
    # The runtime's own kernel needs strides that are equal; the format does not.
    Depthwise(image=_ODD, kernel=(3, 2), stride=(2, 1)),
    Depthwise(image=_ODD, kernel=(3, 2), stride=(1, 2), padding="VALID"),
    *(
        Depthwise(image=_ODD, kernel=(3, 2), dilation=dilation, padding=padding)
        for padding in ("SAME", "VALID")
        for dilation in ((2, 1), (1, 3), (2, 2))
    ),
    Depthwise(image=(1, 6, 6, 8), kernel=(5, 5), stride=(2, 2)),
    Depthwise(image=(1, 3, 3, 4), kernel=(7, 7)),
    Depthwise(image=(1, 5, 4, 6), kernel=(5, 4), padding="VALID"),
    *(Depthwise(activation=activation) for activation in ACTIVATIONS[1:]),
    Depthwise(image=_ODD, bias=""),
    Depthwise(image=_ODD, bias="", activation="RELU6", weights="half"),
    Depthwise(image=_ODD, multiplier=2, weights="half"),
    # One pixel or several for each work item
    *(
        Depthwise(image=(2, height, width, 6), items=items)
        for items in (SMALL, LARGE)
        for height, width in ((3, 1), (3, 2), (1, 5), (2, 4), (5, 9))
    ),
    *(
        Depthwise(image=(2, 9, 11, 5), kernel=kernel, stride=stride, dilation=dilation, items=SMALL)
        for kernel, stride, dilation in (
            ((3, 3), (2, 2), (1, 1)),
            ((2, 5), (1, 1), (1, 2)),
            ((3, 2), (1, 1), (3, 1)),
            ((9, 9), (1, 1), (1, 1)),
        )
    ),
    Depthwise(image=(1, 8, 9, 5), kernel=(3, 3), padding="VALID", items=SMALL),
    Depthwise(image=(1, 4, 5, 3), multiplier=4, items=SMALL, padding="VALID"),
    Depthwise(image=(1, 4, 5, 3), multiplier=3, items=LARGE),
    # Computed weights and bias
    *(Depthwise(image=(2, 5, 4, c), weights="computed", bias="computed") for c in range(1, 10)),
    *(
        Depthwise(image=(1, 5, 4, 3), multiplier=multiplier, weights="computed", bias=bias)
        for multiplier in (2, 3, 4)
        for bias in ("", "constant")
    ),
    Depthwise(image=_ODD, bias="computed", activation="RELU6"),
    Depthwise(image=_ODD, kernel=(3, 2), dilation=(2, 1), weights="computed", items=SMALL),
    Depthwise(image=_ODD, multiplier=2, stride=(2, 2), weights="computed", items=LARGE),
)
