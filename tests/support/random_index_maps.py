"""Steps of random models that move, reduce, compare and select elements: see random_models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from litegpu.zoo.writer import TensorRef

if TYPE_CHECKING:
    from random_models import Sketch

Shape = tuple[int, ...]
MAX_RANK = 6


def _integers(sketch: Sketch, data: Any) -> TensorRef:
    return sketch.writer.constant(data, sketch.one_of("int32", "int64"))


def _axis(sketch: Sketch, x: TensorRef, size: int = 1 << 9) -> int | None:
    """Draw an axis with at most so many elements, if there is one."""
    axes = [axis for axis, n in enumerate(x.shape) if n <= size]
    return sketch.one_of(*axes) if axes else None


def _with(shape: Shape, axis: int, *sizes: int) -> Shape:
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def transpose(sketch: Sketch) -> None:
    """Reorder the dimensions."""
    x = sketch.pick()
    order = sketch.draw(st.permutations(range(len(x.shape))))
    shape = tuple(x.shape[axis] for axis in order)
    sketch.op("TRANSPOSE", [x, sketch.writer.constant(order, "int32")], shape)


def part(sketch: Sketch) -> None:
    """Take a part by SLICE."""
    x = sketch.pick()
    begin = [sketch.number(0, size - 1) for size in x.shape]
    size = [sketch.number(1, n - b) for b, n in zip(begin, x.shape, strict=True)]
    dtype = sketch.one_of("int32", "int64")
    bounds = [sketch.writer.constant(each, dtype) for each in (begin, size)]
    sketch.op("SLICE", [x, *bounds], tuple(size))


def cut(sketch: Sketch) -> None:
    """Cut into two or three parts, or into all parts of size 1."""
    x = sketch.pick()
    axis = _axis(sketch, x)
    if axis is None:
        return
    size = x.shape[axis]
    kind = sketch.one_of("SPLIT", "SPLIT_V", "UNPACK")
    if kind == "UNPACK" and size <= 4:
        shapes = [_with(x.shape, axis)] * size
        sketch.multi("UNPACK", [x], shapes, num=size, axis=axis)
    elif kind == "SPLIT":
        count = sketch.one_of(*(n for n in (1, 2, 3) if size % n == 0))
        position = sketch.writer.constant(axis, "int32")
        shapes = [_with(x.shape, axis, size // count)] * count
        sketch.multi("SPLIT", [position, x], shapes, num_splits=count)
    elif kind == "SPLIT_V" and size > 1:
        first = sketch.number(1, size - 1)
        sizes = [first, sketch.one_of(-1, size - first)]
        operands = [sketch.writer.constant(each, "int32") for each in (sizes, axis)]
        shapes = [_with(x.shape, axis, n) for n in (first, size - first)]
        sketch.multi("SPLIT_V", [x, *operands], shapes, num_splits=2)


def pack(sketch: Sketch) -> None:
    """Put values side by side along a new dimension, or add one."""
    x = sketch.pick()
    if len(x.shape) >= MAX_RANK:
        return
    axis = sketch.number(0, len(x.shape))
    alike = [v for v in sketch.values if v.shape == x.shape]
    parts = [x, *(sketch.one_of(*alike) for _ in range(sketch.number(0, 2)))]
    shape = (*x.shape[:axis], len(parts), *x.shape[axis:])
    if len(parts) > 1:
        sketch.op("PACK", parts, shape, axis=axis, values_count=len(parts))
    else:
        sketch.op("EXPAND_DIMS", [x, sketch.writer.constant(axis, "int32")], shape)


def repeat(sketch: Sketch) -> None:
    """Repeat elements by TILE or BROADCAST_TO."""
    x = sketch.pick()
    if not x.shape:
        return
    if sketch.draw(st.booleans()):
        times = [sketch.one_of(1, 1, 2, 3) for _ in x.shape]
        shape = tuple(t * n for t, n in zip(times, x.shape, strict=True))
        sketch.op("TILE", [x, _integers(sketch, times)], shape)
    else:
        shape = tuple(sketch.number(1, 3) if n == 1 else n for n in x.shape)
        sketch.op("BROADCAST_TO", [x, _integers(sketch, shape)], shape)


def gather(sketch: Sketch) -> None:
    """Choose slices by constant indices, or by those of the largest elements."""
    x = sketch.pick()
    axis = _axis(sketch, x)
    if axis is None:
        return
    size = x.shape[axis]
    if sketch.draw(st.booleans()):
        count = sketch.number(1, 4)
        indices = sketch.writer.constant(
            [sketch.number(0, size - 1) for _ in range(count)], "int32"
        )
        sketch.op("GATHER", [x, indices], _with(x.shape, axis, count), axis=axis)
        return
    found = sketch.places(x, axis)
    shape = (*x.shape[:axis], *found.shape, *x.shape[axis + 1 :])
    if len(shape) <= MAX_RANK:
        sketch.op("GATHER", [x, found], shape, axis=axis)


def blocks(sketch: Sketch) -> None:
    """Trade blocks of pixels for channels or batches."""
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    n, h, w, c = x.shape
    if h % 2 == 0 and w % 2 == 0 and sketch.draw(st.booleans()):
        sketch.op("SPACE_TO_DEPTH", [x], (n, h // 2, w // 2, 4 * c), block_size=2)
    elif c % 4 == 0:
        sketch.op("DEPTH_TO_SPACE", [x], (n, 2 * h, 2 * w, c // 4), block_size=2)
    else:
        edges = [(sketch.number(0, 1), 0), (1, sketch.number(0, 2))]
        edges = [(a, b + (size + a + b) % 2) for (a, b), size in zip(edges, (h, w), strict=True)]
        sizes = [(size + sum(edge)) // 2 for size, edge in zip((h, w), edges, strict=True)]
        operands = [sketch.writer.constant(each, "int32") for each in ([2, 2], edges)]
        output = sketch.op("SPACE_TO_BATCH_ND", [x, *operands], (4 * n, *sizes, c))
        if output is not None and sketch.draw(st.booleans()):
            sketch.op("BATCH_TO_SPACE_ND", [output, *operands], x.shape)


def surround(sketch: Sketch) -> None:
    """Add the mirror image at some edges."""
    x = sketch.pick()
    mode = sketch.one_of("REFLECT", "SYMMETRIC")
    widest = [size - (mode == "REFLECT") for size in x.shape]
    pads = [tuple(sketch.number(0, min(n, 2)) for _ in range(2)) for n in widest]
    if not pads:
        return
    shape = tuple(n + sum(pair) for n, pair in zip(x.shape, pads, strict=True))
    sketch.op("MIRROR_PAD", [x, _integers(sketch, pads)], shape, mode=mode)


def resize(sketch: Sketch) -> None:
    """Take the nearest pixels."""
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    size = [sketch.number(1, 7) for _ in range(2)]
    options = {name: sketch.draw(st.booleans()) for name in ("align_corners", "half_pixel_centers")}
    operands = [x, sketch.writer.constant(size, "int32")]
    shape = (x.shape[0], *size, x.shape[3])
    sketch.op("RESIZE_NEAREST_NEIGHBOR", operands, shape, **options)


def reduce(sketch: Sketch) -> None:
    """Find extremes along some axes, or add up short ones."""
    x = sketch.pick()
    axes = [axis for axis in range(len(x.shape)) if sketch.draw(st.booleans())]
    if not axes:
        return
    few = math.prod(x.shape[axis] for axis in axes) <= 3
    keep = sketch.draw(st.booleans())
    reduced = (1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
    name = sketch.one_of("REDUCE_MAX", "REDUCE_MIN", *(["SUM"] if few else []))
    operands = [x, sketch.writer.constant(axes, "int32")]
    sketch.op(name, operands, tuple(reduced), keep_dims=keep)


def add_up(sketch: Sketch) -> None:
    """Running sums along a short axis."""
    x = sketch.pick()
    axis = _axis(sketch, x, size=3)
    if axis is None:
        return
    options = {name: sketch.draw(st.booleans()) for name in ("exclusive", "reverse")}
    sketch.op("CUMSUM", [x, sketch.writer.constant(axis, "int32")], x.shape, **options)


def choose(sketch: Sketch) -> None:
    """Compare two values, and choose by that or turn it into numbers."""
    x = sketch.pick()
    y = sketch.one_of(*(v for v in sketch.values if v.shape == x.shape))
    name = sketch.one_of("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL", "EQUAL", "NOT_EQUAL")
    condition = sketch.hidden(name, [x, y], x.shape, "bool")
    if sketch.draw(st.booleans()):
        condition = sketch.hidden("LOGICAL_NOT", [condition], x.shape, "bool")
    if sketch.draw(st.booleans()):
        sketch.op(sketch.one_of("SELECT", "SELECT_V2"), [condition, y, x], x.shape)
    else:
        options = {"in_data_type": "BOOL", "out_data_type": "FLOAT32"}
        sketch.op("CAST", [condition], x.shape, **options)


def count(sketch: Sketch) -> None:
    """Turn the places of extremes along a short axis into numbers, or into ones and zeros."""
    x = sketch.pick()
    axis = _axis(sketch, x, size=3)
    if axis is None:
        return
    found = sketch.places(x, axis)
    if sketch.draw(st.booleans()) and len(found.shape) < 4:
        position = sketch.number(0, len(found.shape))
        depth = sketch.number(1, 5)
        levels = [sketch.writer.constant(np.float32(level)) for level in (2, -1)]
        operands = [found, sketch.writer.constant(depth, "int32"), *levels]
        shape = (*found.shape[:position], depth, *found.shape[position:])
        sketch.op("ONE_HOT", operands, shape, axis=position)
    else:
        options = {"in_data_type": found.dtype.upper(), "out_data_type": "FLOAT32"}
        sketch.op("CAST", [found], found.shape, **options)


STEPS = (
    *(transpose, part, cut, pack, repeat, gather, blocks),
    *(surround, resize, reduce, add_up, choose, count),
)
