"""Steps of random models with the patterns that passes match: see random_models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

import random_models
from litegpu.zoo.writer import TensorRef
from spellings import SPELLED, spell

if TYPE_CHECKING:
    from random_models import Sketch, Step


def _step(sketch: Sketch, x: TensorRef | None) -> TensorRef | None:
    """Add an element-wise step, or none."""
    kind = sketch.one_of("none", "unary", "number", "channels", "itself")
    if x is None or kind == "none":
        return x
    if kind == "unary":
        return sketch.op(sketch.one_of("RELU", "ABS", "NEG"), [x], x.shape)
    if kind == "itself":
        return sketch.op("SUB", [sketch.one_of(*_alike(sketch, x)), x], x.shape)
    shape = x.shape[-1:] if kind == "channels" else ()
    constant = sketch.writer.constant(np.sign(sketch.numbers(shape)))
    operands = [x, constant] if sketch.draw(st.booleans()) else [constant, x]
    return sketch.op(sketch.one_of("ADD", "MUL", "SUB"), operands, x.shape)


def _alike(sketch: Sketch, x: TensorRef) -> list[TensorRef]:
    return [v for v in sketch.values if v.shape == x.shape]


def _transposed(sketch: Sketch, x: TensorRef, order: list[int]) -> TensorRef | None:
    shape = tuple(x.shape[axis] for axis in order)
    return sketch.op("TRANSPOSE", [x, sketch.writer.constant(order, "int32")], shape)


def turned(sketch: Sketch) -> None:
    """Exchange axes, do something, and exchange them back or further."""
    x = sketch.pick()
    axes = list(range(len(x.shape)))
    order = sketch.draw(st.permutations(axes))
    output = _step(sketch, _transposed(sketch, x, order))
    if output is not None:
        back = [order.index(axis) for axis in axes]
        output = _transposed(
            sketch, output, sketch.one_of(back, back, sketch.draw(st.permutations(axes)))
        )
        _step(sketch, output)


def flattened(sketch: Sketch) -> None:
    """Join or divide axes, exchange them there perhaps, and return to the old shape."""
    x = sketch.pick()
    axis = sketch.number(0, len(x.shape) - 1) if x.shape else 0
    size = x.shape[axis] if x.shape else 1
    parts = sketch.one_of(*(d for d in (1, 2, 3) if size % d == 0))
    inner = (*x.shape[:axis], parts, size // parts, *x.shape[axis + 1 :])
    if len(inner) > 5:
        return
    output = sketch.op("RESHAPE", [x, sketch.writer.constant(inner, "int32")], inner)
    if output is not None and sketch.draw(st.booleans()):
        order = list(range(len(inner)))
        order[axis], order[axis + 1] = order[axis + 1], order[axis]
        output = _transposed(sketch, output, order)
    output = _step(sketch, output)
    if output is not None:
        sketch.op("RESHAPE", [output, sketch.writer.constant(x.shape, "int32")], x.shape)


def divided(sketch: Sketch) -> None:
    """Cut into equal parts, and join some of them."""
    x = sketch.pick()
    axes = [axis for axis, size in enumerate(x.shape) if size > 1]
    if not axes:
        return
    axis = sketch.one_of(*axes)
    count = sketch.one_of(*(n for n in range(2, x.shape[axis] + 1) if x.shape[axis] % n == 0))
    size = x.shape[axis] // count
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    position = sketch.writer.constant(axis, "int32")
    parts = list(sketch.multi("SPLIT", [position, x], [shape] * count, num_splits=count))
    if sketch.draw(st.integers(0, 3)) == 0:
        parts = sketch.draw(st.permutations(parts))
    parts = parts[sketch.number(0, 1) :]
    if sketch.draw(st.integers(0, 3)) == 0:
        parts.append(sketch.one_of(*parts))
    whole = (*x.shape[:axis], size * len(parts), *x.shape[axis + 1 :])
    sketch.op("CONCATENATION", parts, whole, axis=axis)


def dilated(sketch: Sketch) -> None:
    """Convolve blocks of pixels that are batches of their own."""
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    n, h, w, c = x.shape
    blocks = [sketch.number(1, 3), sketch.number(1, 2)]
    pads = [[sketch.number(0, 3), sketch.number(0, 3)] for _ in blocks]
    for pair, size, block in zip(pads, (h, w), blocks, strict=True):
        pair[1] += -(size + sum(pair)) % block
    inner = [(size + sum(p)) // b for size, p, b in zip((h, w), pads, blocks, strict=True)]
    sizes = sketch.writer.constant(blocks, "int32")
    cut = [x, sizes, sketch.writer.constant(pads, "int32")]
    output = sketch.op("SPACE_TO_BATCH_ND", cut, (n * blocks[0] * blocks[1], *inner, c))
    output = None if output is None else random_models.convolution(sketch, output)
    output = _step(sketch, output)
    if output is None:
        return
    whole = [size * block for size, block in zip(output.shape[1:3], blocks, strict=True)]
    crops = [[sketch.number(0, min(2, size - 1)), 0] for size in whole]
    for pair, size in zip(crops, whole, strict=True):
        pair[1] = sketch.number(0, min(2, size - 1 - pair[0]))
    sizes_left = [size - sum(pair) for size, pair in zip(whole, crops, strict=True)]
    joined = [output, sizes, sketch.writer.constant(crops, "int32")]
    sketch.op("BATCH_TO_SPACE_ND", joined, (n, *sizes_left, output.shape[3]))


def scaled(sketch: Sketch) -> None:
    """Scale and shift before and behind a convolution."""
    x = _step(sketch, sketch.pick())
    output = None if x is None else random_models.convolution(sketch, x)
    _step(sketch, _step(sketch, output))


def activated(sketch: Sketch) -> None:
    """Spell out an activation; the arithmetic is no longer exact then."""
    name = sketch.one_of(*SPELLED)

    def build(op: str, operands: list[Any], activation: str) -> TensorRef | None:
        refs = [
            sketch.writer.constant(np.float32(each)) if isinstance(each, float) else each
            for each in operands
        ]
        options = {} if activation == "NONE" else {"fused_activation_function": activation}
        return sketch.op(op, refs, x.shape, **options)

    x = sketch.pick()
    spell(SPELLED[name], x, build)


EXACT_STEPS: tuple[Step, ...] = (turned, flattened, divided, dilated, scaled)
STEPS: tuple[Step, ...] = (*EXACT_STEPS, activated, activated)
