"""Draws cases of operations that move elements, and lists all families of drawn cases."""

from __future__ import annotations

import math
from collections.abc import Callable

from cases.base import Case, Shape
from cases.copy import Pad, Slice
from cases.index_maps import IndexMap, Integers, Pack
from cases.reshape import Reshape, Squeeze
from dice import MAX_RANK, Dice
from random_elements import ELEMENTS
from random_indexed import (
    along_axis,
    bits,
    buckets,
    bytes_of,
    composite,
    counted,
    detections,
    diagonal,
    embedding,
    filled,
    gather_nd,
    joined,
    lookup,
    power,
    reverse_sequence,
    suppression,
    top,
    update_slice,
)
from random_layers import CUSTOM, LAYERS
from random_quantized import QUANTIZED


def pad(dice: Dice) -> Case:
    """Any sides, zeros or another value."""
    shape = dice.shape(1, 5)  # the CPU's kernel takes no more
    return Pad(
        shape=shape,
        pads=tuple(dice.pair(0, 2) if dice.flag() else (0, 0) for _ in shape),
        fill=dice.one_of(None, -1.5, 3.25),
        dtype=dice.one_of("int32", "int64"),
    )


def strided_slice(dice: Dice) -> Case:
    """Any bounds, strides and masks that leave something."""
    shape = dice.shape(1, 5)  # the CPU's kernel takes no more
    begin, end, strides = [], [], []
    shrink = begin_mask = end_mask = 0
    for index, size in enumerate(shape):
        first, step = dice.number(0, size - 1), dice.one_of(1, 1, 2, -1, -2)
        room = (size - 1 - first if step > 0 else first) // abs(step)
        last = first + step * dice.number(0, room)
        stop = last + (1 if step > 0 else -1)
        kind = dice.number(0, 5)
        if kind == 0:
            shrink |= 1 << index
            step = 1
        begin_mask |= (kind == 1) << index
        end_mask |= (kind in (1, 2)) << index
        # From the back where that means the same; -size - 1 stands before the first element.
        begin.append(first - size if dice.flag() else first)
        end.append(stop - size if stop < 0 or (dice.flag() and stop < size) else stop)
        strides.append(step)
    remaining = dice.number(1, len(shape)) if dice.number(0, 3) == 0 else len(shape)
    return Slice(
        shape=shape,
        begin=tuple(begin[:remaining]),
        end=tuple(end[:remaining]),
        strides=tuple(strides[:remaining]),
        begin_mask=begin_mask & ((1 << remaining) - 1),
        end_mask=end_mask & ((1 << remaining) - 1),
        shrink=shrink & ((1 << remaining) - 1),
    )


def masked_slice(dice: Dice) -> Case:
    """An ellipsis, new axes, and ends that count from the begins."""
    shape = dice.shape(2, 4)
    rank = len(shape)
    kind = dice.one_of("ellipsis", "new_axis", "offset")
    begin = [dice.number(0, size - 1) for size in shape]
    sizes = [dice.number(1, size - first) for first, size in zip(begin, shape, strict=True)]
    end = [first + size for first, size in zip(begin, sizes, strict=True)]
    if kind == "offset":
        return Slice(shape=shape, begin=(*begin,), end=(*sizes,), offset=True)
    position = dice.number(0, rank - 1)
    if kind == "ellipsis":
        stop = dice.number(position + 1, rank)
        begin[position:stop] = end[position:stop] = [0]
        return Slice(shape=shape, begin=(*begin,), end=(*end,), ellipsis=1 << position)
    begin.insert(position, 0)
    end.insert(position, 0)
    return Slice(shape=shape, begin=(*begin,), end=(*end,), new_axis=1 << position)


def transpose(dice: Dice) -> Case:
    """Any permutation."""
    shape = dice.shape(1)
    return IndexMap(op="TRANSPOSE", shape=shape, operands=(dice.order(len(shape)),))


def split(dice: Dice) -> Case:
    """Equal parts, parts of given sizes, or all parts of size 1."""
    shape = dice.shape(1)
    axis, dtype = dice.axis(len(shape)), "int32"
    size = shape[axis]
    kind = dice.one_of("SPLIT", "SPLIT_V", "UNPACK")
    if kind == "UNPACK":
        return IndexMap(op=kind, shape=shape, options=(("num", size), ("axis", axis)), count=size)
    if kind == "SPLIT":
        count = dice.divisor(size)
        options = (("num_splits", count),)
        return IndexMap(
            op=kind, shape=shape, operands=(axis,), position=1, options=options, count=count
        )
    sizes: list[int] = []
    while sum(sizes) < size:
        sizes.append(dice.number(1, size - sum(sizes)))
    if dice.flag():
        sizes[dice.number(0, len(sizes) - 1)] = -1
    options = (("num_splits", len(sizes)),)
    operands = ((*sizes,), axis)
    return IndexMap(
        op=kind, shape=shape, operands=operands, options=options, count=len(sizes), dtype=dtype
    )


def repeat(dice: Dice) -> Case:
    """TILE and BROADCAST_TO, which may add dimensions."""
    dtype = dice.one_of("int32", "int64")
    if dice.flag():
        shape = dice.shape(1)
        times = tuple(dice.one_of(1, 2, 3) for _ in shape)
        return IndexMap(op="TILE", shape=shape, operands=(times,), dtype=dtype)
    whole = dice.shape(1)
    small = dice.broadcast(whole) or (1,)
    return IndexMap(op="BROADCAST_TO", shape=small, operands=(whole,), dtype=dtype, version=2)


def blocks(dice: Dice) -> Case:
    """Blocks of space that become channels or batches, and back."""
    op = dice.one_of("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
    n, h, w, c = dice.number(1, 3), dice.number(1, 4), dice.number(1, 4), dice.number(1, 9)
    block = dice.number(1, 3)
    if op == "SPACE_TO_DEPTH":
        return IndexMap(op=op, shape=(n, h * block, w * block, c), options=(("block_size", block),))
    if op == "DEPTH_TO_SPACE":
        return IndexMap(op=op, shape=(n, h, w, c * block**2), options=(("block_size", block),))
    dimensions = dice.number(1, 2)
    sizes = [dice.number(1, 3) for _ in range(dimensions)]
    edges = []
    for extent, size in zip((h, w), sizes, strict=False):
        whole = extent * size
        first = dice.number(0, min(2, whole - 1))
        last = dice.number(0, min(2, whole - 1 - first))
        edges.append((first, last))
    if op == "BATCH_TO_SPACE_ND":
        shape: Shape = (n * math.prod(sizes), *(h, w)[:dimensions], c)
    else:
        inside = [e * s - sum(g) for e, s, g in zip((h, w), sizes, edges, strict=False)]
        shape = (n, *inside, c)
    return IndexMap(op=op, shape=shape, operands=((*sizes,), (*edges,)))


def mirror(dice: Dice) -> Case:
    """Mirrored edges, with the edge itself or without it."""
    shape, mode = dice.shape(1, 4), dice.one_of("REFLECT", "SYMMETRIC")
    most = [size - (mode == "REFLECT") for size in shape]
    pads: Integers = tuple(dice.pair(0, min(each, 4)) for each in most)
    return IndexMap(
        op="MIRROR_PAD",
        shape=shape,
        operands=(pads,),
        options=(("mode", mode),),
        dtype=dice.one_of("int32", "int64"),
    )


def gather_constants(dice: Dice) -> Case:
    """Slices chosen by constants."""
    shape = dice.shape(1, 4)
    axis = dice.axis(len(shape))
    chosen = tuple(dice.number(0, shape[axis] - 1) for _ in range(dice.number(1, 5)))
    indices: Integers = chosen if dice.flag() else chosen[0]
    dtype = dice.one_of("int32", "int64")
    return IndexMap(
        op="GATHER", shape=shape, operands=(indices,), options=(("axis", axis),), dtype=dtype
    )


def part(dice: Dice) -> Case:
    """A part by SLICE."""
    shape = dice.shape(1)
    begin = tuple(dice.number(0, size - 1) for size in shape)
    most = [size - first for first, size in zip(begin, shape, strict=True)]
    result = tuple(dice.number(1, each) for each in most)
    size = tuple(
        -1 if count == each and dice.flag() else count
        for count, each in zip(result, most, strict=True)
    )
    dtype = dice.one_of("int32", "int64")
    return IndexMap(op="SLICE", shape=shape, operands=(begin, size), dtype=dtype, result=result)


def reverse(dice: Dice) -> Case:
    """The elements in reverse order along an axis."""
    shape = dice.shape(1)
    return IndexMap(op="REVERSE_V2", shape=shape, operands=((dice.axis(len(shape)),),))


def expand(dice: Dice) -> Case:
    """One dimension more."""
    shape = dice.shape(0, MAX_RANK - 1)
    axis = dice.number(-len(shape) - 1, len(shape))
    return IndexMap(
        op="EXPAND_DIMS", shape=shape, operands=(axis,), dtype=dice.one_of("int32", "int64")
    )


def pack(dice: Dice) -> Case:
    """Values side by side along a new dimension."""
    shape = dice.shape(0, MAX_RANK - 1)
    count = dice.number(1, 4)
    axis = dice.number(-len(shape) - 1, len(shape))
    return Pack(shape=shape, axis=axis, count=count, constant=count > 1 and dice.flag())


def reshape(dice: Dice) -> Case:
    """Other dimensions, one of which may follow from the rest."""
    shape = dice.shape()
    left, to = math.prod(shape), []
    for _ in range(dice.number(0, MAX_RANK - 1)):
        to.append(dice.divisor(left))
        left //= to[-1]
    to.append(left)
    if dice.number(0, 2) == 0:
        to[dice.number(0, len(to) - 1)] = -1
    return Reshape(shape=shape, to=(*to,), by_parameter=dice.flag())


def squeeze(dice: Dice) -> Case:
    """Fewer dimensions: all of size 1, or some of them."""
    shape = tuple(1 if dice.flag() else size for size in dice.shape(1))
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    dims = [axis - len(shape) if dice.flag() else axis for axis in ones if dice.flag()]
    return Squeeze(shape=shape, dims=(*dims,))


Family = Callable[[Dice], Case]

MOVES: tuple[Family, ...] = (
    *(pad, strided_slice, masked_slice, transpose, split, repeat, blocks, mirror),
    *(gather_constants, part, reverse, expand, pack, reshape, squeeze),
)
_INDEXED: tuple[Family, ...] = (
    *(gather_nd, embedding, update_slice, joined, top, reverse_sequence, diagonal),
    *(bits, bytes_of, along_axis, counted, filled, power, composite, detections, suppression),
    *(lookup, buckets),
)
FAMILIES: tuple[Family, ...] = (*LAYERS, *ELEMENTS, *MOVES, *_INDEXED, *QUANTIZED)
"""Families of cases whose answers the CPU's kernels know."""
CUSTOM_FAMILIES: tuple[Family, ...] = CUSTOM
"""Families of cases whose answers NumPy knows."""
