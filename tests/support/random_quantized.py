"""Draws cases of quantized tensors, which are equal to the CPU's kernels in every bit."""

from __future__ import annotations

from cases.base import Case
from cases.quantized import ORDINARY, POWER, WIDE
from cases.quantized_conv import QuantizedConv, QuantizedMatrix
from cases.quantized_unary import DequantizeStored, Quantize, QuantizedLookup
from dice import Dice

_BYTES = ("int8", "uint8")
_KINDS = (ORDINARY, POWER, WIDE)
_ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


def conv(dice: Dice) -> Case:
    """Convolutions, perhaps of groups."""
    dtype, groups = dice.one_of(*_BYTES), dice.one_of(1, 1, 2, 3)
    batch, height, width, channels = dice.image()
    kernel = dice.pair(1, 3)
    return QuantizedConv(
        dtype=dtype,
        kind=dice.one_of(*_KINDS),
        per_channel=dtype == "int8" and dice.flag(),
        activation=dice.one_of(*_ACTIVATIONS),
        batch=batch,
        size=(height + 2, width + 2),
        channels=channels * groups,
        filters=dice.number(1, 9) * groups,
        kernel=kernel,
        stride=dice.pair(1, 3),
        dilation=dice.pair(1, 2) if kernel == (1, 1) else (dice.number(1, 2), 1),
        padding="SAME" if dice.flag() else dice.one_of("SAME", "VALID" if height > 3 else "SAME"),
        groups=groups,
    )


def matrix(dice: Dice) -> Case:
    """Fully connected layers."""
    dtype = dice.one_of(*_BYTES)
    return QuantizedMatrix(
        dtype=dtype,
        kind=dice.one_of(*_KINDS),
        per_channel=dtype == "int8" and dice.flag(),
        activation=dice.one_of(*_ACTIVATIONS),
        batch=dice.number(1, 4),
        inputs=dice.channels(),
        outputs=dice.channels(),
        has_bias=dice.flag(),
    )


def conversion(dice: Dice) -> Case:
    """Floats and bytes that become bytes."""
    return Quantize(
        source=dice.one_of("float32", *_BYTES),
        dtype=dice.one_of(*_BYTES),
        kind=dice.one_of(*_KINDS),
        shape=dice.shape(1, 4),
        ratio=dice.one_of(1.0, 0.5, 1.7),
        draw=dice.number(0, 99),
    )


def real(dice: Dice) -> Case:
    """Bytes that become floats."""
    return DequantizeStored(
        dtype=dice.one_of(*_BYTES),
        kind=dice.one_of(*_KINDS),
        shape=dice.shape(1, 4),
        constant=dice.flag(),
        draw=dice.number(0, 99),
    )


def lookup(dice: Dice) -> Case:
    """Functions of one byte."""
    return QuantizedLookup(
        op=dice.one_of("TANH", "RELU", "RELU6"),
        dtype=dice.one_of(*_BYTES),
        kind=dice.one_of(ORDINARY, POWER),
        shape=dice.shape(1, 4),
        real=dice.one_of(1.0, 4.0, 8.0),
        result=dice.one_of(1.0, 4.0),
        draw=dice.number(0, 99),
    )


QUANTIZED = (conv, matrix, conversion, real, lookup)
