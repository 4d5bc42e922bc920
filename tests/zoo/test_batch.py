"""Models rewritten for other batch sizes, and models that cannot be rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import resolve_model
from litegpu.zoo.batch import with_batch
from litegpu.zoo.writer import ModelWriter, TensorRef

ROW = (1, 4, 6)
NEW = 3


def results(content: bytes, *inputs: Any) -> list[Any]:
    interpreter = runtime.interpreter(content, builtin_kernels=True)
    runtime.set_inputs(interpreter, list(inputs))
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def ints(writer: ModelWriter, *values: int) -> TensorRef:
    return writer.constant(np.array(values, np.int32))


def constant(writer: ModelWriter, *shape: int) -> TensorRef:
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return writer.constant(values)


def reshape(w: ModelWriter, x: TensorRef) -> TensorRef:
    flat = w.op("RESHAPE", [x, ints(w, 1, 24)], [(1, 24)], options={"new_shape": (1, 24)})
    rows = w.op("RESHAPE", [flat, ints(w, -1, 6)], [(4, 6)], options={"new_shape": (-1, 6)})
    exact = w.op("RESHAPE", [rows, ints(w, 4, 3, 2)], [(4, 3, 2)])
    return w.op("RESHAPE", [exact], [ROW], options={"new_shape": ROW})


def joined(w: ModelWriter, x: TensorRef) -> TensorRef:
    """Put a token before each row, as a vision transformer does."""
    return w.op("CONCATENATION", [constant(w, 1, 1, 6), x], [(1, 5, 6)], options={"axis": 1})


def sliced(w: ModelWriter, x: TensorRef) -> TensorRef:
    return w.op("SLICE", [x, ints(w, 0, 1, 2), ints(w, 1, 2, -1)], [(1, 2, 4)])


def strided(w: ModelWriter, x: TensorRef) -> TensorRef:
    spans = [ints(w, 0, 3, 1), ints(w, 1, 0, 6), ints(w, 1, -1, 2)]
    return w.op("STRIDED_SLICE", [x, *spans], [(1, 3, 3)])


def broadcast(w: ModelWriter, x: TensorRef) -> TensorRef:
    one = w.op("SLICE", [x, ints(w, 0, 0, 0), ints(w, -1, 1, 6)], [(1, 1, 6)])
    return w.op("BROADCAST_TO", [one, ints(w, 1, 4, 6)], [ROW], version=2)


def transposed(w: ModelWriter, x: TensorRef) -> TensorRef:
    moved = w.op("TRANSPOSE", [x, ints(w, 0, 2, 1)], [(1, 6, 4)])
    return w.op("SPLIT", [ints(w, 1), moved], [(1, 6, 4)], options={"num_splits": 1})


def enlarged(w: ModelWriter, x: TensorRef) -> TensorRef:
    picture = w.op("RESHAPE", [x, ints(w, 1, 2, 2, 6)], [(1, 2, 2, 6)])
    operands = [ints(w, 1, 4, 4, 2), constant(w, 2, 2, 2, 6), picture]
    options = {"padding": "SAME", "stride_w": 2, "stride_h": 2}
    return w.op("TRANSPOSE_CONV", operands, [(1, 4, 4, 2)], options=options)


BUILDERS = (reshape, joined, sliced, strided, broadcast, transposed, enlarged)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda each: each.__name__)
def test_each_row_is_what_it_was(build: Callable[[ModelWriter, TensorRef], TensorRef]) -> None:
    writer = ModelWriter()
    writer.output(build(writer, writer.input(ROW)))
    content = writer.build()
    x = np.random.default_rng(0).normal(size=(NEW, *ROW[1:])).astype(np.float32)
    (many,) = results(with_batch(content, NEW), x)
    alone = [results(content, x[n : n + 1])[0] for n in range(NEW)]
    np.testing.assert_allclose(many, np.concatenate(alone), rtol=1e-5)
    (again,) = results(with_batch(with_batch(content, NEW), 1), x[:1])
    np.testing.assert_array_equal(again, alone[0])


def test_whole_models() -> None:
    content = resolve_model("zoo:mobilenet_v1_0.25_128?weights=int8")
    x = np.random.default_rng(0).integers(-128, 127, (2, 128, 128, 3)).astype(np.int8)
    (many,) = results(with_batch(content, 2), x)
    for n in range(2):
        np.testing.assert_array_equal(many[n : n + 1], results(content, x[n : n + 1])[0])


def moved(w: ModelWriter, x: TensorRef) -> TensorRef:
    return w.op("TRANSPOSE", [x, ints(w, 1, 0, 2)], [(4, 1, 6)])


def along(w: ModelWriter, x: TensorRef) -> TensorRef:
    return w.op("CONCATENATION", [x, constant(w, 2, 4, 6)], [(3, 4, 6)], options={"axis": -3})


def computed(w: ModelWriter, x: TensorRef) -> TensorRef:
    y = w.op("ABS", [constant(w, 1, 4, 6)], [ROW])
    return w.op("CONCATENATION", [x, y], [(1, 8, 6)], options={"axis": 1})


def first(w: ModelWriter, x: TensorRef) -> TensorRef:
    spans = [ints(w, 0, 0, 0), ints(w, 1, 4, 6), ints(w, 1, 1, 1)]
    return w.op("STRIDED_SLICE", [x, *spans], [(4, 6)], options={"shrink_axis_mask": 1})


def second(w: ModelWriter, x: TensorRef) -> TensorRef:
    return w.op("SLICE", [x, ints(w, 1, 0, 0), ints(w, 0, 4, 6)], [(1, 4, 6)])


def lost(w: ModelWriter, x: TensorRef) -> TensorRef:
    return w.op("SHAPE", [x], [()], dtype="int32")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (
            moved,
            r"Node 0, TRANSPOSE, does not support another batch size: it moves the batch "
            r"dimension, by \[1, 0, "
            r"2\]",
        ),
        (along, r"Node 0, CONCATENATION, .*: it works along the batch dimension"),
        (computed, r"Node 1, CONCATENATION, .*: it concatenates along the batch dimension"),
        (first, r"Node 0, STRIDED_SLICE, .*: it takes some of them"),
        (second, r"Node 0, SLICE, .*: it takes some of them"),
        (lost, r"Node 0, SHAPE, .*: it computes \[\], without the batch dimension"),
    ],
)
def test_what_cannot_have_more_rows(build: Any, why: str) -> None:
    writer = ModelWriter()
    writer.output(build(writer, writer.input(ROW)))
    with pytest.raises(ModelError, match=why):
        with_batch(writer.build(), NEW)


def test_inputs_of_different_rows() -> None:
    writer = ModelWriter()
    a, b = writer.input((1, 4)), writer.input((2, 4))
    writer.output(writer.op("ADD", [a, b], [(2, 4)]))
    with pytest.raises(ModelError, match=r"inputs have \[1, 2\] rows, and a batch needs the same"):
        with_batch(writer.build(), NEW)
