"""Steps of random models that sum products or compute bools: see random_models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from litegpu.zoo.writer import TensorRef

if TYPE_CHECKING:
    from random_models import Sketch

Floats = npt.NDArray[np.float32]


def sparse(sketch: Sketch, rows: int, columns: int) -> Floats:
    """Return weights with two entries of 1 or -1 in each row."""
    random = np.random.default_rng(sketch.number(0, 99))
    found = np.zeros((rows, columns), np.float32)
    for row in found:
        row[random.integers(0, columns, 2)] = random.choice([-1, 1], 2)
    return found


def _weights(sketch: Sketch, data: Floats) -> TensorRef:
    """Add weights, as float32 or as half behind DEQUANTIZE."""
    if sketch.draw(st.booleans()):
        return sketch.writer.constant(data)
    half = sketch.writer.constant(data.astype(np.float16))
    return sketch.writer.op("DEQUANTIZE", [half], [data.shape], version=2)


def _bias(sketch: Sketch, size: int) -> list[TensorRef]:
    some = np.sign(sketch.numbers((size,)))
    return [sketch.writer.constant(some)] if sketch.draw(st.booleans()) else []


def dense(sketch: Sketch) -> None:
    """FULLY_CONNECTED of the last dimension."""
    x = sketch.pick()
    if not x.shape:
        return
    units, depth = sketch.number(1, 9), x.shape[-1]
    keep = sketch.draw(st.booleans())
    rows = x.shape[:-1] if keep else (int(np.prod(x.shape[:-1])),)
    operands = [x, _weights(sketch, sparse(sketch, units, depth)), *_bias(sketch, units)]
    options = {"keep_num_dims": keep, "fused_activation_function": sketch.one_of("NONE", "RELU")}
    sketch.op("FULLY_CONNECTED", operands, (*rows, units), **options)


def matmul(sketch: Sketch) -> None:
    """BATCH_MATMUL with a constant matrix on the right, as it is or transposed."""
    x = sketch.pick()
    if len(x.shape) < 2:
        return
    columns, adj_y = sketch.number(1, 9), sketch.draw(st.booleans())
    data = sparse(sketch, columns, x.shape[-1])
    matrix = sketch.writer.constant(data if adj_y else data.T)
    sketch.op("BATCH_MATMUL", [x, matrix], (*x.shape[:-1], columns), adj_x=False, adj_y=adj_y)


def transposed_convolution(sketch: Sketch) -> None:
    """TRANSPOSE_CONV, each of whose outputs is a sum of at most two inputs."""
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    n, h, w, c = x.shape
    k, stride, outputs = sketch.number(1, 3), sketch.number(1, 2), sketch.number(1, 9)
    shape = (n, h * stride, w * stride, outputs)
    size = sketch.writer.constant(shape, "int32")
    weights = _weights(sketch, sparse(sketch, outputs, k * k * c).reshape(outputs, k, k, c))
    options = {"padding": "SAME", "stride_h": stride, "stride_w": stride}
    operands = [size, weights, x, *_bias(sketch, outputs)]
    sketch.op("TRANSPOSE_CONV", operands, shape, **options)


def dilated_convolution(sketch: Sketch) -> None:
    """CONV_2D with dilation, in groups where the channels permit."""
    x = sketch.pick()
    if len(x.shape) != 4:
        return
    n, h, w, c = x.shape
    groups = sketch.one_of(*(g for g in (1, 2, 3) if c % g == 0))
    outputs, k, dilation = groups * sketch.number(1, 4), sketch.number(1, 3), sketch.number(1, 3)
    data = sparse(sketch, outputs, k * k * c // groups).reshape(outputs, k, k, c // groups)
    bias = sketch.writer.constant(np.sign(sketch.numbers((outputs,))))
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    options |= {"dilation_h_factor": dilation, "dilation_w_factor": dilation}
    sketch.op("CONV_2D", [x, _weights(sketch, data), bias], (n, h, w, outputs), **options)


def add_up(sketch: Sketch) -> None:
    """ADD_N of two or three values."""
    x = sketch.pick()
    alike = [v for v in sketch.values if v.shape == x.shape]
    others = [sketch.one_of(*alike) for _ in range(sketch.number(1, 2))]
    sketch.op("ADD_N", [x, *others], x.shape)


def both(sketch: Sketch) -> None:
    """Two comparisons, and what follows from them."""
    x = sketch.pick()
    y = sketch.one_of(*(v for v in sketch.values if v.shape == x.shape))
    truths = [
        sketch.hidden(sketch.one_of("LESS", "NOT_EQUAL"), pair, x.shape, "bool")
        for pair in ([x, y], [y, x])
    ]
    name = sketch.one_of("LOGICAL_AND", "LOGICAL_OR")
    condition = sketch.hidden(name, truths, x.shape, "bool")
    if sketch.draw(st.booleans()) and x.shape:
        axis = sketch.number(0, len(x.shape) - 1)
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        axes = sketch.writer.constant([axis], "int32")
        name = sketch.one_of("REDUCE_ANY", "REDUCE_ALL")
        condition = sketch.hidden(name, [condition, axes], shape, "bool", keep_dims=True)
    sketch.op("SELECT_V2", [condition, x, y], x.shape)


def step(sketch: Sketch) -> None:
    """A function that maps whole numbers to whole numbers."""
    x = sketch.pick()
    name = sketch.one_of("SIGN", "RELU_N1_TO_1", "RELU_0_TO_1", "FLOOR", "CEIL", "LEAKY_RELU")
    options = {"alpha": 2.0} if name == "LEAKY_RELU" else {}
    sketch.op(name, [x], x.shape, **options)


STEPS = (dense, matmul, transposed_convolution, dilated_convolution, add_up, both, step)
