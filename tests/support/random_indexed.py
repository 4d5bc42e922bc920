"""Draws cases of operations that select, replace or combine parts of a value by indices."""

from __future__ import annotations

from cases.base import Case, Shape
from cases.bits import TYPES, Bits
from cases.detection import Detections, Suppression
from cases.indexed import (
    UNSORTED,
    Diagonal,
    Embedding,
    GatherNd,
    Joined,
    Lookup,
    ReverseSequence,
    SparseEmbedding,
    Top,
    UpdateSlice,
)
from cases.integers import AlongAxis, Arithmetic, Counted, Filled, Power
from cases.while_loop import Composite
from dice import Dice

_DTYPES = ("float32", "int32", "int64")


def gather_nd(dice: Dice) -> Case:
    """Rows of as many indices as the value has dimensions, or fewer."""
    shape = dice.shape(1, 4)
    rows = tuple(dice.number(1, 4) for _ in range(dice.number(0, 2)))
    fixed = dice.flag()
    return GatherNd(
        shape=shape,
        indices=(*rows, dice.number(1, len(shape))),
        dtype=dice.one_of(*_DTYPES),
        index=dice.one_of("int32", "int64"),
        fixed=fixed,
        table=not fixed and dice.flag(),
    )


def embedding(dice: Dice) -> Case:
    """Tables that are computed, constant, or of stored integers."""
    stored = dice.one_of("", "int8", "int4", "int2")
    block = dice.one_of(0, 4, 8) if stored in ("int4", "int2") else 0
    # Rows of a few bits end where bytes do.
    whole = {"int4": (2,), "int2": (4,)}.get(stored, (2,) if dice.flag() else ())
    columns = (block * dice.number(1, 3),) if block else (*whole, dice.channels())
    return Embedding(
        table=(dice.number(1, 9), *columns),
        rows=dice.number(1, 5),
        stored=stored,
        per_row=bool(stored) and not block and dice.flag(),
        block=block,
        computed=not stored and dice.flag(),
    )


def lookup(dice: Dice) -> Case:
    """Rows by keys, of which some are missing and some equal."""
    return Lookup(
        table=(dice.number(1, 12), *dice.shape(0, 3)),
        wanted=dice.number(1, 9),
        dtype=dice.one_of(*_DTYPES),
        repeated=dice.flag(),
        fixed=dice.flag(),
    )


def buckets(dice: Dice) -> Case:
    """Weighted rows in buckets of any order."""
    return SparseEmbedding(
        combiner=dice.one_of("SUM", "MEAN", "SQRTN"),
        table=(dice.number(1, 6), *dice.shape(1, 2)),
        axes=tuple(dice.number(1, 4) for _ in range(dice.number(1, 3))),
        rows=dice.number(1, 20),
        mixed=dice.flag(),
        fixed=dice.flag(),
    )


def bytes_of(dice: Dice) -> Case:
    """The bytes of a tensor as elements of another type."""
    given = dice.one_of(*TYPES)
    result = dice.one_of(*(each for each in TYPES if each != given))
    return Bits(given=given, result=result, shape=dice.shape())


def update_slice(dice: Dice) -> Case:
    """Parts of any size, which begin anywhere."""
    shape = dice.shape(1)
    low = dice.number(-2, 1)
    return UpdateSlice(
        shape=shape,
        update=tuple(dice.number(1, size) for size in shape),
        begin=(low, low + dice.number(1, 6)),
        dtype=dice.one_of(*_DTYPES),
        index=dice.one_of("int32", "int64"),
        fixed=dice.flag(),
        table=dice.flag(),
        read_again=dice.flag(),
    )


def joined(dice: Dice) -> Case:
    """Rows scattered or joined in segments."""
    op = dice.one_of("SCATTER_ND", "SEGMENT_SUM", *UNSORTED)
    inner = dice.shape(0, 2)
    outer: Shape = (dice.number(1, 6),)
    if op != "SEGMENT_SUM" and dice.flag():
        outer = (*outer, dice.number(1, 3))
    if op == "SCATTER_ND":
        axes = tuple(dice.number(1, 5) for _ in range(dice.number(1, 2)))
        indices, result = (*outer, len(axes)), (*axes, *inner)
    else:
        indices, result = outer, () if op == "SEGMENT_SUM" else (dice.number(1, 5),)
    return Joined(
        op=op,
        rows=(*outer, *inner),
        indices=indices,
        result=result,
        dtype="int32" if op in UNSORTED else dice.one_of("float32", "int32"),
        fixed=op != "SEGMENT_SUM" and dice.flag(),
    )


def top(dice: Dice) -> Case:
    """Any number of largest elements."""
    shape = dice.shape(1)
    return Top(shape=shape, count=dice.number(1, shape[-1]), dtype=dice.one_of(*_DTYPES))


def reverse_sequence(dice: Dice) -> Case:
    """Sequences along any dimension, with lengths along any other."""
    shape = dice.shape(2, 4)
    along, batch, *_ = dice.order(len(shape))
    return ReverseSequence(
        shape=shape,
        along=along,
        batch=batch,
        dtype=dice.one_of(*_DTYPES),
        index=dice.one_of("int32", "int64"),
        fixed=dice.flag(),
    )


def diagonal(dice: Dice) -> Case:
    """Diagonals of new matrices, or of given ones."""
    outer, height, width = dice.shape(0, 2), dice.number(1, 6), dice.number(1, 9)
    given = dice.flag()
    return Diagonal(
        diagonal=(*outer, min(height, width)),
        matrix=(*outer, height, width) if given else (),
        dtype=dice.one_of(*_DTYPES),
    )


def bits(dice: Dice) -> Case:
    """Operations on the bits of integers."""
    whole = dice.shape()
    return Arithmetic(
        op=dice.one_of("BITWISE_XOR", "RIGHT_SHIFT"),
        dtype=dice.one_of("int32", "int16", "int8"),
        shapes=(whole, dice.broadcast(whole)),
        constant=dice.one_of(None, 1),
    )


def along_axis(dice: Dice) -> Case:
    """Sums, extremes and running sums of integers."""
    op = dice.one_of("SUM", "REDUCE_MAX", "REDUCE_MIN", "CUMSUM")
    options = (("reverse", dice.flag()), ("exclusive", dice.flag())) if op == "CUMSUM" else ()
    axes = tuple({dice.number(0, 3) for _ in range(1 if op == "CUMSUM" else 3)})
    return AlongAxis(op=op, dtype=dice.one_of("int32", "int64"), axes=axes, options=options)


def filled(dice: Dice) -> Case:
    """One number at all places of a shape."""
    return Filled(dtype=dice.one_of(*_DTYPES), shape=dice.shape(1))


def power(dice: Dice) -> Case:
    """Powers of integers, with exponents of one element, too."""
    constant = dice.one_of(None, 0, 1)
    return Power(
        bases=dice.one_of((-12.0, 13.0), (-2.0, 3.0), (-50000.0, 50000.0)),
        exponents=dice.one_of((0.0, 4.0), (0.0, 12.0), (0.0, 40.0)),
        second=dice.one_of((), (1,), (5,), (2, 3, 2, 5)),
        constant=constant,
        edges=dice.flag(),
    )


def counted(dice: Dice) -> Case:
    """Integers from a computed start."""
    begin, count, delta = dice.number(-9, 9), dice.number(1, 40), dice.one_of(-7, -1, 1, 2, 5)
    rest = dice.number(0, abs(delta) - 1)
    return Counted(
        dtype=dice.one_of("int32", "int64"),
        begin=begin,
        end=begin + count * delta - (rest if delta > 0 else -rest),
        delta=delta,
    )


def detections(dice: Dice) -> Case:
    """The end of a detector, with more boxes than it lists."""
    count, classes = dice.number(1, 6), dice.number(1, 5)
    return Detections(
        boxes=count * dice.number(9, 30),
        classes=classes,
        background=dice.number(0, 1),
        coordinates=dice.number(4, 7),
        detections=count,
        overlap=dice.one_of(0.95, 0.99),
        scales=dice.one_of((10, 10, 5, 5), (1, 2, 3, 4)),
        computed_anchors=dice.flag(),
    )


def suppression(dice: Dice) -> Case:
    """Few boxes, whose scores differ as halves, too."""
    return Suppression(
        boxes=dice.number(1, 8),
        count=dice.number(1, 9),
        overlap=dice.one_of(0.2, 0.5, 1.0),
        least=dice.one_of(0.0, 0.3),
        sigma=dice.one_of(None, 0.0, 0.5),
        computed=dice.flag(),
    )


def composite(dice: Dice) -> Case:
    """Composites within each other."""
    return Composite(depth=dice.number(1, 3))
