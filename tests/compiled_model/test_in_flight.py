"""Several runs in flight: futures, contexts, threads, interruptions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from litegpu import CompiledModel, CompiledModelError, ModelFuture, TensorBuffer
from litegpu.errors import ExecutionError, InvokeTimeoutError, RunTimeoutError
from places import python_path
from small_models import ALL_HALF, CPU_ONLY, ONE, chain, reference, scaled

SHAPE = (1, 4, 4, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
WHOLE, PARTLY = ["ABS", "NEG"], ["ABS", CPU_ONLY, "NEG"]


@pytest.mark.parametrize("ops", [WHOLE, PARTLY])
@pytest.mark.parametrize("contexts", [1, 3])
def test_more_runs_than_contexts(backend: str, ops: list[str], contexts: int) -> None:
    model = CompiledModel.from_buffer(chain(ops), backend=backend, contexts=contexts)
    expected = [model(X * number) for number in range(8)]
    futures = []
    for number in range(8):
        changing = X * number
        futures.append(model.submit(changing))
        changing[:] = np.nan
    assert isinstance(futures[0], ModelFuture)
    for future, want in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result(), want)
        assert future.done()
        assert future.exception() is None
        np.testing.assert_array_equal(future.result(timeout=0), want)
    last = model.submit(X * 5)
    model.close()
    np.testing.assert_array_equal(last.result(), expected[5])
    with pytest.raises(CompiledModelError, match=r"The model was closed"):
        model.submit(X)
    model.close()


def test_all_contexts_share_one_executable(backend: str) -> None:
    with CompiledModel.from_buffer(chain(WHOLE), backend=backend, contexts=3) as model:
        futures = [model.submit(X) for _ in range(3)]
        compiled = [context._on_kernels[0].compiled() for context in model._pool.all]
        assert len({id(each.context) for each in compiled}) == 3
        assert len({id(each.executable) for each in compiled}) == 1
        for future in futures:
            np.testing.assert_array_equal(future.result(), -np.abs(X))


def test_buffers_of_runs_in_flight(backend: str) -> None:
    with CompiledModel.from_buffer(chain(WHOLE), backend=backend, contexts=2) as model:
        sets = [(model.create_input_buffers(), model.create_output_buffers()) for _ in range(4)]
        for number, (inputs, _) in enumerate(sets):
            inputs[0].write(X * number)
        futures = [model.submit_by_index(0, *each) for each in sets]
        for number, future in enumerate(futures):
            assert future.wait(60)
            assert future.result() is None
            np.testing.assert_array_equal(sets[number][1][0].array, -np.abs(X * number))


@pytest.mark.parametrize("contexts", [1, 2])
def test_what_half_cannot_hold_is_widened_for_all(backend: str, contexts: int) -> None:
    content = scaled()
    x = np.random.default_rng(1).normal(size=(1, 8, 8, 12)).astype(np.float32)
    up, down = np.full(ONE, 1e5, np.float32), np.full(ONE, 1e-5, np.float32)
    (expected,) = reference(content, x, up, down)
    options = {"backend": backend, "contexts": contexts, **ALL_HALF}
    with CompiledModel.from_buffer(content, **options) as model:
        futures = [model.submit(x, up, down) for _ in range(4)]
        for future in futures:
            np.testing.assert_allclose(future.result(), expected, rtol=5e-3)
        np.testing.assert_array_equal(model(x, up, down), futures[0].result())
        assert model.report is not None
        assert model.report.partitions[0].kept_float32 == ("scaled",)


def in_flight(model: CompiledModel, number: int) -> ModelFuture:
    """Return the future of a run for which no caller has waited yet."""
    return model.submit(X * number)


@pytest.mark.parametrize("ops", [WHOLE, PARTLY])
def test_a_future_of_concurrent_futures(backend: str, ops: list[str]) -> None:
    with CompiledModel.from_buffer(chain(ops), backend=backend, contexts=2) as model:
        expected = [model(X * number) for number in range(6)]
        many = [in_flight(model, number) for number in range(6)]
        assert concurrent.futures.wait(many, timeout=60) == ({*many}, set())
        many = [in_flight(model, number) for number in range(6)]
        assert {*concurrent.futures.as_completed(many, timeout=60)} == {*many}
        for number, future in enumerate(many):
            assert isinstance(future, concurrent.futures.Future)
            assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
            np.testing.assert_array_equal(future.result(), expected[number])
        seen: list[Any] = []
        event = threading.Event()
        future = in_flight(model, 5)
        assert not future.cancel()
        future.add_done_callback(seen.append)
        future.add_done_callback(lambda _: event.set())
        assert event.wait(60)
        future.add_done_callback(seen.append)
        assert seen == [future, future]
        np.testing.assert_array_equal(seen[0].result(), expected[5])
        last = in_flight(model, 4)
    last.add_done_callback(seen.append)  # after the model was closed
    assert seen[-1] is last


def test_callbacks_may_use_the_model() -> None:
    seen: list[Any] = []
    ended = threading.Event()
    model = CompiledModel.from_buffer(chain(WHOLE))

    def again(future: Any) -> None:
        seen.append(future.result())
        if len(seen) < 3:
            model.submit(X).add_done_callback(again)
        else:
            model.close()
            ended.set()

    model.submit(X).add_done_callback(again)
    assert ended.wait(60)
    np.testing.assert_array_equal(seen, [-np.abs(X)] * 3)
    with pytest.raises(CompiledModelError, match=r"The model was closed"):
        model(X)


def test_a_close_beside_callbacks() -> None:
    for _ in range(20):
        model = CompiledModel.from_buffer(chain(PARTLY), contexts=2)
        ended: list[Any] = []
        for number in range(4):
            in_flight(model, number).add_done_callback(ended.append)
        model.close()
        assert len(concurrent.futures.wait(ended, timeout=60).done) == len(ended)


def test_futures_go_with_the_last_reference() -> None:
    with CompiledModel.from_buffer(chain(WHOLE)) as model:
        future = model.submit(X)
        future.result()
        gone = weakref.ref(future)
        gc.disable()
        try:
            del future
            assert gone() is None
        finally:
            gc.enable()


def test_many_coroutines_need_no_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with CompiledModel.from_buffer(chain(WHOLE), contexts=2) as model:

        async def one(number: int) -> Any:
            return await asyncio.wrap_future(model.submit(X * number))

        async def many() -> int:
            monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", None)
            found = await asyncio.gather(*map(one, range(20)), *map(waited, range(20)))
            for number, result in enumerate(found):
                np.testing.assert_array_equal(result, -np.abs(X * (number % 20)))
            return len(found)

        async def waited(number: int) -> Any:
            return await model.submit(X * number)

        assert asyncio.run(many()) == 40


def test_await(backend: str) -> None:
    with CompiledModel.from_buffer(chain(WHOLE), backend=backend, contexts=2) as model:

        async def one(number: int) -> Any:
            return await model.submit(X * number)

        async def many() -> list[Any]:
            return list(await asyncio.gather(*map(one, range(6))))

        for number, result in enumerate(asyncio.run(many())):
            np.testing.assert_array_equal(result, -np.abs(X * number))


@pytest.mark.parametrize("ops", [WHOLE, PARTLY])
def test_a_run_that_fails_fails_alone(ops: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with CompiledModel.from_buffer(chain(ops), contexts=2) as model:
        good, bad = model.submit(X), model.submit(X)

        def fail() -> None:
            raise ExecutionError("The device failed. Test.")

        monkeypatch.setattr(bad._flight._run, "finish", fail)
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"The device failed. Test"):
                bad.result()
        assert isinstance(bad.exception(), ExecutionError)
        assert concurrent.futures.wait([bad]).done == {bad}
        np.testing.assert_array_equal(good.result(), model(X))
        with pytest.raises(CompiledModelError, match=r"has the shape"):
            model.submit(X[0])
        for _ in range(4):
            np.testing.assert_array_equal(model.submit(X).result(), good.result())


def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with CompiledModel.from_buffer(chain(WHOLE)) as model:
        future = model.submit(X)
        with monkeypatch.context() as patch:
            patch.setattr(future._flight._run, "is_done", lambda: False)
            assert not future.done()
            assert not future.wait(0.01)
            with pytest.raises(
                InvokeTimeoutError, match=r"not finished after 0.01 seconds. The run continues"
            ):
                future.result(0.01)
            for kind in (concurrent.futures.TimeoutError, RunTimeoutError):
                with pytest.raises(kind):
                    future.exception(0.01)
        np.testing.assert_array_equal(future.result(), -np.abs(X))


@pytest.mark.parametrize("contexts", [0, -1, 1.5, "2", True])
def test_how_many_contexts_there_may_be(contexts: Any) -> None:
    with pytest.raises(CompiledModelError, match=r"contexts is .*. Use a number from 1 on"):
        CompiledModel.from_buffer(chain(WHOLE), contexts=contexts)


def test_a_resize_waits_for_runs_in_flight() -> None:
    with CompiledModel.from_buffer(chain(PARTLY), contexts=2) as model:
        futures = [model.submit(X) for _ in range(3)]
        model.resize_input_tensor(0, (2, 4, 4, 4), strict=False)
        twice = np.concatenate([X, X])
        want = futures[0].result()
        for _ in range(3):
            np.testing.assert_array_equal(model.submit(twice).result()[1:], want)
    with CompiledModel.from_buffer(chain(WHOLE), contexts=2) as model:
        futures = [model.submit(X) for _ in range(3)]
        model.resize_input_tensor(0, (2, 4, 4, 4), strict=False)
        np.testing.assert_array_equal(futures[2].result(), -np.abs(X))
        results = [model.submit(twice) for _ in range(3)]
        for future in results:
            np.testing.assert_array_equal(future.result(), -np.abs(twice))


@pytest.mark.parametrize("contexts", [1, 4])
def test_threads_with_buffers_and_arrays(contexts: int) -> None:
    """Many threads run, submit and resize: no thread waits forever, and all results are correct."""
    faults: list[BaseException] = []
    with CompiledModel.from_buffer(chain(WHOLE), contexts=contexts) as model:

        def work(seed: int) -> None:
            x = X * seed
            try:
                inputs = [TensorBuffer.create_from_host_memory(x)]
                outputs = model.create_output_buffers()
                for _ in range(15):
                    future = model.submit(x)
                    model.run_by_index(0, inputs, outputs)
                    np.testing.assert_array_equal(outputs[0].array, -np.abs(x))
                    np.testing.assert_array_equal(future.result(), -np.abs(x))
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert not any(each.is_alive() for each in threads)
        assert not faults
        assert not any(context.busy for context in model._pool.all)


# Whole programs

PRELUDE = """
import signal, sys, time, threading, numpy as np
from litegpu import CompiledModel
from litegpu.errors import CompiledModelError
from small_models import chain
x = np.full((1, 4, 4, 4), -2, np.float32)
model = CompiledModel.from_buffer(chain(["ABS"]), contexts=int(sys.argv[1]))
inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
inputs[0].write(x)
"""
INTERRUPTED = """
signal.signal(signal.SIGALRM, signal.default_int_handler)
count = 0
for number in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + number * 7e-5)
        while True:
            model.run_by_index(0, inputs, outputs)
            model.submit(x).result()
            model(x)
    except KeyboardInterrupt:
        count += 1
    outputs[0].array[:] = 9
    model.run_by_index(0, inputs, outputs)
    assert (outputs[0].array == 2).all()
print(count)
"""
HANDLED = """
printed = []
def handler(*_):
    try:
        model.run_by_index(0, inputs, outputs)
        printed.append("ran")  # between two runs
    except CompiledModelError as error:
        printed.append(str(error))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
until = time.monotonic() + 1
while time.monotonic() < until:
    model.run_by_index(0, inputs, outputs)
signal.setitimer(signal.ITIMER_REAL, 0)
print("already running the model" in " ".join(printed) or printed)
"""
ENDING = """
futures = [model.submit(x) for _ in range(3)]
print("end")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timers")
@pytest.mark.parametrize(
    ("program", "contexts", "printed"),
    [(INTERRUPTED, 1, "40"), (INTERRUPTED, 2, "40"), (HANDLED, 1, "True"), (ENDING, 2, "end")],
)
def test_whole_programs(program: str, contexts: int, printed: str) -> None:
    command = [sys.executable, "-c", PRELUDE + program, str(contexts)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.stdout, done.returncode) == (f"{printed}\n", 0), done.stderr
