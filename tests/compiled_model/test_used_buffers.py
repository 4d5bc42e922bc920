"""Cached runs: CUDA kernels use the buffers directly if that is correct."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from litegpu import BindingError, CompiledModel, CompiledModelError, GpuDelegate, TensorBuffer
from litegpu.backends.cuda.buffers import CUDABorrowedBuffer, CUDABuffer
from litegpu.zoo.writer import ModelWriter
from simulated_cuda import SimulatedDriver
from small_models import chain, interpreter

pytestmark = needs_emulator
SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


def copies(driver: SimulatedDriver, run: Any) -> int:
    """Return the number of copies in a run."""
    before = len(driver.calls)
    run()
    return driver.calls[before:].count("cuMemcpyAsync")


def compiled(ops: list[str], shape: tuple[int, ...] = SHAPE) -> CompiledModel:
    return CompiledModel.from_buffer(chain(ops, shape), backend="cuda")


def memory(model: CompiledModel, nbytes: int) -> CUDABuffer:
    """Return memory of the model's device, full of NaN."""
    (kernel,) = [
        context.instance.kernel(context.instance.signatures[0]) for context in model._pool.all
    ]
    assert kernel is not None
    whole = kernel.device.allocate(nbytes)
    assert isinstance(whole, CUDABuffer)
    whole.write(np.full(nbytes // 4, np.nan, np.float32))
    return whole


def part(whole: CUDABuffer, offset: int, shape: tuple[int, ...]) -> TensorBuffer:
    """Return a tensor that is stored within the memory of another tensor."""
    at, nbytes = whole.handle + offset, int(np.prod(shape)) * 4
    lent = CUDABorrowedBuffer(whole.device, at, nbytes, whole, None)
    return TensorBuffer(lent, np.float32, shape)


@pytest.mark.parametrize("kind", ["device", "pinned"])
@pytest.mark.parametrize("shape", [SHAPE, (1, 3, 3, 1), (1, 1, 1, 1025)])
def test_kernels_use_a_models_own_buffers(
    driver: SimulatedDriver, kind: str, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    with compiled(["ABS", "NEG"], shape) as model:
        inputs = model.create_input_buffers(memory=kind)
        outputs = model.create_output_buffers(memory=kind)
        for factor in (1, -3):
            inputs[0].write(x * factor)
            outputs[0].write(np.full(shape, np.nan, np.float32))
            assert copies(driver, lambda: model.run_by_index(0, inputs, outputs)) == 0
            np.testing.assert_array_equal(outputs[0].read(), -np.abs(x * factor))


def test_much_of_the_host_is_left_to_the_copy_engine(driver: SimulatedDriver) -> None:
    shape = (1, 1024, 1024, 1)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    with compiled(["ABS"], shape) as model:
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        inputs[0].write(x)
        assert copies(driver, lambda: model.run_by_index(0, inputs, outputs)) == 2
        np.testing.assert_array_equal(outputs[0].read(), np.abs(x))


@pytest.mark.parametrize(
    ("offset", "shape", "expected"),
    [(0, SHAPE, 0), (16, SHAPE, 0), (4, SHAPE, 2), (0, (1, 3, 3, 1), 1), (4, (1, 3, 3, 1), 2)],
)
def test_memory_of_others(
    driver: SimulatedDriver, offset: int, shape: tuple[int, ...], expected: int
) -> None:
    """Inputs with a partial unit are copied; outputs of one launch may end at any byte."""
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    with compiled(["ABS", "NEG"], shape) as model:
        spaces = [memory(model, x.nbytes + 64) for _ in range(2)]
        source, result = (part(each, offset, shape) for each in spaces)
        source.write(x)
        assert copies(driver, lambda: model.run_by_index(0, [source], [result])) == expected
        np.testing.assert_array_equal(result.read(), -np.abs(x))
        around = spaces[1].read().view(np.float32)
        assert np.isnan(around).sum() == around.size - x.size, "nothing else was written"


@pytest.mark.parametrize("overlap", [256, 240, 16])
def test_an_output_over_an_input(driver: SimulatedDriver, overlap: int) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    once = writer.op("NEG", [value], [SHAPE])
    sums = writer.op("ADD", [writer.op("ABS", [once], [SHAPE]), value], [SHAPE])
    writer.output(once, sums)
    with CompiledModel.from_buffer(writer.build(), backend="cuda") as model:
        whole = memory(model, 1024)
        source, result = (part(whole, offset, SHAPE) for offset in (256, 512 - overlap))
        outputs = [result, model.create_output_buffers(memory="device")[1]]
        for _ in range(2):
            source.write(X)
            assert copies(driver, lambda: model.run_by_index(0, [source], outputs)) == 1
            np.testing.assert_array_equal(result.read(), -X)
            np.testing.assert_array_equal(outputs[1].read(), np.abs(X) + X)


def test_an_input_that_is_an_output(driver: SimulatedDriver) -> None:
    writer = ModelWriter()
    value = writer.input(SHAPE)
    writer.output(writer.op("NEG", [value], [SHAPE]), value)
    with CompiledModel.from_buffer(writer.build(), backend="cuda") as model:
        inputs = model.create_input_buffers(memory="device")
        outputs = model.create_output_buffers(memory="device")
        inputs[0].write(X)
        model.run_by_index(0, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].read(), -X)
        np.testing.assert_array_equal(outputs[1].read(), X)


def test_graphs_go_with_their_buffers(driver: SimulatedDriver) -> None:
    with compiled(["ABS"]) as model:

        def once() -> None:
            inputs = model.create_input_buffers(memory="device")
            outputs = model.create_output_buffers(memory="device")
            inputs[0].write(X)
            model.run_by_index(0, inputs, outputs)

        once()
        gc.collect()
        before = sorted(driver.live.values())
        for _ in range(40):
            once()
        gc.collect()
        assert sorted(driver.live.values()) == before
    assert not driver.faults


def test_closed_buffers_are_seen_before_a_run(driver: SimulatedDriver) -> None:
    gpu = GpuDelegate(backend="cuda")
    target = interpreter(chain(["ABS"]), gpu)
    place = target.get_input_details()[0]["index"]
    device = gpu._whole().device  # type: ignore[union-attr]
    buffer = TensorBuffer(device.allocate(X.nbytes), np.float32, SHAPE)
    gpu.bind_buffer(target, place, buffer)
    buffer.write(X)
    target.invoke()
    output = target.get_output_details()[0]["index"]
    np.testing.assert_array_equal(target.get_tensor(output), np.abs(X))
    launches = driver.calls.count("cuGraphLaunch")
    buffer.memory.close()
    with pytest.raises(RuntimeError, match=r"This buffer was closed\. Allocate another one\."):
        target.invoke()
    assert driver.calls.count("cuGraphLaunch") == launches
    with compiled(["ABS"]) as model:
        inputs = model.create_input_buffers(memory="device")
        outputs = model.create_output_buffers(memory="device")
        model.run_by_index(0, inputs, outputs)
        outputs[0].memory.close()
        for run in (model.run_by_index, model.submit_by_index):
            with pytest.raises((BindingError, CompiledModelError), match=r"closed"):
                run(0, inputs, outputs)


@pytest.mark.parametrize("same", [True, False])
def test_an_input_is_updated_where_it_is(driver: SimulatedDriver, same: bool) -> None:
    """Like the KV cache of a language model; the graph copies it if the buffers differ."""
    writer = ModelWriter()
    operands = [writer.input(SHAPE), writer.input((1, 1, 4, 4)), writer.input((4,), "int32")]
    writer.output(writer.op("DYNAMIC_UPDATE_SLICE", operands, [SHAPE]))
    with CompiledModel.from_buffer(writer.build(), backend="cuda") as model:
        inputs = model.create_input_buffers(memory="device")
        outputs = inputs[:1] if same else model.create_output_buffers(memory="device")
        expected = X.copy()
        inputs[0].write(X)
        for row in (2, 0):
            part = np.full((1, 1, 4, 4), row + 7, np.float32)
            inputs[1].write(part)
            inputs[2].write(np.array([0, row, 0, 0], np.int32))
            assert copies(driver, lambda: model.run_by_index(0, inputs, outputs)) == 0
            expected[0, row] = part
            np.testing.assert_array_equal(outputs[0].read(), expected)
            if not same:
                np.testing.assert_array_equal(inputs[0].read(), X)
                expected = X.copy()
