"""Engines: distribution of samples, order of results, failing samples, lost workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_jobs
import paper_device
import small_models
from engine_jobs import MODEL, expected, job, summary
from litegpu import zoo
from litegpu.backends import DeviceInfo
from litegpu.errors import ModelError, OptionsError, WorkerError
from litegpu.tools import engines
from litegpu.tools.engines.ahead import ahead
from litegpu.tools.engines.batching import rewritten
from litegpu.tools.engines.places import places
from litegpu.zoo.writer import ModelWriter, Shape, TensorRef
from small_models import chain, step

LOCAL = engines.Settings(decode_threads=2)
TWO = engines.Settings(workers=2, decode_threads=2)


def run(work: Any, count: int, settings: engines.Settings) -> list[Any]:
    started = engines.start(work, engines.chunks(range(count), work.plan), settings)
    return list(summary(started.meter.watch(started.results)))


# Plans


def model(build: Callable[[ModelWriter, TensorRef], TensorRef], shape: Shape = (1, 4)) -> bytes:
    writer = ModelWriter()
    writer.output(build(writer, writer.input(shape)))
    return writer.build()


def reshape(writer: ModelWriter, x: TensorRef, *shape: int) -> TensorRef:
    return writer.op("RESHAPE", [x, writer.constant(np.array(shape, np.int32))], [shape])


def softmax_over_samples(writer: ModelWriter, x: TensorRef) -> TensorRef:
    order = writer.constant(np.array([1, 0], np.int32))
    turned = writer.op("TRANSPOSE", [x, order], [(4, 1)])
    soft = writer.op("SOFTMAX", [turned], [(4, 1)], options={"beta": 1.0})
    return writer.op("TRANSPOSE", [soft, order], [(1, 4)])


def test_a_model_takes_batches_where_it_can_be_resized() -> None:
    plan = engines.plan(zoo.load("zoo:mobilenet_v1_0.25_128"))
    assert (plan.batch, plan.batched, plan.why_single) == (16, True, "")
    assert [each.shape for each in plan.inputs] == [(128, 128, 3)]
    assert [each.shape for each in plan.outputs] == [(1001,)]
    assert engines.plan(MODEL, 5).batch == 5


def with_a_constant(writer: ModelWriter, x: TensorRef) -> TensorRef:
    constant = writer.constant(np.ones((1, 2), np.float32))
    return writer.op("CONCATENATION", [x, constant], [(1, 6)], options={"axis": 1})


def windows(writer: ModelWriter, x: TensorRef) -> TensorRef:
    """Return x in two rows, their middle, and all of it once more in one row."""
    rows = reshape(writer, x, 2, 2)
    sizes = [writer.constant(np.array(each, np.int32)) for each in ((0, 1), (2, 1))]
    column = writer.op("SLICE", [rows, *sizes], [(2, 1)])
    return reshape(writer, column, 1, 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda writer, x: reshape(writer, x, 1, 2, 2),
        lambda writer, x: reshape(writer, reshape(writer, x, 4), 1, 4),
        windows,
    ],
    ids=["one sample", "flat", "slice"],
)
def test_shapes_that_are_written_in_the_file_allow_batches(
    build: Callable[[ModelWriter, TensorRef], TensorRef],
) -> None:
    content = model(build)
    plan = engines.plan(content, 5)
    assert (plan.batch, plan.batched, plan.why_single) == (5, True, "")
    assert plan.model != content
    inputs = np.arange(20, dtype=np.float32).reshape(5, 4)
    target = engine_jobs.on_cpu(plan.model, engines.Place())
    target.allocate_tensors()
    alone = [small_models.reference(content, row[None])[0][0] for row in inputs]
    np.testing.assert_array_equal(small_models.run(target, inputs)[0], alone)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (softmax_over_samples, "samples of a batch then change each other's results"),
        (with_a_constant, "failed to prepare"),
    ],
)
def test_a_model_that_cannot_be_resized_takes_one_sample_at_once(
    build: Callable[[ModelWriter, TensorRef], TensorRef], why: str
) -> None:
    content = model(build)
    plan = engines.plan(content)
    assert (plan.batch, plan.batched, plan.model) == (1, True, content)
    assert why in plan.why_single
    with pytest.raises(ModelError, match=r"batch=8: .*Leave --batch out, or use --batch=1\."):
        engines.plan(content, 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (small_models.with_subgraphs(MODEL, MODEL), "several graphs"),
        (b"no model", "shapes cannot be changed"),
    ],
)
def test_files_that_cannot_be_changed(content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        rewritten(content, 1, 2)


def test_a_model_without_a_common_first_dimension_takes_whole_tensors() -> None:
    content = model(lambda writer, x: reshape(writer, x, 2, 2))
    plan = engines.plan(content)
    assert (plan.batch, plan.batched) == (1, False)
    assert (plan.inputs[0].shape, plan.outputs[0].shape) == ((1, 4), (2, 2))
    with pytest.raises(ModelError, match="differ in the first dimension"):
        engines.plan(content, 2)


def test_a_model_with_a_batch_of_its_own_keeps_it() -> None:
    writer = ModelWriter()
    x = writer.input((4, 3))
    writer.output(reshape(writer, step(writer, "ABS", x), 4, 3))
    plan = engines.plan(writer.build())
    assert (plan.batch, plan.batched, plan.inputs[0].shape) == (4, True, (3,))


def test_chunks_are_whole_batches_of_bounded_memory() -> None:
    plan = engines.plan(MODEL, 5)
    assert engines.chunk_size(plan) == 65
    assert [len(each) for each in engines.chunks(range(150), plan)] == [65, 65, 20]
    large = engines.plan(chain(["ABS"], (1, 1024, 1024, 4)), 1)
    assert engines.chunk_size(large) == 2


# Results


def test_results_come_in_order_and_failing_samples_fail_alone() -> None:
    assert run(job(), 150, LOCAL) == expected(150)
    assert run(job(batch=1), 9, LOCAL) == expected(9)
    assert run(job(), 0, LOCAL) == []


def test_two_workers_return_what_one_does(tmp_path: Path) -> None:
    """One of them is lost in the middle."""
    marker = tmp_path / "killed"
    assert run(job(engine_jobs.once_killed(marker)), 300, TWO) == expected(300)
    assert marker.exists()


def test_samples_that_take_every_worker_with_them_are_named() -> None:
    with pytest.raises(WorkerError, match=r"3 workers were lost \(signal 9\) .* from 0 to 63\."):
        run(job(engine_jobs.kill_worker), 130, TWO)


def refuse(_: bytes, __: engines.Place) -> object:
    raise ModelError("this place has no room")


def crash(_: bytes, __: engines.Place) -> object:
    raise ZeroDivisionError("nothing to divide by")


@pytest.mark.parametrize("settings", [LOCAL, TWO], ids=["one worker", "two"])
def test_a_worker_that_cannot_begin_ends_the_run(settings: engines.Settings) -> None:
    with pytest.raises(ModelError, match="this place has no room"):
        run(job(open_model=refuse), 130, settings)


def test_a_worker_that_fails_is_a_typed_error() -> None:
    with pytest.raises(WorkerError, match="A worker failed: ZeroDivisionError: nothing to divide"):
        run(job(open_model=crash), 130, TWO)


def wrong_shape(_: int, plan: engines.BatchPlan) -> engines.Arrays:
    return [np.zeros((2, 2), np.float32)]


def test_inputs_of_another_shape_are_the_samples_own_fault() -> None:
    ((_, value, error),) = run(job(wrong_shape), 1, LOCAL)
    assert value is None
    assert "takes float32 of shape [3, 2], not float32 of shape [2, 2]" in error


def gather_model() -> bytes:
    writer = ModelWriter()
    index = writer.input((1,), "int32")
    table = writer.constant(np.arange(6, dtype=np.float32))
    writer.output(writer.op("GATHER", [table, index], [(1,)], options={"axis": 0}))
    return writer.build()


def as_index(item: int, _: engines.BatchPlan) -> engines.Arrays:
    return [np.array(item, np.int32)]


def first(_: int, outputs: engines.Arrays) -> float:
    return float(outputs[0])


def test_a_sample_that_the_model_refuses_leaves_its_batch_unharmed() -> None:
    content = gather_model()
    # noise is out of bounds of such a table, so this plan is written by hand
    numbers = engines.Tensor("i", (), np.dtype(np.int32)), engines.Tensor("o", (), np.dtype("f4"))
    plan = engines.BatchPlan(numbers[:1], numbers[1:], 4, True, content)
    work = engines.Job(plan, engine_jobs.on_cpu, as_index, first)
    found = run(work, 8, LOCAL)
    assert [each[1] for each in found] == [0, 1, 2, 3, 4, 5, None, None]
    assert "The model cannot run on these inputs" in found[6][2]


def test_stopping_early_ends_all_threads_and_processes() -> None:
    import multiprocessing

    for settings in (LOCAL, TWO):
        work = job(engine_jobs.slowly)
        started = engines.start(work, engines.chunks(range(1000), work.plan), settings)
        assert next(started.results).name == "0"
        started.results.close()
    assert not multiprocessing.active_children()
    assert not [each for each in threading.enumerate() if each.name.startswith("litegpu-decode")]


def test_decoding_goes_on_while_the_model_runs() -> None:
    work = job(engine_jobs.slowly, batch=8)
    started = engines.start(work, engines.chunks(range(64), work.plan), LOCAL)
    for _ in started.meter.watch(started.results):
        time.sleep(0.005)
    meter = started.meter
    decode, infer, write = meter.stages()
    assert (decode.samples, infer.samples, write.samples) == (64, 55, 64)
    assert decode.alone_s == pytest.approx(0.32, rel=0.5)
    assert write.busy_s == pytest.approx(0.32, rel=0.5)
    assert meter.failed == 9
    assert meter.wall_s < decode.alone_s + write.alone_s
    assert meter.overlap > 0.3
    assert meter.to_dict()["samples"] == 64


def test_the_meter_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    meter = engines.Meter(2, 4, 8.0, 1.0, 1.0, 0.5, 100, 90, 10, 100, wall_s=1.5)
    meter.print("image")
    assert capsys.readouterr().out == (
        "\n"
        "stage    workers   busy s   images/s by itself\n"
        "──────────────────────────────────────────────\n"
        "decode         8     8.00                100.0\n"
        "infer          2     2.00                 90.0\n"
        "write          1     0.50                200.0\n"
        "\n"
        "100 images in 1.50 s: 66.7 images/s. One stage after the other would take 2.50\n"
        "s: they overlap by 67% of what is possible.\n"
    )


def test_one_sample_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    engines.Meter(1, 1, 1.0, 1.0, 0.0, 0.0, 1, 1, 0, 1, wall_s=1.5).print()
    assert "\n1 sample in 1.50 s: 0.7 samples/s." in capsys.readouterr().out


def test_the_meter_says_where_the_rest_went(capsys: pytest.CaptureFixture[str]) -> None:
    engines.Meter(2, 1, 1.0, 1.0, 0.0, 0.0, 10, 10, 0, 10, wall_s=4.0).print()
    text = " ".join(capsys.readouterr().out.split())
    assert "The stages would take 1.00 s one after the other: the rest passed" in text


# Threads


def test_an_error_ahead_is_raised_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("second")

    with ahead(items(), 5) as received:
        assert next(received) == 1
        with pytest.raises(ValueError, match="second"):
            next(received)


def test_no_more_than_wanted_is_taken_ahead() -> None:
    result: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            result.append(number)
            yield number

    with ahead(items(), 3) as received:
        next(received)
        time.sleep(0.3)
        assert len(result) <= 6


# Places


def gpu(index: int, backend: str = "cuda", software: bool = False) -> DeviceInfo:
    return replace(paper_device.DEVICE, backend=backend, index=index, software=software)


@pytest.mark.parametrize(
    ("devices", "settings", "device", "found"),
    [
        ([gpu(0), gpu(1)], engines.Settings(), None, [("cuda", 0), ("cuda", 1)]),
        ([gpu(0), gpu(1), gpu(0, "opencl")], engines.Settings(workers=3), None, [0, 1, 0]),
        ([gpu(0), gpu(1)], engines.Settings(gpus_per_worker=0.5), None, [0, 1, 0, 1]),
        ([gpu(0), gpu(1)], engines.Settings(), 1, [None]),
        ([gpu(0)], engines.Settings(), None, [None]),
        ([gpu(0)], engines.Settings(gpus_per_worker=0.25), None, [None] * 4),
        ([gpu(0, software=True)], engines.Settings(gpus_per_worker=0.5), None, [None]),
        ([], engines.Settings(workers=2), None, [None, None]),
    ],
)
def test_each_gpu_gets_a_worker(
    devices: list[DeviceInfo],
    settings: engines.Settings,
    device: int | None,
    found: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("litegpu.backends.list_devices", lambda: devices)
    got = places(settings, None, device)
    assert [each.device for each in got] == [
        each[1] if isinstance(each, tuple) else each for each in found
    ]


def test_a_worker_of_several_gpus_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"--gpus_per_worker=2: a delegate uses one GPU"):
        places(engines.Settings(gpus_per_worker=2), None, None)
