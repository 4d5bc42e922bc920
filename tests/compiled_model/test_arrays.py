"""Conversions of arrays and numbers that are passed to a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu import Batcher, CompiledModel, CompiledModelError, TensorBuffer
from litegpu.compiled_model import HardwareAccelerator
from litegpu.graph.ir import Quantization
from litegpu.zoo.writer import ModelWriter
from real_models import find
from small_models import CPU_ONLY, chain

CPU = HardwareAccelerator.CPU
SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
PLACES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "gpu": (["ABS", "NEG"], {}),
    "partly": (["ABS", CPU_ONLY, "NEG"], {}),
    "cpu": (["ABS", "NEG"], {"hardware_accel": CPU}),
}


def same(dtype: str, shape: tuple[int, ...] = (1, 4)) -> CompiledModel:
    """Return a model whose output is its input."""
    writer = ModelWriter()
    x = writer.input(shape, dtype, name="x")
    sizes = writer.constant([*shape], np.int32)
    writer.output(writer.op("RESHAPE", [x, sizes], [shape], dtype=dtype))
    return CompiledModel.from_buffer(writer.build(), hardware_accel=CPU)


def ways(model: CompiledModel, *others: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
    return [model, lambda x: model.submit(x).result(), *others]


@pytest.mark.parametrize("place", PLACES)
def test_bfloat16_is_a_float(place: str) -> None:
    """NumPy has no such type; ml_dtypes, as JAX uses it, adds it."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    names, options = PLACES[place]
    x = X.astype(bfloat16)
    with CompiledModel.from_buffer(chain(names, SHAPE), **options) as model:
        expected = model(x.astype(np.float32))
        for way in ways(model):
            np.testing.assert_array_equal(way(x), expected)


def test_bfloat16_is_quantized_as_floats_are() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    writer, scale = ModelWriter(), Quantization((0.5,), (0,))
    x = writer.input((1, 4), np.int8, quantization=scale)
    writer.output(writer.op("ABS", [x], [(1, 4)], dtype=np.int8, quantization=scale))
    with CompiledModel.from_buffer(writer.build(), quantize=True) as model:
        given = np.array([[-1.5, 2.0, 3.5, 0.0]], bfloat16)
        np.testing.assert_array_equal(model(given), [[1.5, 2.0, 3.5, 0.0]])


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("uint8", [[0, 1, 2, 255]]),
        ("int8", [[-128, 0, 1, 127]]),
        ("int32", np.array([[2**31 - 1, 0, 1, 2]], np.uint64)),
        ("int64", [[True, False, True, True]]),
        ("int8", np.array([[1, 2, 3, 4]], ">i8")),
        ("float32", np.array([[0.1, np.inf, -np.inf, np.nan]])),
        ("float32", [[1, 2, 3, 4]]),
        ("float32", np.ones((4, 1)).T[:, ::-1]),
    ],
)
def test_what_keeps_its_value_is_taken(dtype: str, given: Any) -> None:
    with same(dtype) as model, Batcher(model, 2) as batcher:
        for way in ways(model, batcher):
            found = way(given)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, np.asarray(given).astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("int8", [[300, 1, 2, 3]], r"'x' is int8, which goes from -128 to 127, and was given 300"),
        ("uint8", [[1, 2, 3, -1]], r"is uint8, which goes from 0 to 255, and was given -1\. Give"),
        ("uint8", np.array([[300, 1, 2, 3]], np.uint16), r"goes from 0 to 255, .* given 300"),
        ("int32", [[2**40, 1, 2, 3]], r"to 2147483647, and was given 1099511627776"),
        ("int64", np.array([[2**64 - 1, 0, 0, 0]], np.uint64), r"given 18446744073709551615"),
        (
            "float32",
            [[1.0, 1e300, np.inf, 2]],
            r"float32, in which the value is infinite, .* given 1e\+300",
        ),
        ("int8", [[0.5, 1, 2, 3]], r"'x' is int8, and was given float64\. Convert it"),
    ],
)
def test_what_would_become_another_value_is_not(dtype: str, given: Any, message: str) -> None:
    with same(dtype) as model, Batcher(model, 2) as batcher:
        for way in ways(model, batcher):
            with pytest.raises(CompiledModelError, match=message):
                way(given)


def test_one_number() -> None:
    with same("float32", ()) as model:
        assert model(3).tolist() == 3
        assert model.submit(np.float64(2)).result().shape == ()


@pytest.mark.parametrize("place", PLACES)
def test_flat_buffers(place: str) -> None:
    ops, options = PLACES[place]
    with CompiledModel.from_buffer(chain(ops), **options) as model:
        expected = model(X)
        result = np.zeros(X.size, np.float32)
        flat = TensorBuffer.create_from_host_memory(X.reshape(-1).copy())
        outputs = [TensorBuffer.create_from_host_memory(result)]
        model.run_by_index(0, [flat], outputs)
        np.testing.assert_array_equal(result.reshape(SHAPE), expected)
        result[:] = 0
        model.submit_by_index(0, [flat], outputs).result()
        np.testing.assert_array_equal(result.reshape(SHAPE), expected)
        for way in ways(model):
            np.testing.assert_array_equal(way(flat), expected)
        with pytest.raises(CompiledModelError, match=r"Input 'input' is float32 of the shape"):
            model(TensorBuffer.of(X[:, :2].copy()))


def positions() -> bytes:
    """Return a model (WHERE) whose output shape depends on its input."""
    writer = ModelWriter()
    x = writer.input((4,), "bool")
    writer.output(writer.op("WHERE", [x], [(-1, 1)], dtype="int64"))
    return writer.build()


@pytest.mark.parametrize("options", [{}, {"hardware_accel": CPU}])
def test_results_of_any_size(options: dict[str, Any]) -> None:
    first, second = np.array([True, False, True, False]), np.array([False, True, False, False])
    with CompiledModel.from_buffer(positions(), **options) as model:
        for way in ways(model):
            assert way(first).tolist() == [[0], [2]]
            assert way(TensorBuffer.of(second)).tolist() == [[1]]
            assert model.signature.outputs[0].shape == (1, 1)


@pytest.mark.real_model
def test_a_trained_model_that_tells_no_shape_of_its_output() -> None:
    path = find("style_transfer_quantized_dynamic")
    with CompiledModel.from_file(path, hardware_accel=CPU) as model:
        found = model(*(np.zeros(each.shape, np.float32) for each in model.signature.inputs))
        assert found.shape == (1, 384, 384, 3)
