"""Dynamic batching: many threads, requests of several rows, errors."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from litegpu import Batcher, CompiledModel, CompiledModelError
from litegpu.errors import ExecutionError
from litegpu.zoo.writer import ModelWriter
from places import python_path
from small_models import CPU_ONLY, chain

ROW = (1, 4, 4, 4)
WHOLE, PARTLY = ["ABS", "NEG"], ["ABS", CPU_ONLY, "NEG"]


def row(seed: int, rows: int = 1) -> Any:
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, *ROW[1:])).astype(np.float32)


def model_of(ops: list[str], **options: Any) -> CompiledModel:
    return CompiledModel.from_buffer(chain(ops), **options)


def watched(batcher: Batcher) -> list[int]:
    """Return the list that gets the size of each batch that is run."""
    sizes: list[int] = []
    for each in batcher._sizes:
        run = each.model.submit_by_index

        def note(*args: Any, rows: int = each.rows, run: Any = run) -> Any:
            sizes.append(rows)
            return run(*args)

        each.model.submit_by_index = note  # type: ignore
    return sizes


@pytest.mark.parametrize("ops", [WHOLE, PARTLY])
def test_every_thread_gets_its_rows(ops: list[str]) -> None:
    wrong: list[object] = []
    with model_of(ops) as model, Batcher(model, max_batch=8, max_delay_ms=2) as batcher:
        sizes = watched(batcher)

        def work(seed: int) -> None:
            try:
                for number in range(20):
                    x = row(seed * 100 + number, 1 + number % 3)
                    want = -np.abs(x)
                    np.testing.assert_array_equal(batcher(x), want)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(100)
    assert not wrong
    assert max(sizes) > 1
    assert len(sizes) < 16 * 20


def test_the_smallest_size_is_taken_and_full_batches_do_not_wait() -> None:
    with model_of(WHOLE) as model, Batcher(model, max_batch=4, max_delay_ms=3e3) as batcher:
        sizes = watched(batcher)
        began = time.monotonic()
        futures = [batcher.submit(row(seed)) for seed in range(8)]
        for seed, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), -np.abs(row(seed)))
        assert time.monotonic() - began < 3
        assert sizes == [4, 4]
        last = batcher.submit(row(9, 3))
        batcher.close()
        np.testing.assert_array_equal(last.result(), -np.abs(row(9, 3)))
        assert sizes == [4, 4, 4]
    with model_of(WHOLE) as model, Batcher(model, 8, 0, batch_sizes=(3,)) as batcher:
        sizes = watched(batcher)
        batcher(row(0))
        assert sizes == [3]


def test_what_does_not_fit_in_a_batch_begins_the_next() -> None:
    with model_of(WHOLE) as model, Batcher(model, max_batch=4, max_delay_ms=50) as batcher:
        sizes = watched(batcher)
        futures = [batcher.submit(row(seed, 3)) for seed in range(3)]
        for seed, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), -np.abs(row(seed, 3)))
        assert sizes == [4, 4, 4]


def test_a_request_that_is_wrong_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with model_of(WHOLE) as model, Batcher(model, max_batch=4, max_delay_ms=20) as batcher:
        good = batcher.submit(row(0))
        with pytest.raises(CompiledModelError, match=r"\[-1, 4, 4, 4\], and was given \[1, 4, 4\]"):
            batcher.submit(row(1)[..., 0])
        with pytest.raises(CompiledModelError, match=r"has \[5\] rows. Give all .*, 1 to 4"):
            batcher.submit(row(1, 5))
        with pytest.raises(CompiledModelError, match=r"'input' is float32, and was given complex"):
            batcher.submit(row(1).astype(complex))
        with pytest.raises(
            CompiledModelError, match=r"takes 1 input, \['input'\], and was given 2"
        ):
            batcher.submit(row(1), row(1))
        cancelled = batcher.submit(row(2))
        assert cancelled.cancel()
        np.testing.assert_array_equal(good.result(), -np.abs(row(0)))

        def fails(*_: Any) -> Any:
            raise ExecutionError("The device failed. Test.")

        with monkeypatch.context() as patch:
            for size in batcher._sizes:
                patch.setattr(size.model, "submit_by_index", fails)
            with pytest.raises(ExecutionError, match=r"The device failed. Test"):
                batcher(row(3))
        for _ in range(5):
            np.testing.assert_array_equal(batcher(row(4)), -np.abs(row(4)))
    with pytest.raises(CompiledModelError, match=r"The batcher was closed. Create a new"):
        batcher.submit(row(5))


def test_a_request_beside_close_is_answered() -> None:
    class Closes:
        """An object whose conversion to an array closes the batcher."""

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            batcher.close()
            return row(0)

    with model_of(WHOLE) as model:
        batcher = Batcher(model, max_batch=2)
        late = batcher.submit(Closes())
        with pytest.raises(CompiledModelError, match=r"The batcher was closed. Create a new"):
            late.result(timeout=10)


def test_a_callback_cannot_close_the_batcher() -> None:
    """The callback runs on a thread that `close` waits for."""
    refused: list[bool] = []

    def end(_: Any) -> None:
        with pytest.raises(
            CompiledModelError, match=r"because closing waits for the callback. Close it from ano"
        ):
            batcher.close()
        refused.append(True)

    with model_of(WHOLE) as model, Batcher(model, max_batch=2, max_delay_ms=300) as batcher:
        future = batcher.submit(row(0))  # waits for another one
        future.add_done_callback(end)
        future.result(timeout=10)
        np.testing.assert_array_equal(batcher(row(1)), -np.abs(row(1)))
    assert refused == [True]


def test_several_inputs_and_outputs_by_name() -> None:
    writer = ModelWriter()
    a, b = writer.input(ROW, name="a"), writer.input(ROW, name="b")
    writer.output(writer.op("SUB", [a, b], [ROW]), writer.op("MUL", [a, b], [ROW]))
    with CompiledModel.from_buffer(writer.build()) as model, Batcher(model, 4) as batcher:
        futures = [batcher.submit(row(n), b=row(n + 9)) for n in range(4)]
        for n, future in enumerate(futures):
            found = future.result()
            for key, want in model(row(n), row(n + 9)).items():
                np.testing.assert_array_equal(found[key], want)
        with pytest.raises(CompiledModelError, match=r"has \[1, 2\] rows. Give all inputs"):
            batcher.submit(row(0), row(1, 2))


def test_await() -> None:
    with model_of(WHOLE) as model, Batcher(model, 4) as batcher:

        async def one(seed: int) -> Any:
            return await batcher.submit(row(seed))

        async def many() -> list[Any]:
            return list(await asyncio.gather(*map(one, range(10))))

        for seed, found in enumerate(asyncio.run(many())):
            np.testing.assert_array_equal(found, -np.abs(row(seed)))


def test_what_makes_no_sense() -> None:
    with model_of(WHOLE) as model:
        for wrong in (0, -1, 2.5):
            with pytest.raises(CompiledModelError, match=r"max_batch is .*. Use a number from 1"):
                Batcher(model, max_batch=wrong)  # type: ignore[arg-type]
        for delay in (-1, float("inf"), float("nan"), None, "1"):
            with pytest.raises(CompiledModelError, match=r"max_delay_ms is .*. Use 0 or more"):
                Batcher(model, max_delay_ms=delay)  # type: ignore[arg-type]
        with pytest.raises(CompiledModelError, match=r"batch_sizes has 9. Use numbers from 1 to"):
            Batcher(model, max_batch=8, batch_sizes=(1, 9))
        with pytest.raises(CompiledModelError, match=r"batch_sizes is 3. Use several numbers, as"):
            Batcher(model, batch_sizes=3)  # type: ignore[arg-type]
        with pytest.raises(CompiledModelError, match=r"size of batch_sizes is 0. Use a number fr"):
            Batcher(model, batch_sizes=[0])
        with pytest.raises(
            CompiledModelError, match=r"A str is no CompiledModel. Create one from a"
        ):
            Batcher("model.tflite")  # type: ignore[arg-type]
        for rows in (0, "2", True, None):
            with pytest.raises(CompiledModelError, match=r"rows is .*. Use a number from 1 on"):
                model.at_batch(rows)  # type: ignore[arg-type]
        with pytest.raises(CompiledModelError, match=r"contexts is 0. Use a number from 1 on"):
            model.at_batch(2, contexts=0)
        with model.at_batch(np.int64(2), contexts=np.int64(1)) as two:  # type: ignore[arg-type]
            assert two.signature.inputs[0].shape[0] == 2


def reduced(shape: tuple[int, ...], keep: bool) -> bytes:
    """Return a model whose result is the mean of all rows."""
    writer = ModelWriter()
    x = writer.input(ROW)
    axes = writer.constant(np.array([0], np.int32))
    writer.output(writer.op("MEAN", [x, axes], [shape], options={"keep_dims": keep}))
    return writer.build()


def test_models_whose_rows_are_no_rows() -> None:
    mixed = ModelWriter()
    x = mixed.input(ROW)
    mean = mixed.op("MEAN", [x, mixed.constant(np.array([0], np.int32))], [(4, 4, 4)])
    mixed.output(mixed.op("SUB", [x, mean], [ROW]))
    for content, message in (
        (mixed.build(), r"depends on the other rows of its batch"),
        (
            reduced(ROW, keep=True),
            r"for a batch of 2: its first dimension is not that of the inputs",
        ),
        (
            reduced((), keep=False),
            r"Node 0, MEAN, does not support another batch size: it computes \[\]",
        ),
    ):
        model = CompiledModel.from_buffer(content)
        with model, pytest.raises(CompiledModelError, match=message):
            Batcher(model, max_batch=2)


def test_a_model_with_rows_in_its_constants() -> None:
    with (
        CompiledModel.from_file("zoo:mobilenet_v1_0.25_128") as model,
        Batcher(model, max_batch=2, max_delay_ms=50, batch_sizes=(2,)) as batcher,
    ):
        pictures = [np.random.default_rng(n).normal(size=(1, 128, 128, 3)) for n in range(2)]
        futures = [batcher.submit(picture) for picture in pictures]
        for picture, future in zip(pictures, futures, strict=True):
            np.testing.assert_allclose(future.result(), model(picture), rtol=1e-3)


PROGRAM = """
import sys, numpy as np
from litegpu import Batcher, CompiledModel
from small_models import chain
model = CompiledModel.from_buffer(chain(["ABS"]))
batcher = Batcher(model, max_batch=4, max_delay_ms=20)
future = batcher.submit(np.full((1, 4, 4, 4), -2, np.float32))
future.add_done_callback(lambda done: print(float(done.result().sum()), flush=True))
if sys.argv[1] == "fails":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("way", "status"), [("ends", 0), ("fails", 3)])
def test_a_program_that_just_ends_gets_its_answers(way: str, status: int) -> None:
    command = [sys.executable, "-c", PROGRAM, way]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.stdout, done.returncode) == ("128.0\n", status), done.stderr
