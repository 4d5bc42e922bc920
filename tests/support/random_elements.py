"""Draws cases of elementwise operations, reductions, selections and indices."""

from __future__ import annotations

from cases.base import ANY, FEW, STEPS, TRUTH, Case, Range
from cases.concatenation import ActivatedConcat, Concat
from cases.conv_2d import ACTIVATIONS
from cases.densify import Densify
from cases.dequantize import Dequantize
from cases.dilate import Dilated
from cases.elementwise import UNARY_VALUES, Binary, Exact, Prelu, Sum, Unary, unary_options
from cases.fake_quant import Buckets, FakeQuant
from cases.logic import (
    COMPARISONS,
    Arg,
    Cast,
    Compare,
    Gather,
    LargeCast,
    OneHot,
    ReduceTruth,
    Select,
)
from cases.reduce import Reduce
from cases.reduce_window import Windows
from cases.softmax import CumSum, Softmax
from dice import Dice
from sparse_tensors import DENSE, SPARSE

_WHOLE = Range(-9.0, 9.0, grid=1 / 8)
_SOURCES = {
    "float32": _WHOLE,
    "int32": Range(-1000, 1000, dtype="int32"),
    "int64": Range(-1000, 1000, dtype="int64"),
    "bool": TRUTH,
}
_TARGETS = {"float32": ("int32", "int64", "bool", "float32"), "bool": ("float32", "int32")}
"""What a device makes of each type; large integers only become floats and truth values."""


def unary(dice: Dice) -> Case:
    """Every operation with one operand."""
    op = dice.one_of(*UNARY_VALUES)
    return Unary(
        op=op,
        shape=dice.shape(),
        values=UNARY_VALUES[op],
        options=dice.one_of(*unary_options(op)),
    )


def on_grid(dice: Dice) -> Case:
    """Floats on a grid, or the numbers of buckets."""
    if dice.flag():
        bits, low, high = dice.number(2, 16), dice.one_of(-2.0, -0.25), dice.one_of(0.0, 0.5, 4.0)
        values = dice.one_of(ANY, Range(0.5, 2.0))
        return FakeQuant(shape=dice.shape(), low=low, high=high, bits=bits, values=values)
    boundaries = sorted(dice.number(-16, 16) / 8 for _ in range(dice.number(1, 9)))
    return Buckets(
        shape=dice.shape(),
        boundaries=tuple(boundaries),
        dtype=dice.one_of("float32", "int32", "int64"),
    )


def windows(dice: Dice) -> Case:
    """Windows of any strides and dilations, or elements that move apart."""
    rank = dice.number(1, 4)
    window, strides, dilations, counts = (
        tuple(dice.number(1, 3) for _ in range(rank)) for _ in range(4)
    )
    if dice.flag():
        dtype, fill = dice.one_of("float32", "int32", "int64", "int8"), dice.number(-2, 2)
        return Dilated(shape=counts, steps=strides, fill=fill, dtype=dtype)
    dtype = dice.one_of("float32", "int32", "int64")
    sides = zip(window, strides, dilations, counts, strict=True)
    return Windows(
        shape=tuple((k - 1) * d + 1 + (n - 1) * s for k, s, d, n in sides),
        window=window,
        strides=strides,
        dilations=dilations,
        # Sums may be next to nothing.
        function=dice.one_of(*(("MUL",) if dtype == "float32" else ()), "MINIMUM", "MAXIMUM"),
        first=dice.one_of(0.0, 2.0),
        dtype=dtype,
    )


def binary(dice: Dice) -> Case:
    """Operands in either order that are broadcast to each other, one of them perhaps constant."""
    op = dice.one_of("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    whole = dice.shape()
    activated = op in ("ADD", "SUB", "MUL", "DIV")
    constant = dice.one_of(None, 0, 1)
    same = constant is None and dice.number(0, 4) == 0
    return Binary(
        op=op,
        first=dice.broadcast(whole),
        second=None if same else dice.broadcast(whole),
        constant=constant,
        half_weights=dice.flag(),
        activation=dice.one_of(*ACTIVATIONS) if activated else "NONE",
    )


_EXACT_SHAPE = (2, 3, 2, 6)


def exact(dice: Dice) -> Case:
    """Operations that are not continuous."""
    op = dice.one_of("FLOOR_DIV", "FLOOR_MOD", "POW", "ATAN2")
    signed = Range(-3.0, -0.5, grid=1 / 8) if dice.flag() else Range(0.5, 3.0, grid=1 / 8)
    return Exact(
        op=op,
        second=_EXACT_SHAPE if op == "ATAN2" else dice.one_of(_EXACT_SHAPE, (6,), (2, 1, 2, 6), ()),
        constant=dice.one_of(None, 1),
        first_values=Range(0.5, 4.0) if op == "POW" else STEPS,
        second_values=signed,
    )


def add_n(dice: Dice) -> Case:
    """A sum of several operands."""
    return Sum(count=dice.number(2, 12), same=dice.flag())


def prelu(dice: Dice) -> Case:
    """Slopes of any shape that can be broadcast."""
    shape = dice.shape(1, 4)
    constant = dice.flag()
    return Prelu(
        shape=shape, alpha=dice.broadcast(shape), constant=constant, half_weights=dice.flag()
    )


def compare(dice: Dice) -> Case:
    """Comparisons and operations on truth values, both broadcast."""
    op = dice.one_of(*COMPARISONS, "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
    values = TRUTH if op.startswith("LOGICAL") else FEW
    whole = dice.shape(0, 4)
    if op == "LOGICAL_NOT":
        return Compare(op=op, shapes=(whole,), values=TRUTH)
    shapes = dice.broadcast(whole), dice.broadcast(whole)
    return Compare(op=op, shapes=shapes, constant=dice.one_of(None, 0, 1), values=values)


def select(dice: Dice) -> Case:
    """Choices by truth values that are an input, a constant or made by a comparison."""
    op, compared = dice.one_of("SELECT_V2", "SELECT"), dice.flag()
    whole = dice.shape(1, 4)
    shapes = [whole] * 3
    if op == "SELECT_V2":
        shapes = [dice.broadcast(whole) for _ in range(3)]
    positions = [i for i in range(1 if compared else 0, 3) if dice.number(0, 2) == 0]
    return Select(
        op=op,
        condition=shapes[0],
        first=shapes[1],
        second=shapes[2],
        constant=tuple(positions[:2]),
        compared=compared,
        values=STEPS if compared else dice.one_of(STEPS, TRUTH),
    )


def cast(dice: Dice) -> Case:
    """One type as another, and back."""
    source = dice.one_of(*_SOURCES)
    target = dice.one_of(*_TARGETS.get(source, ("float32", "bool")))
    moved = ""
    shape = (dice.number(2, 3), dice.number(3, 4), 2, dice.channels())
    if target != source:
        moved = dice.one_of("", "TRANSPOSE", "PACK", "CONCATENATION", "RESHAPE", "STRIDED_SLICE")
    if target == "bool" and moved == "PACK":
        moved = ""  # the CPU's kernel knows no truth values
    then = dice.one_of("", "float32") if target != "float32" else ""
    return Cast(source=_SOURCES[source], target=target, shape=shape, moved=moved, then=then)


def large_cast(dice: Dice) -> Case:
    """Integers beyond those that a device holds."""
    dtype, size = dice.one_of("int32", "int64"), dice.one_of(1e5, 2e9)
    return LargeCast(
        source=Range(-size, size, dtype=dtype), target="float32", shape=dice.shape(1, 4)
    )


def gather(dice: Dice) -> Case:
    """Computed indices of any rank, with batches or without, of inputs or of constants."""
    shape = dice.shape(1, 4)
    batch = dice.number(0, min(1, len(shape) - 1))
    axis = dice.number(batch, len(shape) - 1)
    room = 5 - (len(shape) - 1)
    count = dice.number(0, min(2, room - 0))
    indices = tuple(dice.number(1, 4) for _ in range(count))
    return Gather(
        shape=shape,
        indices=(*shape[:batch], *indices),
        axis=axis,
        batch=batch,
        dtype=dice.one_of("int32", "int64"),
        table=dice.flag(),
    )


def one_hot(dice: Dice) -> Case:
    """Any axis, depth and levels."""
    indices = dice.shape(0, 4)
    return OneHot(
        indices=indices,
        depth=dice.number(1, 9),
        axis=dice.number(-1, len(indices)),
        on=dice.number(-4, 4),
        off=dice.number(-4, 4),
        dtype=dice.one_of("int32", "int64"),
        result=dice.one_of("float32", "int32"),
    )


def arg(dice: Dice) -> Case:
    """Places of extremes along any axis."""
    shape = dice.shape(1)
    return Arg(
        op=dice.one_of("ARG_MAX", "ARG_MIN"),
        shape=shape,
        axis=dice.axis(len(shape)),
        dtype=dice.one_of("int32", "int64"),
        values=dice.one_of(FEW, STEPS),
    )


def reduce(dice: Dice) -> Case:
    """Reductions over any axes, or over one that is a scalar."""
    shape = dice.shape(1)
    axes: tuple[int, ...] | int = dice.axes(len(shape))
    return Reduce(
        op=dice.one_of("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"),
        shape=shape,
        axes=dice.axis(len(shape)) if dice.number(0, 3) == 0 else axes,
        keep=dice.flag(),
        values=dice.one_of(Range(0.5, 1.25), Range(-1.2, -0.8)),
    )


def reduce_truth(dice: Dice) -> Case:
    """Whether any or all are true."""
    shape = dice.shape(1)
    return ReduceTruth(
        op=dice.one_of("REDUCE_ANY", "REDUCE_ALL"),
        shape=shape,
        axes=dice.axes(len(shape)),
        keep=dice.flag(),
    )


def softmax(dice: Dice) -> Case:
    """SOFTMAX and its kin."""
    op = dice.one_of("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")
    return Softmax(
        op=op,
        shape=dice.shape(1, 4 if op == "SOFTMAX" else 5),
        beta=dice.one_of(1.0, 0.5, 2.0, 0.01, -1.0) if op == "SOFTMAX" else 1.0,
        values=dice.one_of(Range(-4.0, 4.0), Range(800.0, 1000.0), Range(-50.0, -40.0)),
    )


def cumsum(dice: Dice) -> Case:
    """Running sums along any axis."""
    shape = dice.shape(1)
    axis = dice.axis(len(shape))
    return CumSum(shape=shape, axis=axis, exclusive=dice.flag(), reverse=dice.flag())


def concat(dice: Dice) -> Case:
    """Several values, some of them constant or there more than once, along any axis."""
    shape = dice.shape(1)
    axis = dice.axis(len(shape))
    count = dice.number(1, 4)
    shapes = []
    for _ in range(count):
        sizes = list(shape)
        sizes[axis] = dice.channels() if axis in (-1, len(shape) - 1) else dice.number(1, 4)
        shapes.append(tuple(sizes))
    order = [dice.number(0, count - 1) for _ in range(dice.number(2, 4))]
    constants = [i for i in range(1, count) if dice.number(0, 3) == 0]
    twice = not constants and dice.number(0, 2) == 0 and 0 in order
    used = sorted(set(order)) == list(range(count))
    return Concat(
        shapes=(*shapes,),
        axis=axis,
        order=(*order,) if twice and used else (),
        constants=(*constants,),
    )


def activated_concat(dice: Dice) -> Case:
    """A fused activation, which only the file format knows."""
    return ActivatedConcat(activation=dice.one_of(*ACTIVATIONS))


def dequantize(dice: Dice) -> Case:
    """Constants of half."""
    shape = dice.shape(1, 4)
    return Dequantize(shape=shape, constant=dice.broadcast(shape), shown=dice.flag())


def densify(dice: Dice) -> Case:
    """Sparse constants, perhaps in blocks, whose levels come in any order."""
    rank = dice.number(1, 4)
    blocks = tuple((d, dice.number(1, 3)) for d in range(rank) if dice.number(0, 3) == 0)
    cut = dict(blocks)
    shape = tuple(dice.number(1, 4) * cut.get(d, 1) for d in range(rank))
    left, order = list(range(rank)), []
    while left:
        order.append(left.pop(dice.number(0, len(left) - 1)))
    return Densify(
        shape=shape,
        order=(*order, *range(rank, rank + len(blocks))),
        formats=(*(dice.one_of(DENSE, SPARSE) for _ in order), *(DENSE for _ in blocks)),
        blocks=blocks,
        density=dice.one_of(0.1, 0.5, 1.0),
        half=dice.flag(),
    )


ELEMENTS = (
    *(
        unary,
        binary,
        binary,
        exact,
        add_n,
        on_grid,
        windows,
        prelu,
        compare,
        select,
        cast,
        large_cast,
        gather,
    ),
    *(
        one_hot,
        arg,
        reduce,
        reduce_truth,
        softmax,
        cumsum,
        concat,
        activated_concat,
        dequantize,
        densify,
    ),
)
