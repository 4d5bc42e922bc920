"""Quantized models computed in float: ranges, rounding, inputs and outputs, constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu import GpuDelegate
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.ops.common.float_view import as_floats, float_view
from litegpu.ops.common.support import check_support
from litegpu.zoo.writer import ModelWriter, TensorRef
from small_models import CPU_ONLY, interpreter, reference, run, step

Array = npt.NDArray[Any]
SHAPE = (1, 5, 6, 4)
HALF = Quantization((0.05,), (3,))
NARROW = Quantization((6 / 255,), (-128,))
"""What converters write for a RELU6: the range is the activation."""


def stored(shape: tuple[int, ...] = SHAPE, dtype: str = "int8", seed: int = 0) -> Array:
    ends = np.iinfo(dtype)
    random = np.random.default_rng(seed)
    return random.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def conv(
    writer: ModelWriter,
    x: TensorRef,
    result: Quantization,
    source: Quantization = HALF,
    dtype: str = "int8",
) -> TensorRef:
    """Add a 3x3 convolution of 4 channels by quantized weights, for each channel with int8."""
    random = np.random.default_rng(3)
    zero = 128 if dtype == "uint8" else 0
    scales = (0.01, 0.02, 0.005, 0.04) if dtype == "int8" else (0.02,)
    weights = (random.integers(-127, 128, (4, 3, 3, 4)) + zero).astype(dtype)
    bias = random.integers(-500, 500, 4).astype(np.int32)
    params = Quantization(scales, (zero,) * len(scales))
    sums = Quantization(tuple(source.scale[0] * each for each in scales), (0,) * len(scales))
    operands = [
        x,
        writer.constant(weights, quantization=params),
        writer.constant(bias, quantization=sums),
    ]
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    options |= {"dilation_h_factor": 1, "dilation_w_factor": 1}
    version = 3 if dtype == "int8" else 1
    return writer.op(
        *("CONV_2D", operands, [SHAPE]),
        options=options,
        version=version,
        dtype=dtype,
        quantization=result,
    )


def compared(model: bytes, *inputs: Array, whole: bool = True) -> tuple[Array, Array]:
    """Return the first output of the CPU, and of the device as floats."""
    delegate = GpuDelegate(quantized="float", min_nodes_per_partition=1)
    got = run(interpreter(model, delegate), *inputs)
    assert delegate.report is not None
    assert delegate.report.whole_graph == whole, str(delegate.report)
    return reference(model, *inputs)[0], got[0]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_layer_is_off_by_one_at_most(dtype: str) -> None:
    writer = ModelWriter()
    params = Quantization((0.05,), (3 if dtype == "int8" else 131,))
    result = Quantization((0.4,), (-5 if dtype == "int8" else 123,))
    writer.output(
        conv(writer, writer.input(SHAPE, dtype, quantization=params), result, params, dtype)
    )
    expected, got = compared(writer.build(), stored(dtype=dtype))
    assert got.dtype == expected.dtype
    distance = np.abs(got.astype(int) - expected)
    assert distance.max() <= 1
    assert np.count_nonzero(distance) < distance.size / 20


def test_a_range_is_an_activation() -> None:
    """Without the simulators what lies beyond it would go on."""
    writer = ModelWriter()
    x = conv(writer, writer.input(SHAPE, "int8", quantization=HALF), NARROW)
    y = conv(writer, x, Quantization((0.2,), (0,)), NARROW)
    writer.output(y)
    expected, got = compared(writer.build(), stored())
    assert np.count_nonzero(expected == 127) < expected.size / 2
    assert np.abs(got.astype(int) - expected).max() <= 2


def test_float_ends_and_what_is_read_inside_and_outside() -> None:
    writer = ModelWriter()
    x = writer.input(SHAPE)
    q = writer.op("QUANTIZE", [x], [SHAPE], dtype="int8", quantization=HALF)
    y = conv(writer, q, NARROW)
    back = writer.op("DEQUANTIZE", [y], [SHAPE], version=2)
    writer.output(back, y)
    values = np.random.default_rng(1).uniform(-9, 9, SHAPE).astype(np.float32)
    delegate = GpuDelegate(quantized="float")
    real, bytes_ = run(interpreter(writer.build(), delegate), values)
    assert delegate.report is not None and delegate.report.whole_graph
    expected = reference(writer.build(), values)
    np.testing.assert_allclose(real, expected[0], atol=1.01 * NARROW.scale[0])
    assert np.abs(bytes_.astype(int) - expected[1]).max() <= 1
    # What is read inside lies on the grid.
    steps = real / NARROW.scale[0]
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_a_partition_begins_and_ends_among_bytes() -> None:
    writer = ModelWriter()
    x = writer.input(SHAPE, "int8", quantization=HALF)
    y = conv(writer, x, HALF)
    real = writer.op("DEQUANTIZE", [y], [SHAPE], version=2)
    cpu = step(writer, CPU_ONLY, real)
    again = writer.op("QUANTIZE", [cpu], [SHAPE], dtype="int8", quantization=HALF)
    writer.output(conv(writer, again, HALF))
    model = writer.build()
    expected, got = compared(model, stored(), whole=False)
    assert np.abs(got.astype(int) - expected).mean() < 2


def test_float16_constants_for_the_cpu_make_no_partition() -> None:
    """One that the CPU rounds, say: no kernel would be in it."""
    writer = ModelWriter()
    x = writer.input(SHAPE, "int8", quantization=HALF)
    weights = writer.constant(np.ones(SHAPE, np.float16))
    wide = writer.op("DEQUANTIZE", [weights], [SHAPE], version=2)
    rounded = step(writer, CPU_ONLY, wide)
    y = writer.op("QUANTIZE", [rounded], [SHAPE], dtype="int8", quantization=HALF)
    writer.output(
        writer.op("ADD", [x, y], [SHAPE], options={}, version=2, dtype="int8", quantization=HALF)
    )
    delegate = GpuDelegate(quantized="float", min_nodes_per_partition=1, max_delegated_partitions=5)
    interpreter(writer.build(), delegate)
    assert delegate.error is None
    assert delegate.report is not None
    assert 0 not in delegate.report.delegated_nodes


def test_weights_of_bytes_with_real_activations() -> None:
    writer = ModelWriter()
    x = writer.input((2, 8))
    weights = stored((5, 8), seed=2)
    params = writer.constant(weights, quantization=Quantization((0.02,), (0,)))
    writer.output(writer.op("FULLY_CONNECTED", [x, params], [(2, 5)], version=3))
    values = np.random.default_rng(0).uniform(-1, 1, (2, 8)).astype(np.float32)
    delegate = GpuDelegate(quantized="float")
    (got,) = run(interpreter(writer.build(), delegate), values)
    assert delegate.report is not None and delegate.report.whole_graph
    np.testing.assert_allclose(got, values @ (weights.astype(np.float32) * 0.02).T, rtol=1e-5)


def test_simulators_take_no_kernels() -> None:
    writer = ModelWriter()
    x = conv(writer, writer.input(SHAPE, "int8", quantization=HALF), NARROW)
    writer.output(conv(writer, x, HALF, NARROW))
    delegate = GpuDelegate(quantized="float")
    interpreter(writer.build(), delegate)
    assert delegate.report is not None
    (partition,) = delegate.report.partitions
    # The input's numbers, two convolutions, and the bytes of the output.
    assert partition.kernels <= 4


def graph(value: Value) -> Graph:
    result = Value(9, "out", value.shape, DType.FLOAT32)
    node = Node(0, "DEQUANTIZE", 2, (value.id,), (9,))
    return Graph({value.id: value, 9: result}, (node,), (value.id,), (9,))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT4])
def test_constants_have_a_scale_for_each_channel(dtype: DType) -> None:
    data = np.array([[10, 20], [30, 40]], np.int8)
    params = Quantization((0.5, 0.25), (0, 10), 1)
    value = Value(1, "weights", (2, 2), dtype, data, quantization=params)
    found = as_floats(graph(value)).values[1]
    assert found.dtype is DType.FLOAT32
    np.testing.assert_array_equal(found.data, [[5, 2.5], [15, 7.5]])


def test_checks_do_not_convert_large_constants() -> None:
    """Each delegate checks both ways to compute: that must not cost what it takes to convert."""
    params = stored((1, 64, 65, 1))
    value = Value(0, "x", params.shape, DType.INT8, data=params, quantization=HALF)
    graph = Graph({0: value}, (), (), ())
    (computed,) = as_floats(graph, large=False).values.values()
    assert computed.dtype is DType.FLOAT32 and computed.shape == params.shape
    assert computed.data is not None and not any(computed.data.strides)
    (real,) = as_floats(graph).values.values()
    np.testing.assert_allclose(np.asarray(real.data), 0.05 * (params.astype(float) - 3), 1e-6)


def test_computed_values_with_several_scales_stay_stored_integers() -> None:
    params = Quantization((0.5, 0.25), (0, 0), 1)
    value = Value(1, "x", (2, 2), DType.INT8, quantization=params)
    assert as_floats(graph(value)).values[1].dtype is DType.INT8
    assert check_support(graph(value), "float").reasons == {}  # it is a DEQUANTIZE


def test_the_ends_of_a_view_are_what_they_were() -> None:
    value = Value(1, "x", (2, 2), DType.INT8, quantization=HALF)
    viewed = float_view(graph(value))
    viewed.verify()
    assert viewed.values[1].dtype is DType.INT8
    assert (viewed.inputs, viewed.outputs) == ((1,), (9,))
