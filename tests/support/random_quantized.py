"""Draws cases of quantized tensors, which are equal to the CPU's kernels in every bit."""

from __future__ import annotations

from cases.base import Case, Range
from cases.hybrid import HybridConv, HybridMatmul, HybridMatrix, HybridTransposeConv, Rows
from cases.lstm import IntegerLstm
from cases.quantized import ORDINARY, POWER, WIDE
from cases.quantized_conv import QuantizedConv, QuantizedMatrix
from cases.quantized_depthwise import QuantizedDepthwise
from cases.quantized_elementwise import QuantizedPair
from cases.quantized_matmul import QuantizedMatmul
from cases.quantized_pool import QuantizedPool
from cases.quantized_reduce import StoredArg, StoredProduct, StoredReduce
from cases.quantized_resize import StoredResize
from cases.quantized_softmax import StoredSoftmax
from cases.quantized_transpose_conv import QuantizedTransposeConv
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
        bits=4 if dtype == "int8" and dice.number(0, 3) == 0 else 8,
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
        bits=dice.one_of(8, 8, 4, 2) if dtype == "int8" else 8,
        activation=dice.one_of(*_ACTIVATIONS),
        batch=dice.number(1, 4),
        inputs=dice.channels(),
        outputs=dice.channels(),
        has_bias=dice.flag(),
    )


def conversion(dice: Dice) -> Case:
    """Floats that become stored integers, perhaps by channel, and bytes that become others."""
    source, shape = dice.one_of("float32", "float32", *_BYTES), dice.shape(1, 4)
    floats = source == "float32"
    axis = dice.axis(len(shape)) % len(shape) if floats and dice.flag() else None
    return Quantize(
        source=source,
        dtype=dice.one_of(*_BYTES, "int16"),
        kind=dice.one_of(*_KINDS),
        shape=shape,
        ratio=dice.one_of(1.0, 0.5, 1.7),
        axis=None if axis is not None and shape[axis] == 1 else axis,
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


def depthwise(dice: Dice) -> Case:
    """Depthwise convolutions."""
    dtype = dice.one_of(*_BYTES)
    batch, height, width, channels = dice.image()
    kernel = dice.pair(1, 4)
    return QuantizedDepthwise(
        dtype=dtype,
        kind=dice.one_of(*_KINDS),
        per_channel=dtype == "int8" and dice.flag(),
        bits=4 if dtype == "int8" and dice.number(0, 3) == 0 else 8,
        activation=dice.one_of(*_ACTIVATIONS),
        image=(batch, height + 3, width + 3, channels),
        multiplier=dice.one_of(1, 1, 2, 3),
        kernel=kernel,
        stride=dice.pair(1, 3),
        dilation=dice.pair(1, 2) if kernel == (1, 1) else (1, dice.number(1, 2)),
        padding="SAME" if max(kernel) > 2 else dice.one_of("SAME", "VALID"),
    )


def transpose_conv(dice: Dice) -> Case:
    """Transposed convolutions."""
    dtype = dice.one_of(*_BYTES)
    batch, height, width, channels = dice.image()
    kernel = dice.pair(1, 4)
    return QuantizedTransposeConv(
        dtype=dtype,
        kind=dice.one_of(*_KINDS),
        per_channel=dtype == "int8" and dice.flag(),
        activation=dice.one_of(*_ACTIVATIONS),
        batch=batch,
        size=(height, width),
        channels=channels,
        filters=dice.channels(),
        kernel=kernel,
        stride=dice.pair(1, 3),
        padding=dice.one_of("SAME", "VALID"),
        has_bias=dice.flag(),
    )


def matmul(dice: Dice) -> Case:
    """Products of two matrices, or of many."""
    batches = dice.shape(0, 2)
    return QuantizedMatmul(
        kind=dice.one_of(*_KINDS),
        left=batches,
        right=dice.broadcast(batches),
        rows=dice.number(1, 9),
        depth=dice.channels(),
        columns=dice.channels(),
        adj_x=dice.flag(),
        adj_y=dice.flag(),
        constant=dice.flag(),
    )


def pair(dice: Dice) -> Case:
    """Operations on two values, which are broadcast."""
    op = dice.one_of(
        *("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "LESS")
    )
    shape = dice.shape(1, 4)
    other = dice.one_of(None, shape, dice.broadcast(shape) or (1,))
    shapes = (other, shape) if other and dice.flag() else (shape, other)
    sums = op in ("ADD", "SUB", "MUL", "DIV")
    return QuantizedPair(
        op=op,
        dtype="int8" if op == "SQUARED_DIFFERENCE" else dice.one_of(*_BYTES),
        kind=dice.one_of(*_KINDS) if sums else dice.one_of(ORDINARY, POWER),
        first=shapes[0] or shape,
        second=shapes[1],
        constant=None if other is None else dice.one_of(None, 0, 1),
        activation=dice.one_of(*_ACTIVATIONS) if sums else "NONE",
        finer=dice.one_of(1.0, 16.0) if op in ("MUL", "DIV") else 1.0,
        draw=dice.number(0, 99),
    )


def pool(dice: Dice) -> Case:
    """Pools."""
    batch, height, width, channels = dice.image()
    kernel = dice.pair(1, 5)
    return QuantizedPool(
        op=dice.one_of("AVERAGE_POOL_2D", "MAX_POOL_2D"),
        dtype=dice.one_of(*_BYTES),
        kind=dice.one_of(ORDINARY, POWER),
        image=(batch, height + 4, width + 4, channels),
        kernel=kernel,
        stride=dice.pair(1, 3),
        padding=dice.one_of("SAME", "VALID"),
        activation=dice.one_of(*_ACTIVATIONS),
    )


def reduction(dice: Dice) -> Case:
    """Means and sums over any axes."""
    shape = dice.shape(1, 5)
    return StoredReduce(
        op=dice.one_of("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"),
        stored=dice.one_of(*_BYTES),
        kind=dice.one_of(*_KINDS),
        shape=shape,
        axes=dice.one_of((1, 2), dice.axes(4)) if len(shape) == 4 else dice.axes(len(shape)),
        keep=dice.flag(),
        same=dice.flag(),
    )


def product(dice: Dice) -> Case:
    """Products over any axes."""
    shape = dice.shape(1, 5)
    return StoredProduct(
        stored=dice.one_of("int8", "int16"),
        shape=shape,
        axes=dice.axes(len(shape)),
        keep=dice.flag(),
        spread=dice.one_of(2, 20, 100),
        step=dice.one_of(0.001, 0.0313, 0.25, 0.9),
        result_step=dice.one_of(0.0007, 2.0**-6, 1.1),
    )


def arg(dice: Dice) -> Case:
    """Places of maxima and minima."""
    shape = dice.shape(1, 4)
    return StoredArg(
        op=dice.one_of("ARG_MAX", "ARG_MIN"),
        stored=dice.one_of(*_BYTES),
        shape=shape,
        axis=dice.axis(len(shape)),
    )


def resize(dice: Dice) -> Case:
    """Bilinear resizes."""
    corners, centers = dice.one_of((False, False), (True, False), (False, True))
    return StoredResize(
        stored=dice.one_of(*_BYTES),
        shape=dice.image(),
        size=dice.pair(1, 24),
        align_corners=corners,
        half_pixel=centers,
    )


def rows(dice: Dice) -> Case:
    """Rows in proportion to their whole."""
    op = dice.one_of("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")
    return StoredSoftmax(
        op=op,
        stored=dice.one_of(*_BYTES),
        kind=dice.one_of(*_KINDS),
        shape=(*dice.shape(0, 3), dice.number(1, 300)),
        beta=dice.one_of(1.0, 0.5) if op == "SOFTMAX" else 1.0,
    )


def integer_lstm(dice: Dice) -> Case:
    """Every kind of LSTM of int8."""
    steps, cells = dice.number(0, 12), dice.number(1, 40)
    outputs = min(dice.one_of(0, 0, 3, 8), cells)
    return IntegerLstm(
        kind=dice.one_of(*_KINDS),
        batch=dice.number(1, 3),
        steps=steps,
        inputs=dice.number(1, 40),
        cells=cells,
        outputs=outputs,
        projection_bias=outputs > 0 and dice.flag(),
        cifg=dice.flag(),
        peephole=dice.flag(),
        normalized=dice.flag(),
        time_major=steps > 0 and dice.flag(),
        cell_bits=dice.number(0, 6),
        cell_clip=dice.one_of(0.0, 0.25, 10.0),
        proj_clip=dice.one_of(0.0, 0.25),
        all_slots=dice.flag(),
    )


def hybrid_conv(dice: Dice) -> Case:
    """Convolutions of floats, perhaps of groups, perhaps depthwise, with weights of bytes."""
    batch, height, width, channels = dice.image()
    groups, multiplier = dice.one_of((1, 0), (1, 0), (2, 0), (3, 0), (1, 1), (1, 2))
    kernel = dice.pair(1, 3)
    return HybridConv(
        kind=dice.one_of(ORDINARY, POWER),
        per_channel=groups > 1 or multiplier > 0 or dice.flag(),
        bits=4 if multiplier == 0 and dice.number(0, 3) == 0 else 8,
        activation=dice.one_of(*_ACTIVATIONS),
        values=dice.one_of(*_FLOATS),
        batch=batch,
        size=(height + 2, width + 2),
        channels=channels * groups,
        filters=dice.number(2, 9) * groups,
        kernel=kernel,
        stride=dice.pair(1, 3),
        dilation=(dice.number(1, 2), 1),
        padding=dice.one_of("SAME", "VALID") if height > 2 else "SAME",
        groups=groups,
        multiplier=multiplier,
    )


def hybrid_transpose_conv(dice: Dice) -> Case:
    """Transposed convolutions of floats with weights of bytes."""
    batch, height, width, channels = dice.image()
    return HybridTransposeConv(
        kind=dice.one_of(ORDINARY, POWER),
        per_channel=dice.flag(),
        activation=dice.one_of(*_ACTIVATIONS),
        values=dice.one_of(*_FLOATS),
        batch=batch,
        size=(height, width),
        channels=channels,
        filters=dice.number(1, 9),
        kernel=dice.pair(1, 4),
        stride=dice.pair(1, 3),
        padding=dice.one_of("SAME", "VALID"),
        has_bias=dice.flag(),
    )


def hybrid_matrix(dice: Dice) -> Case:
    """Fully connected layers of floats with weights of bytes, or of a few bits."""
    block = dice.one_of(0, 0, 8, 32)
    size = 32 * dice.number(1, 3) if block else 2 * dice.number(16, 40)
    return HybridMatrix(
        kind=dice.one_of(ORDINARY, POWER),
        per_channel=not block and dice.flag(),
        activation="NONE" if block else dice.one_of(*_ACTIVATIONS),
        values=dice.one_of(*_FLOATS),
        bits=4 if block else dice.one_of(8, 8, 4, 2),
        block=block,
        rows=dice.shape(1, 2),
        inputs=size if block else dice.one_of(dice.channels(), size),
        outputs=dice.number(4 if block else 2, 33),
        asymmetric=dice.flag(),
        has_bias=dice.flag(),
    )


def hybrid_matmul(dice: Dice) -> Case:
    """Products of matrices of floats and of bytes."""
    constant = dice.flag()
    batch = (dice.number(1, 3),)
    return HybridMatmul(
        values=dice.one_of(*_FLOATS),
        asymmetric=constant and dice.flag(),
        left=dice.one_of((), (1,), batch),
        right=dice.one_of((), (1,), batch),
        rows=dice.number(1, 9),
        depth=dice.channels(),
        columns=dice.channels(),
        adj_x=dice.flag(),
        adj_y=dice.flag(),
        constant=constant,
    )


_FLOATS = (Range(), Rows(), Rows(-4.0, 0.125), Rows(-0.5, 8.0), Rows(zeros=True))

QUANTIZED = (
    *(conv, matrix, conversion, real, lookup, depthwise, transpose_conv, matmul, pair, pool),
    *(reduction, product, arg, resize, rows, hybrid_conv, hybrid_transpose_conv),
    *(hybrid_matrix, hybrid_matmul, integer_lstm),
)
