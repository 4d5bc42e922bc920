"""Cases of CONV_3D and CONV_3D_TRANSPOSE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cases.base import Case, Shape, Sheet
from cases.rejected.base import Rejected, computed, floats, integers

Triple = tuple[int, int, int]
ACTIVATIONS = ("RELU", "RELU_N1_TO_1", "RELU6")
"""The CPU's kernels ignore others."""


@dataclass(frozen=True, kw_only=True)
class Conv3D(Case):
    """A 3-D convolution with seeded weights."""

    image: Shape = (1, 4, 5, 3, 4)
    filters: int = 4
    kernel: Triple = (3, 3, 3)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    padding: str = "SAME"
    activation: str = "NONE"
    bias: str = "constant"
    weights: str = "constant"

    def options(self) -> dict[str, Any]:
        """Return the options of the operation, but for the activation."""
        axes = ("d", "h", "w")
        strides = zip(axes, self.stride, strict=True)
        dilations = zip(axes, self.dilation, strict=True)
        return {
            "padding": self.padding,
            **{f"stride_{axis}": stride for axis, stride in strides},
            **{f"dilation_{axis}_factor": dilation for axis, dilation in dilations},
        }

    def write(self, sheet: Sheet) -> None:
        """One input, one convolution, one output."""
        image = sheet.input(self.image)
        shape = (*self.kernel, self.image[4], self.filters)
        weights = sheet.operands(shape, self.weights, self.bias, self.filters)
        inputs = [image, *weights]
        sheet.output(sheet.fused("CONV_3D", inputs, self.activation, self.options()))


@dataclass(frozen=True, kw_only=True)
class Conv3DTranspose(Conv3D):
    """A 3-D transposed convolution; its output is `short` of what it could be at most."""

    stride: Triple = (2, 2, 2)
    short: Triple = (0, 0, 0)

    def size(self, axis: int) -> int:
        """Return the size of the output along an axis."""
        size, stride = self.image[1 + axis], self.stride[axis]
        extent = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        whole = size * stride if self.padding == "SAME" else (size - 1) * stride + extent
        return whole - self.short[axis]

    def write(self, sheet: Sheet) -> None:
        """One input, one transposed convolution, one output."""
        size = (self.image[0], *(self.size(axis) for axis in range(3)), self.filters)
        image = sheet.input(self.image)
        shape = (*self.kernel, self.filters, self.image[4])
        weights = sheet.operands(shape, self.weights, self.bias, self.filters)
        inputs = [sheet.constant(size, "int32"), weights[0], image, *weights[1:]]
        result = sheet.fused("CONV_3D_TRANSPOSE", inputs, self.activation, self.options())
        sheet.output(result)


_ODD = (2, 5, 4, 3, 3)

CASES: tuple[Case, ...] = (
    *(Conv3D(image=(1, 3, 4, 3, c), filters=10 - c, kernel=(2, 3, 1)) for c in range(1, 10)),
    *(
        Conv3D(image=_ODD, filters=5, kernel=(3, 2, 2), stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for stride in ((1, 1, 1), (2, 1, 2), (3, 2, 1))
    ),
    *(
        Conv3D(image=(1, 6, 7, 5, 2), kernel=(3, 2, 2), dilation=dilation, padding=padding)
        for padding in ("SAME", "VALID")
        for dilation in ((2, 1, 1), (1, 2, 3), (2, 2, 2))
    ),
    Conv3D(image=_ODD, kernel=(1, 1, 1), filters=7),
    Conv3D(image=_ODD, kernel=(1, 3, 3), filters=2, stride=(2, 1, 1), bias=""),
    Conv3D(image=_ODD, kernel=(5, 1, 1), padding="VALID", bias="computed", activation="RELU"),
    Conv3D(image=_ODD, weights="computed", bias="computed"),
    Conv3D(image=(3, 2, 3, 3, 8), weights="computed", filters=6, stride=(2, 2, 2), bias=""),
    *(Conv3D(kernel=(2, 2, 2), activation=activation) for activation in ACTIVATIONS),
    *(
        Conv3DTranspose(image=(1, 2, 3, 2, c), filters=10 - c, kernel=(3, 2, 1))
        for c in range(1, 10)
    ),
    *(
        Conv3DTranspose(image=_ODD, filters=5, kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel, stride in (
            ((3, 3, 3), (1, 1, 1)),
            ((2, 2, 2), (2, 2, 2)),
            ((4, 3, 2), (2, 1, 2)),
            ((2, 1, 3), (3, 2, 1)),
        )
    ),
    Conv3DTranspose(image=_ODD, short=(1, 0, 1), filters=3),
    Conv3DTranspose(image=_ODD, short=(-1, 0, -1), filters=3, stride=(3, 2, 2), padding="VALID"),
    Conv3DTranspose(image=_ODD, dilation=(2, 1, 2), kernel=(2, 2, 2), filters=3),
    Conv3DTranspose(image=_ODD, dilation=(3, 2, 1), kernel=(2, 2, 2), stride=(1, 2, 1)),
    Conv3DTranspose(image=(1, 1, 2, 2, 3), kernel=(2, 2, 2), dilation=(2, 1, 1), stride=(1, 1, 1)),
    Conv3DTranspose(image=_ODD, bias="", filters=3),
    Conv3DTranspose(image=_ODD, bias="computed", filters=3, activation="RELU6"),
    *(Conv3DTranspose(kernel=(2, 2, 2), activation=activation) for activation in ACTIVATIONS),
)

_VIDEO, _FILTER = computed(1, 4, 5, 3, 6), floats(3, 3, 3, 6, 8)
_UP, _UP_FILTER = integers(1, 8, 10, 6, 8), floats(3, 3, 3, 8, 6)
_TWICE = {"stride_depth": 2, "stride_height": 2, "stride_width": 2}

REJECTED = (
    Rejected(
        "CONV_3D",
        (computed(1, 5, 4, 6), _FILTER),
        "Input [1, 5, 4, 6] and filter [3, 3, 3, 6, 8] must have 5 dimensions.",
    ),
    Rejected(
        "CONV_3D",
        (_VIDEO, floats(3, 3, 3, 3, 8)),
        "A filter of [3, 3, 3, 3, 8] does not match 6 input channels.",
    ),
    Rejected(
        "CONV_3D",
        (_VIDEO, _FILTER),
        params={"stride_depth": 0},
        reason="Incorrect stride values: stride_height = 0, stride_width = 1",
    ),
    Rejected(
        "CONV_3D",
        (_VIDEO, _FILTER, floats(7)),
        "bias.size != output.c: a bias of [7] for 8 output channels.",
    ),
    Rejected(
        "CONV_3D_TRANSPOSE",
        (_UP, _UP_FILTER, computed(1, 5, 4, 6)),
        "Output shape [1, 8, 10, 6, 8], filter [3, 3, 3, 8, 6], input [1, 5, 4, 6]: all must be "
        "5-D.",
    ),
    Rejected(
        "CONV_3D_TRANSPOSE",
        (_UP, floats(3, 3, 3, 7, 6), _VIDEO),
        "A filter of [3, 3, 3, 7, 6] does not produce [1, 8, 10, 6, 8] from [1, 4, 5, 3, 6].",
        params=_TWICE,
    ),
    Rejected(
        "CONV_3D_TRANSPOSE",
        (_UP, _UP_FILTER, _VIDEO),
        "The output shape [1, 8, 10, 6, 8] does not belong to an input of [1, 4, 5, 3, 6] with "
        "padding same: a convolution reduces it to [1, 8, 10, 6, 6].",
    ),
    Rejected(
        "CONV_3D_TRANSPOSE",
        (_UP, computed(3, 3, 3, 8, 6), _VIDEO),
        "The filter (input 1) must be constant, but it is computed at run time.",
        params=_TWICE,
    ),
    Rejected(
        "CONV_3D_TRANSPOSE",
        (integers(1, 60000, 10, 6, 8), _UP_FILTER, computed(1, 2, 5, 3, 6)),
        "The expanded weights, with zeros between taps, would have 12960000 floats.",
        params={**_TWICE, "stride_depth": 30000},
    ),
)
