"""QUANTIZED_CONV: convolutions of 8-bit tensors with int32 sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, DType, Node, Value
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import Window
from litegpu.ops.pack_weights import whole_groups

QUANTIZED_CONV = "QUANTIZED_CONV"
_FLIP = 128
"""The offset between an unsigned byte and the signed byte that kernels multiply."""

Bytes = npt.NDArray[np.int8]
Sums = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class QuantizedConvAttributes:
    """The window, and value ids of constant weights of `shape` [O, H, W, I / groups] and bias [O].

    The zero points of the input and the weights are stored integers.
    """

    window: Window
    weights: int
    bias: int
    shape: Shape4
    groups: int
    input_zero: int
    weight_zero: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedConvSpec:
    """Sums of (x - input_zero) * (w - weight_zero) in int32 (wrapping around), plus the bias.

    The spec describes all bytes as signed. `flips` marks an unsigned input: kernels flip the
    highest bit of each input byte before they multiply. Weights and both zero points in the spec
    are converted to signed bytes. Pixels outside the image count as `input_zero`.
    """

    src: Storage
    dst: Storage
    window: Window
    weights: Bytes
    """Weights [O, H, W, I / groups]."""
    bias: Sums
    """Bias [O]."""
    groups: int
    input_zero: int
    weight_zero: int
    flips: bool

    @property
    def keeps_rows(self) -> bool:
        """Whether output pixel p reads only pixel p of `src`."""
        return self.window.pointwise and self.dst.shape[:3] == self.src.shape[:3]

    @property
    def flops(self) -> int:
        return 2 * self.dst.rows * self.weights.size

    @property
    def as_stored(self) -> QuantizedConvSpec:
        """The spec for the input's original bytes, for kernels that multiply unsigned bytes."""
        return (
            replace(self, input_zero=self.input_zero + _FLIP, flips=False) if self.flips else self
        )

    @property
    def folded_bias(self) -> Sums:
        """The bias plus all input-independent terms, for kernels that sum x * w."""
        return self.folded(self.weights)

    def folded(self, weights: Bytes) -> Sums:
        """Return the bias plus the input-independent terms, for the taps [O, ...]."""
        if not self.input_zero:
            return self.bias
        sums = weights.sum(axis=(1, 2, 3), dtype=np.int64)
        terms = math.prod(weights.shape[1:])
        known = self.bias - self.input_zero * sums + terms * self.input_zero * self.weight_zero
        wrapped: Sums = known.astype(np.int64).astype(np.uint32).view(np.int32)
        return wrapped


@register
class QuantizedConv(InternalOp):
    """A convolution of quantized values; only exact convolutions create this op."""

    name = QUANTIZED_CONV
    traits = Trait.SUMS_PRODUCTS | Trait.WINDOWED
    spec: ClassVar[type[QuantizedConvSpec]] = QuantizedConvSpec
    """The class of the nodes' attributes."""

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[QuantizedConvSpec]:
        attributes: QuantizedConvAttributes = node.attributes
        flip = _flip_of(ctx.value(node.inputs[0]))
        weights, weight_flip = _signed_weights(ctx.value(attributes.weights))
        weights = weights.reshape(attributes.shape)
        zero = attributes.weight_zero - weight_flip
        groups = attributes.groups
        if not whole_groups(attributes.shape, groups):
            weights, groups = _spread(weights, groups, zero), 1
        return (
            self.spec(
                ctx.storage(node.inputs[0]),
                ctx.storage(node.outputs[0]),
                attributes.window,
                weights,
                _bias_sums(attributes.bias, attributes.shape[0], ctx),
                groups,
                attributes.input_zero - flip,
                zero,
                bool(flip),
            ),
        )


def _flip_of(value: Value) -> int:
    """Return the number that makes the bytes of a value signed when subtracted."""
    return _FLIP if value.dtype is DType.UINT8 else 0


def _signed_weights(value: Value) -> tuple[Bytes, int]:
    """Return constant bytes as signed bytes, and the number that was subtracted."""
    flip, stored = _flip_of(value), np.asarray(value.data)
    if not flip:
        return stored.astype(np.int8, copy=False), 0
    return (stored.astype(np.int16) - flip).astype(np.int8), flip


def _bias_sums(bias: int, outputs: int, ctx: SpecContext) -> Sums:
    """Return the constant bias of each output; `bias` is a value id or ABSENT."""
    if bias == ABSENT:
        return np.zeros(outputs, np.int32)
    return np.asarray(ctx.value(bias).data, np.int32).ravel()


def _spread(weights: Bytes, groups: int, zero: int) -> Bytes:
    """Expand groups that are not whole blocks of channels to dense weights, with zeros."""
    outputs, height, width, depth = weights.shape
    dense = np.full((outputs, height, width, depth * groups), zero, np.int8)
    for g in range(groups):
        part = slice(g * outputs // groups, (g + 1) * outputs // groups)
        dense[part, :, :, g * depth : (g + 1) * depth] = weights[part]
    return dense
