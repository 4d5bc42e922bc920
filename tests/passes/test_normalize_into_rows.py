"""Kernels that quantize rows normalize them, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from comparing import relative_error
from every_backend import on_every_backend
from litegpu import GpuDelegate
from litegpu.graph import EpilogueOp, Graph, Quantization
from litegpu.ops.normalize import NORMALIZE, NormalizeAttributes
from litegpu.ops.quantize_rows import QUANTIZE_ROWS, QuantizeRowsAttributes
from litegpu.passes.normalize_into_rows import normalize_into_rows
from litegpu.zoo.writer import ModelWriter, TensorRef
from passes.graphs import GraphBuilder, applied, ops, untouched
from small_models import interpreter, reference, run

SHAPE = (1, 1, 3, 20)


def normalized(builder: GraphBuilder, axes: tuple[int, ...] = (3,), parts: int = 1) -> int:
    scale, shift = builder.constant(20), builder.input(1, 1, 3, 1)
    epilogue = [EpilogueOp("MUL", (scale,)), EpilogueOp("ADD", (shift,))]
    attributes = NormalizeAttributes(axes, 1e-5, True, parts)
    return builder.node(NORMALIZE, [builder.input(*SHAPE)], SHAPE, epilogue, attributes)


def rows_of(builder: GraphBuilder, value: int) -> int:
    attributes = QuantizeRowsAttributes(True, SHAPE[-1])
    return builder.node(QUANTIZE_ROWS, [value], SHAPE, attributes=attributes)


def test_rows_are_normalized_where_they_are_quantized() -> None:
    builder = GraphBuilder()
    graph = builder.graph(rows_of(builder, normalized(builder)))
    result = applied(normalize_into_rows, graph)
    assert ops(result) == [QUANTIZE_ROWS]
    (node,), before = result.graph.nodes, graph.nodes[0]
    assert node.inputs == (before.inputs[0], *(v for e in before.epilogue for v in e.operands))
    normalization = node.attributes.normalization
    assert (normalization.epsilon, normalization.centred) == (1e-5, True)
    assert normalization.epilogue == (EpilogueOp("MUL", (1,)), EpilogueOp("ADD", (2,)))
    assert node.merged == (before.index,)


def _read_twice(builder: GraphBuilder) -> Graph:
    value = normalized(builder)
    return builder.graph(rows_of(builder, value), builder.node("MEAN", [value], (1, 1, 3, 1)))


def _an_output(builder: GraphBuilder) -> Graph:
    value = normalized(builder)
    return builder.graph(rows_of(builder, value), value)


@pytest.mark.parametrize("make", [_read_twice, _an_output])
def test_values_that_others_read_are_stored(make: Callable[[GraphBuilder], Graph]) -> None:
    assert untouched(normalize_into_rows, make(GraphBuilder())).declined == ()


@pytest.mark.parametrize(("axes", "parts"), [((1, 2), 1), ((1, 2, 3), 1), ((3,), 2)])
def test_other_axes_are_normalized_before(axes: tuple[int, ...], parts: int) -> None:
    builder = GraphBuilder()
    graph = builder.graph(rows_of(builder, normalized(builder, axes, parts)))
    (line,) = untouched(normalize_into_rows, graph).declined
    assert line == "NORMALIZE 0: it does not normalize each row"


def _binary(writer: ModelWriter, builtin: str, a: TensorRef, b: TensorRef) -> TensorRef:
    return writer.op(builtin, [a, b], [a.shape])


def _mean(writer: ModelWriter, x: TensorRef) -> TensorRef:
    shape = (*x.shape[:-1], 1)
    axis = writer.constant([len(x.shape) - 1], "int32")
    return writer.op("MEAN", [x, axis], [shape], options={"keep_dims": True})


def _model(shape: tuple[int, ...], *, centred: bool, bits: int, asymmetric: bool) -> bytes:
    """Two products of the rows of a normalization."""
    random = np.random.default_rng(sum(shape))
    writer = ModelWriter()
    x = writer.input(shape)
    away = _binary(writer, "SUB", x, _mean(writer, x)) if centred else x
    variance = _mean(writer, _binary(writer, "MUL", away, away))
    epsilon = writer.constant(np.float32(1e-5), "float32")
    inverse = writer.op("RSQRT", [_binary(writer, "ADD", variance, epsilon)], [variance.shape])
    y = _binary(writer, "MUL", away, inverse)
    y = _binary(writer, "MUL", y, writer.constant(random.uniform(0.5, 2, shape[-1]), "float32"))
    y = _binary(writer, "ADD", y, writer.constant(random.uniform(-1, 1, shape[-1]), "float32"))
    for outputs in (8, 13):
        most = 2 ** (bits - 1) - 1
        data = random.integers(-most, most + 1, (outputs, shape[-1])).astype(np.int8)
        scales = tuple(random.uniform(0.001, 0.01, outputs).tolist())
        quantization = Quantization(scales, (0,) * outputs)
        weights = writer.constant(data, f"int{bits}", quantization=quantization)
        options = {"keep_num_dims": True, "asymmetric_quantize_inputs": asymmetric}
        result = (*shape[:-1], outputs)
        writer.output(
            writer.op("FULLY_CONNECTED", [y, weights], [result], options=options, version=9)
        )
    return writer.build()


@pytest.mark.parametrize(
    ("shape", "centred", "bits", "asymmetric"),
    [
        ((1, 1, 96), False, 8, False),
        ((1, 1, 1100), True, 4, False),
        ((2, 7, 42), True, 8, True),
        ((300, 33), False, 4, True),
    ],
    ids=str,
)
@on_every_backend
def test_normalized_rows(
    backend: str, shape: tuple[int, ...], centred: bool, bits: int, asymmetric: bool
) -> None:
    content = _model(shape, centred=centred, bits=bits, asymmetric=asymmetric)
    x = (np.random.default_rng(1).normal(0.5, 3, shape)).astype(np.float32)
    delegate = GpuDelegate(backend=backend)
    got = run(interpreter(content, delegate), x)
    report = delegate.report
    assert report is not None and report.whole_graph, delegate.error
    assert report.partitions[0].kernels == 3, "one kernel for the rows, one for each product"
    for one, other in zip(got, reference(content, x), strict=True):
        # A normalized value that differs in its last bit may be rounded to the next byte.
        assert relative_error(one, other) < 2e-3
