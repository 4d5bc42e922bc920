"""Batches in chunks give the same results as whole batches, with any memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from litegpu import CompiledModel, CompiledModelError
from litegpu.compiled_model.chunks import ChunkedRun
from litegpu.errors import ExecutionError
from simulated_cuda import SimulatedDriver, put_in_place
from small_models import CPU_ONLY, chain

SHAPE = (6, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
OPS = ["ABS", "NEG"]


def compiled(backend: str, count: int, **options: Any) -> CompiledModel:
    return CompiledModel.from_buffer(chain(OPS, SHAPE), backend=backend, chunks=count, **options)


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("kinds", ["host pinned", "pinned host", "pinned device", "device pinned"])
def test_chunks_are_the_whole(backend: str, kinds: str, count: int) -> None:
    source, target = kinds.split()
    with compiled(backend, count) as model:
        inputs = model.create_input_buffers(memory=source)
        outputs = model.create_output_buffers(memory=target)
        for factor in (1, -2, 3):
            inputs[0].write(X * factor)
            outputs[0].write(np.full(SHAPE, np.nan, np.float32))
            if factor == 3:
                assert model.submit_by_index(0, inputs, outputs).result() is None
            else:
                model.run_by_index(0, inputs, outputs)
            np.testing.assert_array_equal(outputs[0].read(), -np.abs(X * factor))


def test_calls_go_in_chunks(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ChunkedRun] = []
    begin = ChunkedRun.submit

    def submit(run: ChunkedRun) -> None:
        begun.append(run)
        begin(run)

    with compiled(backend, 3) as model:
        monkeypatch.setattr(ChunkedRun, "submit", submit)
        (buffer,) = model.create_input_buffers()
        buffer.write(X)
        ways: list[Callable[[Any], Any]] = [model, lambda x: model.submit(x).result()]
        for way in ways:
            for source in (X, X.tolist(), buffer):
                np.testing.assert_array_equal(way(source), -np.abs(X))
        futures = [model.submit(X * number) for number in range(4)]
        for number, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), -np.abs(X * number))
        assert len(begun) == 10
        (device,) = model.create_input_buffers(memory="device")
        device.write(X)
        found = model(device)
        assert found.kind == "device"
        np.testing.assert_array_equal(found.read(), -np.abs(X))
        assert len(begun) == 10, "nothing is copied that could overlap"


def test_many_runs_in_threads(backend: str) -> None:
    failed: list[BaseException] = []
    with compiled(backend, 2, contexts=2) as model:

        def work(factor: int) -> None:
            try:
                inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
                for number in range(20):
                    inputs[0].write(X * (factor + number))
                    model.run_by_index(0, inputs, outputs)
                    expected = -np.abs(X * (factor + number))
                    np.testing.assert_array_equal(outputs[0].read(), expected)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(each,)) for each in (1, 100, 1000)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not failed, failed


def test_pieces_is_the_deprecated_name_of_chunks(backend: str) -> None:
    model = chain(OPS, SHAPE)
    with pytest.warns(DeprecationWarning, match=r"pieces is deprecated\. Use chunks\.") as warned:
        old = CompiledModel.from_buffer(model, backend=backend, pieces=2)
    assert warned[0].filename == __file__, "the user's line, which Python shows by default"
    x = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    with old, compiled(backend, 2) as new:
        assert old._chunks is not None
        np.testing.assert_array_equal(old(x), new(x))
    with pytest.raises(CompiledModelError, match=r"pieces is the old name of chunks\. Use chunks"):
        CompiledModel.from_buffer(model, backend=backend, pieces=2, chunks=2)


def test_what_cannot_be_cut(backend: str) -> None:
    for count in (0, "2", 1.5):
        with pytest.raises(CompiledModelError, match=r"chunks is .*\. Use a number from 1 on\."):
            compiled(backend, count)  # type: ignore[arg-type]
    with pytest.raises(
        CompiledModelError, match=r"have \[6\] rows\. Use a divisor .*\.with_batch\("
    ):
        compiled(backend, 4)
    partly = chain(["ABS", CPU_ONLY], SHAPE)
    with pytest.raises(CompiledModelError, match=r"chunks requires a model of one signature that"):
        CompiledModel.from_buffer(partly, backend=backend, chunks=2)
    with compiled(backend, 2) as model:
        with pytest.raises(CompiledModelError, match=r"shapes of a model in chunks cannot change"):
            model.resize_input_tensor(0, (2, 4, 4, 4), strict=False)
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        with pytest.raises(CompiledModelError, match=r"Output 'tensor_\d' is|number of outputs"):
            model.run_by_index(0, inputs, [])
        model.run_by_index(0, inputs, outputs)
        outputs[0].destroy()
        with pytest.raises(CompiledModelError, match=r"has been destroyed"):
            model.run_by_index(0, inputs, outputs)
    with pytest.raises(CompiledModelError, match=r"The model was closed"):
        model.run_by_index(0, inputs, outputs)


@needs_emulator
def test_what_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk has a graph, device memory has one; all are released with the model."""
    driver: SimulatedDriver = put_in_place(monkeypatch)
    model = compiled("cuda", 3)
    pinned = model.create_input_buffers(), model.create_output_buffers()
    device = (
        model.create_input_buffers(memory="device"),
        model.create_output_buffers(memory="device"),
    )
    for ends, graphs in ((pinned, 3), (device, 1)):
        model.run_by_index(0, *ends)
        before = len(driver.calls)
        model.run_by_index(0, *ends)
        assert driver.calls[before:].count("cuGraphLaunch") == graphs
    before = len(driver.calls)
    model.run_by_index(0, *pinned, stream=5)
    assert driver.calls[before:].count("cuEventRecord") == 3, "each chunk comes after the stream"
    model.close()
    del model, ends
    gc.collect()
    assert not [name for name in driver.live.values() if name in ("cuGraphInstantiate",)]
    assert not driver.faults


@needs_emulator
def test_a_piece_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = put_in_place(monkeypatch)
    with compiled("cuda", 3) as model:
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        inputs[0].write(X)
        model.run_by_index(0, inputs, outputs)
        submit, calls = type(model)._submitted, []

        def fails(self: CompiledModel, *work: Any) -> Any:
            calls.append(work)
            if len(calls) % 3 == 2:
                raise ExecutionError("the second one cannot begin")
            return submit(self, *work)

        with monkeypatch.context() as patched:
            patched.setattr(type(model), "_submitted", fails)
            for run in (lambda: model.run_by_index(0, inputs, outputs), lambda: model(X)):
                calls.clear()
                with pytest.raises(ExecutionError, match=r"the second one cannot begin"):
                    run()
        outputs[0].write(np.full(SHAPE, np.nan, np.float32))
        model.run_by_index(0, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].read(), -np.abs(X))
    assert not driver.faults
