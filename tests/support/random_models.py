"""Draws small random models whose arithmetic is exact in float16, so that results must be equal.

Inputs, weights and constants are small whole numbers, and no operation lets them grow by more than
a factor of 3: after `MAX_STEPS` operations they are still whole numbers that half can hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import random_index_maps
import random_sums
from litegpu.zoo.writer import ModelWriter, TensorRef
from random_sums import sparse

MAX_STEPS = 6
_LARGEST = 512
"""No value has more elements: examples stay quick."""

_VERSIONS = {"BROADCAST_TO": 2}
"""Operations that have no version 1."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RandomModel:
    """A written model, and a line per operation for the report of a failure."""

    content: bytes
    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass
class Sketch:
    """A model being drawn: its tensors so far, and a description."""

    draw: Any
    writer: ModelWriter = field(default_factory=ModelWriter)
    values: list[TensorRef] = field(default_factory=list)
    results: list[TensorRef] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def pick(self) -> TensorRef:
        """Draw one of the values, the later ones more often than at random."""
        values = self.values
        index: int = self.draw(st.integers(0, len(values) - 1).map(lambda i: len(values) - 1 - i))
        return values[index]

    def one_of(self, *choices: Any) -> Any:
        """Draw one of several things."""
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        """Draw a whole number."""
        found: int = self.draw(st.integers(low, high))
        return found

    def numbers(self, shape: Shape) -> npt.NDArray[np.float32]:
        """Return whole numbers from -2 to 2."""
        random = np.random.default_rng(self.number(0, 99))
        return random.integers(-2, 3, shape).astype(np.float32)

    def op(
        self, name: str, inputs: Sequence[TensorRef], shape: Shape, **options: Any
    ) -> TensorRef | None:
        """Add an operation, unless its result is too large."""
        if math.prod(shape) > _LARGEST or min(shape, default=1) < 1:
            return None
        (result,) = self.multi(name, inputs, [shape], **options)
        return result

    def multi(
        self, name: str, inputs: Sequence[TensorRef], shapes: Sequence[Shape], **options: Any
    ) -> tuple[TensorRef, ...]:
        """Add an operation with several results."""
        version = _VERSIONS.get(name, 1)
        results = self.writer.multi(name, inputs, shapes, options=options, version=version)
        self._note(name, inputs, results, options)
        self.values += results
        self.results += results
        return results

    def hidden(
        self, name: str, inputs: Sequence[TensorRef], shape: Shape, dtype: str, **options: Any
    ) -> TensorRef:
        """Add an operation whose result is no float: only its own step uses it."""
        result = self.writer.op(name, inputs, [shape], options=options, dtype=dtype)
        self._note(name, inputs, [result], options)
        return result

    def places(self, x: TensorRef, axis: int) -> TensorRef:
        """Add the places of the largest or smallest elements along an axis."""
        shape, dtype = (*x.shape[:axis], *x.shape[axis + 1 :]), self.one_of("int32", "int64")
        operands = [x, self.writer.constant(axis, "int32")]
        name = self.one_of("ARG_MAX", "ARG_MIN")
        return self.hidden(name, operands, shape, dtype, output_type=dtype.upper())

    def _note(
        self,
        name: str,
        inputs: Sequence[TensorRef],
        results: Sequence[TensorRef],
        options: Mapping[str, Any],
    ) -> None:
        written, read = (
            ", ".join(f"{ref.name}{list(ref.shape)}" for ref in refs) for refs in (results, inputs)
        )
        self.lines.append(f"{written} = {name}({read}) {options or ''}")


Step = Callable[[Sketch], object]


def _unary(sketch: Sketch) -> None:
    x = sketch.pick()
    sketch.op(sketch.one_of("RELU", "ABS", "NEG", "RELU6"), [x], x.shape)


def _scaled(sketch: Sketch) -> None:
    x = sketch.pick()
    shapes: list[Shape] = [(), (1,), x.shape[-1:], x.shape[1:], (1,) * len(x.shape)]
    if len(x.shape) == 4:
        shapes.append((x.shape[0], 1, 1, x.shape[3]))
        shapes.append((x.shape[1], 1, 1))
    constant = sketch.writer.constant(np.sign(sketch.numbers(sketch.one_of(*shapes))))
    order = [x, constant] if sketch.draw(st.booleans()) else [constant, x]
    sketch.op(sketch.one_of("MUL", "SUB", "ADD"), order, x.shape)


def _combined(sketch: Sketch) -> None:
    x = sketch.pick()
    y = sketch.draw(st.sampled_from([v for v in sketch.values if _joins(v.shape, x.shape)]))
    order = [x, y] if sketch.draw(st.booleans()) else [y, x]
    activation = sketch.one_of("NONE", "RELU")
    name = sketch.one_of("ADD", "SUB", "MAXIMUM", "MINIMUM")
    options = {"fused_activation_function": activation} if name in ("ADD", "SUB") else {}
    sketch.op(name, order, np.broadcast_shapes(x.shape, y.shape), **options)


def _joins(small: Shape, large: Shape) -> bool:
    """Whether a value can be an operand: the same shape, or broadcast along some axes."""
    return len(small) == len(large) and all(a in (1, b) for a, b in zip(small, large, strict=True))


def _prelu(sketch: Sketch) -> None:
    x = sketch.pick()
    if len(x.shape) == 4:
        shape = sketch.one_of((1, 1, x.shape[3]), x.shape[1:])
        sketch.op("PRELU", [x, sketch.writer.constant(np.sign(sketch.numbers(shape)))], x.shape)


def _reshape(sketch: Sketch) -> None:
    x = sketch.pick()
    n = math.prod(x.shape)
    sizes = [d for d in (1, 2, 3, 4, 5, 8) if n % d == 0]
    c = sketch.one_of(*sizes)
    rest = n // c
    h = sketch.one_of(*(d for d in (1, 2, 3) if rest % d == 0))
    shape = sketch.one_of(
        (n,),
        (1, n),
        (rest, c),
        (1, 1, rest, c),
        (1, h, rest // h, c),
        (h, rest // h, 1, c),
        (1, 1, 1, n),
    )
    sketch.op("RESHAPE", [x, sketch.writer.constant(shape, "int32")], shape)


def _concatenation(sketch: Sketch) -> None:
    x = sketch.pick()
    axis = sketch.number(0, len(x.shape) - 1)
    fitting = [v for v in sketch.values if _without(v.shape, axis) == _without(x.shape, axis)]
    parts = [x, *(sketch.one_of(*fitting) for _ in range(sketch.number(1, 2)))]
    total = sum(part.shape[axis] for part in parts)
    sketch.op("CONCATENATION", parts, (*x.shape[:axis], total, *x.shape[axis + 1 :]), axis=axis)


def _without(shape: Shape, axis: int) -> tuple[int, Shape]:
    return len(shape), (*shape[:axis], *shape[axis + 1 :])


def _pad(sketch: Sketch) -> None:
    x = sketch.pick()
    pads = [(0, 0)] * len(x.shape)
    for axis in range(len(pads)):
        if sketch.draw(st.booleans()):
            pads[axis] = (sketch.one_of(0, 0, 1), sketch.number(0, 4 if axis == 3 else 1))
    shape = tuple(b + size + a for size, (b, a) in zip(x.shape, pads, strict=True))
    sketch.op("PAD", [x, sketch.writer.constant(pads, "int32")], shape)


def _slice(sketch: Sketch) -> None:
    x = sketch.pick()
    begin = [sketch.number(0, min(size - 1, 4)) for size in x.shape]
    end = [sketch.number(b + 1, size) for b, size in zip(begin, x.shape, strict=True)]
    bounds = [sketch.writer.constant(part, "int32") for part in (begin, end, [1] * len(begin))]
    shape = tuple(e - b for b, e in zip(begin, end, strict=True))
    sketch.op("STRIDED_SLICE", [x, *bounds], shape)


def _convolution(sketch: Sketch) -> None:
    convolution(sketch, sketch.pick(), sketch.number(1, 2))


def convolution(sketch: Sketch, x: TensorRef, stride: int = 1) -> TensorRef | None:
    """Add a convolution, unless its window or its result does not fit."""
    if len(x.shape) != 4:
        return None
    n, h, w, c = x.shape
    k = sketch.number(1, 3)
    padding = sketch.one_of("SAME", "VALID")
    outputs = sketch.number(1, 9)
    depthwise = sketch.draw(st.booleans())
    weights = sparse(sketch, outputs, k * k * c).reshape(outputs, k, k, c)
    options: dict[str, Any] = {"padding": padding, "stride_h": stride, "stride_w": stride}
    if depthwise:
        outputs = c
        weights = sparse(sketch, c, k * k).T.reshape(1, k, k, c)
        options["depth_multiplier"] = 1
    options["fused_activation_function"] = sketch.one_of("NONE", "RELU")
    out = [-(-s // stride) if padding == "SAME" else (s + stride - k) // stride for s in (h, w)]
    if min(out) < 1:
        return None
    bias = sketch.writer.constant(np.sign(sketch.numbers((outputs,))))
    name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    operands = [x, sketch.writer.constant(weights), bias]
    return sketch.op(name, operands, (n, *out, outputs), **options)


def _pool(sketch: Sketch) -> None:
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    n, h, w, c = x.shape
    sizes = {"filter_height": 2, "filter_width": 2, "stride_h": 2, "stride_w": 1}
    shape = (n, -(-h // 2), w, c)
    sketch.op("MAX_POOL_2D", [x], shape, padding="SAME", **sizes)


STEPS: tuple[Step, ...] = (
    *(_unary, _scaled, _combined, _combined, _prelu, _reshape, _concatenation, _concatenation),
    *(_pad, _slice, _convolution, _convolution, _pool),
    *random_index_maps.STEPS,
    *random_sums.STEPS,
)


@st.composite
def random_models(draw: Any, steps: Sequence[Step] = STEPS, most: int = MAX_STEPS) -> RandomModel:
    """Draw a model of 1 to `most` steps with some of its values as outputs.

    Values that nothing reads and that are no outputs may remain: the runtime permits them.
    """
    sketch = Sketch(draw)
    n, h, w = (sketch.number(1, high) for high in (2, 4, 4))
    for _ in range(sketch.number(1, 2)):
        ref = sketch.writer.input(
            (n, h, w, sketch.number(1, 9)), name=f"input_{len(sketch.values)}"
        )
        sketch.values.append(ref)
        sketch.lines.append(f"{ref.name}{list(ref.shape)}")
    for _ in range(sketch.number(1, most)):
        draw(st.sampled_from(steps))(sketch)
    if not sketch.results:
        x = sketch.values[0]
        sketch.op("NEG", [x], x.shape)
    outputs = [ref for ref in sketch.results[:-1] if draw(st.integers(0, 3)) == 0] + sketch.results[
        -1:
    ]
    sketch.writer.output(*outputs)
    sketch.lines.append(f"outputs {[ref.name for ref in outputs]}")
    return RandomModel(sketch.writer.build(), "\n".join(sketch.lines))


def whole_numbers(shape: Shape, seed: int) -> npt.NDArray[np.float32]:
    """Return an input for a random model."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
