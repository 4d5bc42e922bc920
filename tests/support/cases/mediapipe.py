"""Cases of MediaPipe's custom operations on images."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import mediapipe_reference as reference
from cases.base import LARGE, SMALL, Floats, NumpyCase, Pair, Range, Shape, Sheet

Outputs = tuple[npt.NDArray[np.floating[Any]], ...]
_ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH")
_STEPS = Range(-8.0, 8.0, grid=1.0)
"""Values that often are equal: the first of several maxima counts."""


def pool_options(padding: str, stride: Pair, kernel: Pair, activation: str) -> bytes:
    """Return the options of a pool, with the fields that only its CPU kernel needs."""
    number = 1 if padding == "SAME" else 2
    fields = (number, stride[1], stride[0], kernel[1], kernel[0], _ACTIVATIONS.index(activation))
    return struct.pack("<6i", *fields) + b"\xff" * 16


@dataclass(frozen=True, kw_only=True)
class ArgmaxPool(NumpyCase):
    """A pool that also tells where in its windows the maxima are."""

    image: Shape = (2, 7, 6, 5)
    kernel: Pair = (2, 2)
    stride: Pair = (2, 2)
    padding: str = "SAME"
    activation: str = "NONE"
    values: Range = _STEPS

    def write(self, sheet: Sheet) -> None:
        """One input, one pool, two outputs."""
        options = pool_options(self.padding, self.stride, self.kernel, self.activation)
        source = sheet.input(self.image, self.values)
        sheet.output(*sheet.custom("MaxPoolingWithArgmax2D", [source], options, count=2))

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return maxima and places."""
        same = self.padding == "SAME"
        best, position = reference.max_pool(inputs[0], self.kernel, self.stride, same)
        return reference.activate(self.activation, best), position


@dataclass(frozen=True, kw_only=True)
class Unpool(NumpyCase):
    """Values put back to places that are given, as integers and a fraction."""

    image: Shape = (2, 4, 3, 5)
    kernel: Pair = (2, 2)
    stride: Pair = (2, 2)
    padding: str = "SAME"
    activation: str = "NONE"
    pooled: bool = False

    def write(self, sheet: Sheet) -> None:
        """Two inputs (or a pool's two results), one unpooling, one output."""
        options = pool_options(self.padding, self.stride, self.kernel, self.activation)
        if self.pooled:
            plain = pool_options(self.padding, self.stride, self.kernel, "NONE")
            source = sheet.input(self.image)
            operands = sheet.custom("MaxPoolingWithArgmax2D", [source], plain, count=2)
        else:
            last = self.kernel[0] * self.kernel[1] - 0.01
            operands = (sheet.input(self.image), sheet.input(self.image, Range(0.0, last)))
        sheet.output(*sheet.custom("MaxUnpooling2D", operands, options))

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the image."""
        same = self.padding == "SAME"
        given = tuple(each.astype(np.float64) for each in inputs)
        if self.pooled:
            given = reference.max_pool(inputs[0], self.kernel, self.stride, same)
        values, positions = given
        result = reference.max_unpool(values, positions, self.kernel, self.stride, same)
        return (reference.activate(self.activation, result),)


@dataclass(frozen=True, kw_only=True)
class TransposeConvBias(NumpyCase):
    """A transposed convolution with options of `fields` numbers."""

    image: Shape = (2, 4, 3, 5)
    filters: int = 6
    kernel: Pair = (3, 3)
    stride: Pair = (2, 2)
    padding: str = "SAME"
    bias: bool = True
    fields: int = 3

    def write(self, sheet: Sheet) -> None:
        """One input, one convolution, one output."""
        source = sheet.input(self.image)
        shape = (self.filters, *self.kernel, self.image[3])
        operands = [source, sheet.weights(shape)]
        operands += [sheet.weights((self.filters,))] if self.bias else []
        numbers = (1 if self.padding == "SAME" else 2, self.stride[1], self.stride[0], 0)
        options = struct.pack(f"<{self.fields}i", *numbers[: self.fields])
        sheet.output(*sheet.custom("Convolution2DTransposeBias", operands, options))

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the convolution."""
        bias = weights[1] if self.bias else None
        same = self.padding == "SAME"
        return (reference.transpose_conv(inputs[0], weights[0], bias, self.stride, same),)


CASES: tuple[NumpyCase, ...] = (
    *(ArgmaxPool(image=(1, 5, 4, c)) for c in range(1, 10)),
    ArgmaxPool(image=(1, 6, 2, 1), kernel=(5, 2), stride=(1, 1), padding="VALID"),
    *(
        ArgmaxPool(image=(2, 9, 7, 5), kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel in ((2, 2), (3, 2), (1, 4))
        for stride in ((1, 1), (2, 2), (3, 1))
    ),
    ArgmaxPool(image=(1, 12, 12, 40), kernel=(4, 4), stride=(4, 4), values=Range(-1e5, -2e4)),
    *(ArgmaxPool(activation=activation) for activation in _ACTIVATIONS[1:]),
    *(Unpool(image=(1, 5, 4, c)) for c in range(1, 10)),
    *(
        Unpool(kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel, stride in (
            ((3, 3), (3, 3)),
            ((2, 4), (2, 4)),
            ((3, 2), (2, 2)),
            ((2, 2), (3, 1)),
        )
    ),
    *(Unpool(activation=activation) for activation in _ACTIVATIONS[1:]),
    Unpool(image=(2, 8, 6, 6), pooled=True),
    Unpool(image=(1, 9, 6, 3), kernel=(3, 3), stride=(3, 3), padding="VALID", pooled=True),
    *(TransposeConvBias(image=(1, 4, 3, c), filters=10 - c) for c in range(1, 10)),
    *(
        TransposeConvBias(kernel=kernel, stride=stride, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel in ((1, 1), (2, 2), (4, 3))
        for stride in ((1, 1), (2, 2), (3, 2))
    ),
    *(
        TransposeConvBias(image=(2, 5, 3, 24), filters=9, kernel=kernel, padding=padding)
        for padding in ("SAME", "VALID")
        for kernel in ((2, 2), (4, 3), (1, 1))
    ),
    TransposeConvBias(bias=False),
    TransposeConvBias(fields=4),
    *(TransposeConvBias(image=(1, 5, 6, 8), filters=12, items=items) for items in (SMALL, LARGE)),
)
