"""Quantized products of rows, which passes for images must not change."""

from __future__ import annotations

import numpy as np
import pytest

from every_backend import on_every_backend
from litegpu import GpuDelegate
from litegpu.graph import Quantization
from litegpu.zoo.writer import ModelWriter
from small_models import interpreter, reference, run

HALF = Quantization((0.05,), (3,))


def test_layers_of_rows_are_no_images() -> None:
    writer = ModelWriter()
    y = writer.input((3, 8), "int8", quantization=HALF)
    for _ in range(2):
        weights = np.random.default_rng(0).integers(-127, 128, (8, 8)).astype(np.int8)
        params = writer.constant(weights, quantization=Quantization((0.01,), (0,)))
        y = writer.op(
            "FULLY_CONNECTED", [y, params], [(3, 8)], version=6, dtype="int8", quantization=HALF
        )
    writer.output(y)
    x = np.random.default_rng(1).integers(-128, 128, (3, 8)).astype(np.int8)
    delegate = GpuDelegate()
    (got,) = run(interpreter(writer.build(), delegate), x)
    assert delegate.report is not None and delegate.report.whole_graph, delegate.error
    np.testing.assert_array_equal(got, reference(writer.build(), x)[0])


@pytest.mark.parametrize("step", [0.003, 0.1, 1.7])
def test_logarithms_of_many_rows(step: float) -> None:
    source, result = Quantization((step,), (3,)), Quantization((1 / 16,), (127,))
    writer = ModelWriter()
    x = writer.input((1 << 13, 24), "int8", quantization=source)
    y = writer.op("LOG_SOFTMAX", [x], [(1 << 13, 24)], version=2, dtype="int8", quantization=result)
    writer.output(y)
    random = np.random.default_rng(1)
    ends = random.integers(-128, 128, (2, 1 << 13, 1))
    drawn = random.integers(ends.min(0), ends.max(0) + 1, (1 << 13, 24)).astype(np.int8)
    delegate = GpuDelegate()
    (got,) = run(interpreter(writer.build(), delegate), drawn)
    assert delegate.report is not None and delegate.report.whole_graph, delegate.error
    np.testing.assert_array_equal(got, reference(writer.build(), drawn)[0])


@pytest.mark.parametrize("asymmetric", [False, True])
def test_scales_of_tiny_rows_are_rounded_once(asymmetric: bool) -> None:
    """They have fewer digits than other floats; OpenGL and WebGPU may take them for 0."""
    rows = 1 << 12
    random = np.random.default_rng(3)
    weights = random.integers(-127, 128, (7, 19)).astype(np.int8)
    writer = ModelWriter()
    x = writer.input((rows, 19))
    w = writer.constant(weights, quantization=Quantization((0.03,), (0,)))
    options = {"asymmetric_quantize_inputs": asymmetric}
    writer.output(writer.op("FULLY_CONNECTED", [x, w], [(rows, 7)], options=options, version=9))
    drawn = random.uniform(-1, 1, (rows, 19)) * random.uniform(4e-37, 2e-36, (rows, 1))
    drawn[:, :2] = 2e-36, -4e-37
    floats = drawn.astype(np.float32)
    delegate = GpuDelegate(backend="opencl")
    (got,) = run(interpreter(writer.build(), delegate), floats)
    assert delegate.report is not None and delegate.report.whole_graph, delegate.error
    np.testing.assert_array_equal(got, reference(writer.build(), floats)[0])


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize(
    ("inputs", "bits"), [(5, 8), (42, 8), (42, 4), (1031, 8), (4100, 4)], ids=str
)
@on_every_backend
def test_rows_of_all_magnitudes(backend: str, inputs: int, bits: int, asymmetric: bool) -> None:
    """Scales are rounded as the CPU rounds them, from 1e-30 to 1e30."""
    rows = 64 if inputs > 1000 else 512
    random = np.random.default_rng(inputs + bits)
    most = 2 ** (bits - 1) - 1
    weights = random.integers(-most, most + 1, (9, inputs)).astype(np.int8)
    writer = ModelWriter()
    x = writer.input((rows, inputs))
    scales = Quantization((0.03,), (0,))
    w = writer.constant(weights, f"int{bits}", quantization=scales)
    options = {"asymmetric_quantize_inputs": asymmetric}
    writer.output(writer.op("FULLY_CONNECTED", [x, w], [(rows, 9)], options=options, version=9))
    magnitudes = 10.0 ** random.uniform(-30, 30, (rows, 1))
    signs = random.choice(np.array([[-1, 1], [0, 1], [-1, 0], [0.9, 1]]), rows)
    floats = (random.uniform(signs[:, :1], signs[:, 1:], (rows, inputs)) * magnitudes).astype(
        np.float32
    )
    floats[0] = 0
    content = writer.build()
    delegate = GpuDelegate(backend=backend)
    (got,) = run(interpreter(content, delegate), floats)
    assert delegate.report is not None and delegate.report.whole_graph, delegate.error
    np.testing.assert_array_equal(got, reference(content, floats)[0])
