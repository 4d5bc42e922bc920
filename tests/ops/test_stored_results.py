"""Kernels that quantize their result in the epilogue compute it in real numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu import GpuDelegate
from litegpu.graph import Quantization
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import interpreter, random, reference, run

SHAPE = (1, 3, 5, 6)


def _cumsum(axis: int) -> Callable[[ModelWriter, TensorRef], TensorRef]:
    def write(writer: ModelWriter, x: TensorRef) -> TensorRef:
        where = writer.constant(np.array(axis, np.int32))
        return writer.op("CUMSUM", [x, where], [SHAPE])

    return write


def _scatter(writer: ModelWriter, x: TensorRef) -> TensorRef:
    indices = writer.constant(np.array([[2]], np.int32))
    shape = writer.constant(np.array([4, *SHAPE[1:]], np.int32))
    return writer.op("SCATTER_ND", [indices, x, shape], [(4, *SHAPE[1:])])


def _segments(writer: ModelWriter, x: TensorRef) -> TensorRef:
    indices = writer.constant(np.array([0], np.int32))
    return writer.op("SEGMENT_SUM", [x, indices], [SHAPE])


def _update(writer: ModelWriter, x: TensorRef) -> TensorRef:
    part = writer.op("ABS", [x], [SHAPE])
    whole = writer.constant(random(1, 3, 7, 6))
    begin = writer.constant(np.array([0, 0, 1, 0], np.int32))
    return writer.op("DYNAMIC_UPDATE_SLICE", [whole, part, begin], [(1, 3, 7, 6)])


def _joined(writer: ModelWriter, x: TensorRef) -> TensorRef:
    parts = [writer.op(op, [x], [SHAPE]) for op in ("ABS", "NEG", "EXP")]
    return writer.op("CONCATENATION", parts, [(*SHAPE[:3], 18)], options={"axis": 3})


OPS = {
    **{f"CUMSUM {axis}": _cumsum(axis) for axis in range(1, 4)},
    "CONCATENATION": _joined,
    "DYNAMIC_UPDATE_SLICE": _update,
    "SCATTER_ND": _scatter,
    "SEGMENT_SUM": _segments,
}


@pytest.mark.parametrize("op", OPS)
def test_a_result_may_be_stored_as_bytes(op: str, backend: str) -> None:
    writer = ModelWriter()
    real = OPS[op](writer, writer.input(SHAPE))
    quantized = Quantization((0.05,), (-3,), 0)
    stored = writer.op("QUANTIZE", [real], [real.shape], dtype="int8", quantization=quantized)
    writer.output(stored)
    model, x = writer.build(), random(*SHAPE)
    delegate = GpuDelegate(backend=backend, precision="fp32")
    (got,), (expected,) = run(interpreter(model, delegate), x), reference(model, x)
    assert delegate.report is not None and len(delegate.report.delegated_nodes) > 1
    assert delegate.error is None and np.abs(got.astype(int) - expected).max() <= 1
    assert np.mean(got != expected) < 0.05
