"""Draws cases of convolutions, dense layers, pools, LSTMs and MediaPipe's operations."""

from __future__ import annotations

import math
from typing import Any

from cases.attention import Attention
from cases.base import ANY, Case, Pair, Range
from cases.batch_matmul import Matmul
from cases.conv_2d import ACTIVATIONS, Conv
from cases.conv_3d import ACTIVATIONS as ACTIVATIONS_3D
from cases.conv_3d import Conv3D, Conv3DTranspose
from cases.depthwise_conv_2d import Depthwise
from cases.fully_connected import Dense
from cases.landmarks import MovePoints, Resample, ToMatrix, Transform
from cases.lstm import BasicLstm, Lstm
from cases.mediapipe import ArgmaxPool, TransposeConvBias, Unpool
from cases.pool_2d import AveragePool, L2Pool, LocalResponse, MaxPool
from cases.resize_bilinear import Resize
from cases.rfft2d import Spectrum
from cases.rnn import BACKWARD, NO_AUXILIARY, OWN_WEIGHTS, BidirectionalLstm, BidirectionalRnn, Rnn
from cases.svdf import QuantizedSvdf, Svdf
from cases.transpose_conv import TransposeConv
from dice import Dice


def fitting_padding(
    dice: Dice, image: tuple[int, ...], kernel: Pair, dilation: Pair = (1, 1)
) -> str:
    """Draw a padding scheme under which the window fits."""
    fits = all(d * (k - 1) < n for d, k, n in zip(dilation, kernel, image[1:3], strict=True))
    return dice.one_of("SAME", "VALID") if fits else "SAME"


def _weights(dice: Dice) -> str:
    return dice.one_of("constant", "constant", "half", "computed")


def _bias(dice: Dice) -> str:
    return dice.one_of("constant", "", "computed")


def convolution(dice: Dice) -> Case:
    """Any window, groups, and weights or biases that are computed."""
    image, kernel = dice.image(), dice.pair(1, 4)
    stride, dilation = dice.pair(1, 3), dice.pair(1, 3)
    groups = dice.one_of(1, 1, dice.divisor(image[3]))
    weights = _weights(dice)
    if groups > 1 and weights == "computed":
        weights = "constant"  # the CPU's kernel gives zeros there
    return Conv(
        image=image,
        filters=groups * dice.number(1, 9 if groups > 1 else 33),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=fitting_padding(dice, image, kernel, dilation),
        activation=dice.one_of(*ACTIVATIONS),
        groups=groups,
        bias=_bias(dice),
        weights=weights,
    )


def convolution_3d(dice: Dice) -> Case:
    """3-D convolutions and transposed ones, with any window."""
    batch, height, width, channels = dice.image()
    up = dice.flag()
    kernel = (dice.number(1, 3), *dice.pair(1, 3))
    stride, dilation = ((dice.number(1, 3), *dice.pair(1, 2)) for _ in range(2))
    slices = dice.number(1, 4)
    sides = zip((slices, height, width), kernel, dilation, strict=True)
    fits = up or all(d * (k - 1) < n for n, k, d in sides)
    case = Conv3D(
        image=(batch, slices, height, width, channels),
        filters=dice.number(1, 9),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=dice.one_of("SAME", "VALID") if fits else "SAME",
        activation=dice.one_of("NONE", *ACTIVATIONS_3D),
        bias=_bias(dice),
        weights=dice.one_of("constant", "half") if up else _weights(dice),
    )
    if not up:
        return case
    sign = 1 if case.padding == "SAME" else -1
    planes, rows, columns = (sign * dice.number(0, step - 1) for step in stride)
    return Conv3DTranspose(**vars(case), short=(planes, rows, columns))


def spectrum(dice: Dice) -> Case:
    """Fourier transforms that cut their input, or add zeros to it."""
    return Spectrum(
        shape=(dice.number(1, 3), dice.number(1, 9), dice.number(1, 40)),
        lengths=(1 << dice.number(0, 4), 1 << dice.number(1, 6)),
        parts=dice.one_of(("COMPLEX_ABS",), ("COMPLEX_ABS", "REAL"), ("IMAG", "COMPLEX_ABS")),
    )


def depthwise(dice: Dice) -> Case:
    """Any window and multiplier."""
    image, kernel = dice.image(), dice.pair(1, 4)
    stride, dilation = dice.pair(1, 3), dice.pair(1, 3)
    return Depthwise(
        image=image,
        multiplier=dice.one_of(1, 1, 2, 3, 4),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=fitting_padding(dice, image, kernel, dilation),
        activation=dice.one_of(*ACTIVATIONS),
        bias=_bias(dice),
        weights=_weights(dice),
    )


def transposed(dice: Dice) -> Case:
    """Any window; with SAME, an output that is smaller than it could be."""
    kernel, stride, padding = dice.pair(1, 5), dice.pair(1, 4), dice.one_of("SAME", "VALID")
    short = (dice.number(0, stride[0] - 1), dice.number(0, stride[1] - 1))
    return TransposeConv(
        image=(dice.number(1, 3), dice.number(1, 5), dice.number(1, 5), dice.channels()),
        filters=dice.number(1, 17),
        kernel=kernel,
        stride=stride,
        padding=padding,
        short=short if padding == "SAME" else (0, 0),
        activation=dice.one_of(*ACTIVATIONS),
        bias=_bias(dice),
        weights=_weights(dice),
    )


def dense(dice: Dice) -> Case:
    """Rows that the last dimension gives, or rows across dimensions."""
    shape = dice.shape(1)
    keep = len(shape) > 1 and dice.flag()
    return Dense(
        shape=shape,
        units=dice.number(1, 17),
        depth=0 if keep or dice.flag() else dice.divisor(math.prod(shape)),
        keep_num_dims=keep,
        activation=dice.one_of(*ACTIVATIONS),
        bias=_bias(dice),
        weights=_weights(dice),
    )


def matmul(dice: Dice) -> Case:
    """Batches that are broadcast to each other, either operand transposed or a constant."""
    whole = dice.shape(0, 3)
    batch, other = dice.broadcast(whole), dice.broadcast(whole)
    itself = dice.number(0, 5) == 0
    rows, depth, columns = dice.number(1, 9), dice.channels(), dice.number(1, 17)
    adj_x, adj_y = dice.flag(), dice.flag()
    if itself:
        other, rows, columns = batch, depth, depth
    return Matmul(
        rows=rows,
        depth=depth,
        columns=columns,
        batch=batch,
        other=other,
        adj_x=adj_x,
        adj_y=adj_y,
        constant=-1 if itself else dice.one_of(-1, 0, 1),
        itself=itself,
    )


def attention(dice: Dice) -> Case:
    """Heads of any size, before the tokens or across them, with masks of any kind."""
    batch, heads = dice.number(1, 3), dice.number(1, 3)
    queries, across = dice.number(1, 9), dice.flag()
    repeat = dice.one_of("BROADCAST_TO", "TILE", "GATHER", "CONCATENATION")
    projected = across and dice.flag()
    packed = not projected and dice.flag()
    keys = queries if projected or packed else dice.number(1, 20)
    share = 1 if packed else dice.one_of(1, 1, 2, 3)
    heads *= share
    depth = dice.number(1, 20)
    spellings = ["", "joined"] * (depth > 1) + ["apart"] * (depth % 2 == 0)
    whole = (batch, heads, queries, keys)
    masked = tuple(dice.one_of(1, size) for size in whole[:3])
    has_mask = dice.flag()
    rows = across and not has_mask and dice.flag()
    rotary = "" if packed else dice.one_of("", *spellings)
    plain = not (rows or packed or projected or rotary) and share in (1, heads)
    lying, lying_values = plain and dice.flag(), plain and dice.flag()
    return Attention(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        depth=depth,
        rotary=rotary,
        columns=0 if packed else dice.number(0, 20),
        across=across,
        rows=rows,
        regrouped=not (rows or lying or lying_values) and dice.flag(),
        turned=not rows and dice.flag(),
        lying=lying,
        lying_values=lying_values,
        scale=dice.one_of(None, 0.25, 1.5),
        mask=(*masked, keys) if has_mask else None,
        hidden=dice.number(0, keys - 1) if has_mask else 0,
        added=dice.flag(),
        projected=projected,
        packed=packed,
        spread=dice.flag(),
        share=share,
        repeat=repeat,
        choice=bool(has_mask and dice.flag()),
        windows=0 if rows else dice.one_of(0, dice.divisor(batch)),
        scaled=dice.one_of("", "query", "key"),
        casts=dice.flag(),
        cap=dice.one_of(None, None, 2.0),
        values=dice.one_of(ANY, Range(-4.0, 4.0, grid=0.25)),
    )


def pool(dice: Dice) -> Case:
    """Averages and maxima over any window, with zeros around them or not."""
    kind = dice.one_of(AveragePool, MaxPool, L2Pool)
    image, kernel = dice.image(), dice.pair(1, 5)
    pads = (dice.pair(0, 2), dice.pair(0, 2)) if dice.number(0, 3) == 0 else None
    around = (0, 0) if pads is None else (sum(pads[0]), sum(pads[1]))
    larger = (image[0], image[1] + around[0], image[2] + around[1])
    return kind(
        image=image,
        kernel=kernel,
        stride=dice.pair(1, 4),
        padding=fitting_padding(dice, larger, kernel),
        activation=dice.one_of(*ACTIVATIONS),
        values=dice.one_of(Range(0.5, 2.0), Range(-8.0, -0.5), Range(-8.0, 8.0)),
        pads=pads,
    )


def lstm(dice: Dice) -> Case:
    """Every kind of LSTM: sequences or single steps."""
    steps, cells = dice.number(0, 4), dice.number(1, 12)
    outputs = _projected(dice, cells, 0, 0, 3, 8)
    normalized = dice.flag()
    return Lstm(
        batch=dice.number(1, 3),
        steps=steps,
        inputs=dice.number(1, 9),
        cells=cells,
        outputs=outputs,
        projection_bias=outputs > 0 and dice.flag(),
        cifg=dice.flag(),
        peephole=dice.flag(),
        normalized=normalized,
        time_major=steps > 0 and dice.flag(),
        activation=dice.one_of("TANH", *ACTIVATIONS[1:4]),
        cell_clip=dice.one_of(0.0, 0.25),
        proj_clip=dice.one_of(0.0, 0.0625),
        half_weights=dice.flag(),
        all_slots=normalized or dice.flag(),
    )


def _projected(dice: Dice, cells: int, *sizes: int) -> int:
    """Return the size of a projection, 0 for none.

    It is at most the number of cells: the CPU's kernel computes it in a scratch tensor of the
    cells' size, and writes beyond that if there are more outputs.
    """
    return min(dice.one_of(*sizes), cells)


def basic_lstm(dice: Dice) -> Case:
    """One step of the LSTM that the format's version 2 means."""
    return BasicLstm(
        batch=dice.number(1, 3),
        inputs=dice.number(1, 17),
        cells=dice.number(1, 17),
        half_weights=dice.flag(),
    )


def recurrent(dice: Dice) -> Case:
    """Layers of one or both directions other than LSTMs of one, and SVDFs."""
    batch, steps, inputs, cells = (dice.number(1, most) for most in (3, 4, 9, 12))
    activation = dice.one_of(*ACTIVATIONS)
    kind = dice.number(0, 3)
    if kind == 0:
        return Rnn(
            batch=batch,
            steps=steps - 1,
            inputs=inputs,
            units=cells,
            time_major=steps > 1 and dice.flag(),
            activation=activation,
            half_weights=dice.flag(),
        )
    if kind == 1:
        sizes: dict[str, Any] = {"batch": batch, "inputs": inputs, "units": cells, "memory": steps}
        rank = dice.number(1, 3)
        if dice.flag():
            return QuantizedSvdf(**sizes, rank=rank, bias=dice.flag())
        stored = dice.one_of("float", "half", "hybrid", "asymmetric")
        return Svdf(
            **sizes,
            rank=rank,
            bias=dice.flag(),
            activation=activation,
            hybrid=stored in ("hybrid", "asymmetric"),
            asymmetric=stored == "asymmetric",
            half_weights=stored == "half",
        )
    auxiliary = dice.one_of(NO_AUXILIARY, OWN_WEIGHTS, BACKWARD)
    layout: dict[str, Any] = {
        "auxiliary": auxiliary,
        "time_major": dice.flag(),
        "merged": dice.flag(),
    }
    layout |= {"steps": steps, "inputs": inputs, "auxiliary_inputs": inputs}
    if kind == 2:
        units: dict[str, Any] = {"forward": cells, "backward": dice.number(1, 12)}
        return BidirectionalRnn(batch=batch, **layout, **units, activation=activation)
    apart = layout["time_major"] or not layout["merged"]
    outputs = _projected(dice, cells, 0, 3)
    return BidirectionalLstm(
        batch=batch if apart else 1,
        **layout,
        cells=cells,
        outputs=outputs,
        projection_bias=outputs > 0 and dice.flag(),
        cifg=dice.flag(),
        peephole=dice.flag(),
        cell_clip=dice.one_of(0.0, 0.25),
        proj_clip=dice.one_of(0.0, 0.5) if outputs else 0.0,
        activation=dice.one_of("TANH", *ACTIVATIONS[1:4]),
    )


def resize(dice: Dice) -> Case:
    """Both kinds, and every agreement about corners and centers that the CPU has."""
    op = dice.one_of("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
    corners, centers = dice.flag(), dice.flag()
    if op == "RESIZE_BILINEAR" and corners:
        centers = False
    size = dice.pair(1, 12)
    return Resize(op=op, image=dice.image(), size=size, corners=corners, centers=centers)


def argmax_pool(dice: Dice) -> Case:
    """Maxima and where they are."""
    image, kernel = dice.image(), dice.pair(1, 4)
    return ArgmaxPool(
        image=image,
        kernel=kernel,
        stride=dice.pair(1, 3),
        padding=fitting_padding(dice, image, kernel),
        activation=dice.one_of(*ACTIVATIONS),
        values=dice.one_of(Range(-8.0, 8.0, grid=1.0), Range(-1e5, -2e4)),
    )


def unpool(dice: Dice) -> Case:
    """Values put back, to given places or to those of a pool."""
    kernel = dice.pair(1, 4)
    pooled = dice.flag()
    image = dice.image()
    return Unpool(
        image=image,
        kernel=kernel,
        stride=kernel,
        padding=fitting_padding(dice, image, kernel) if pooled else dice.one_of("SAME", "VALID"),
        activation=dice.one_of(*ACTIVATIONS),
        pooled=pooled,
    )


def transposed_with_bias(dice: Dice) -> Case:
    """MediaPipe's transposed convolution."""
    return TransposeConvBias(
        image=(dice.number(1, 3), dice.number(1, 5), dice.number(1, 5), dice.channels()),
        filters=dice.number(1, 17),
        kernel=dice.pair(1, 4),
        stride=dice.pair(1, 3),
        padding=dice.one_of("SAME", "VALID"),
        bias=dice.flag(),
        fields=dice.one_of(3, 4),
    )


def resample(dice: Dice) -> Case:
    """An image at any positions."""
    channels = dice.number(2, 5)
    return Resample(
        image=dice.image(), size=dice.pair(1, 6), channels=channels, constant=dice.flag()
    )


def transform(dice: Dice) -> Case:
    """An image through a matrix of any rank."""
    version = dice.one_of(1, 2)
    return Transform(
        image=(1, dice.number(2, 9), dice.number(2, 8), dice.channels()),
        size=dice.pair(2, 9),
        version=version,
        name_v1=version == 1 and dice.flag(),
        matrix=dice.one_of((1, 4, 4), (1, 1, 1, 16), (4, 4)),
    )


def move_points(dice: Dice) -> Case:
    """Landmarks through a matrix, with the options of either version."""
    matrix = dice.one_of((1, 4, 4), (1, 16))
    if dice.flag():
        points = (dice.number(1, 3), dice.number(1, 17), dice.number(2, 9))
        return MovePoints(points=points, matrix=matrix)
    dimensions = dice.one_of(2, 3)
    return MovePoints(
        points=(1, 1, 1, dimensions * dice.number(1, 17)),
        version=1,
        dimensions=dimensions,
        scale=dice.one_of(1.0, 0.25, 2.0),
        matrix=matrix,
    )


def to_matrix(dice: Dice) -> Case:
    """The matrix of some landmarks."""
    count = dice.number(5, 21)
    left = dice.number(0, count - 1)
    right = (left + dice.number(1, count - 1)) % count
    subset = dice.order(count)[: dice.number(2, 5)]
    version = dice.one_of(1, 2)
    return ToMatrix(
        points=(1, 1, 1, 3 * count),
        version=version,
        name_v2=version == 1 and dice.flag(),
        ends=(left, right),
        subset=subset,
        target=dice.one_of(0.7, -2.5, 0.0),
        output=dice.pair(4, 16),
    )


def local_response(dice: Dice) -> Case:
    """Neighbours among the channels, as many as there are or more."""
    return LocalResponse(
        shape=dice.image(),
        radius=dice.number(0, 9),
        bias=dice.one_of(1.0, 2.0),
        alpha=dice.one_of(0.25, 1.0),
        beta=dice.one_of(0.5, 0.75, 1.0),
    )


LAYERS = (
    *(
        convolution,
        convolution,
        convolution_3d,
        spectrum,
        depthwise,
        transposed,
        dense,
        matmul,
        pool,
        lstm,
        basic_lstm,
    ),
    attention,
    local_response,
    recurrent,
    resize,
)
CUSTOM = (
    *(argmax_pool, unpool, transposed_with_bias, resample, transform, move_points, to_matrix),
)
