"""Interpreters of one process with the same model share one executable."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_backend import present
from litegpu import GpuDelegate
from litegpu.cache import improving, sharing
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.errors import CompilationError
from litegpu.zoo.writer import ModelWriter
from small_models import RUNTIME, chain, interpreter, random, reference, run, times

MODEL = chain(["ABS", "SQRT", "NEG"])


def multiplied(factor: float) -> bytes:
    writer = ModelWriter()
    x, factors = writer.input((1, 4)), writer.constant(np.full((1, 4), factor, np.float32))
    writer.output(times(writer, x, factors, "product"))
    return writer.build()


@pytest.fixture(params=[True, False], ids=["cache", "none"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param else None


def start(folder: Path | None, backend: str, model: bytes = MODEL, **options: Any) -> Any:
    cached = {"cache": True, "serialization_dir": folder} if folder else {"cache": False}
    gpu = GpuDelegate(backend=backend, **cached, **options)
    return gpu, interpreter(model, gpu)


def executable(gpu: GpuDelegate) -> Any:
    (kernel,) = gpu._living()
    return kernel.compiled.executable


@pytest.mark.parametrize("first", [0, 1])
def test_equal_models_share_one_executable(backend: str, first: int, folder: Path | None) -> None:
    pairs = [start(folder, backend) for _ in range(2)]
    assert executable(pairs[0][0]) is executable(pairs[1][0])
    x = random(1, 4, 4, 4)
    (expected,) = reference(MODEL, x)
    for _, target in pairs:
        np.testing.assert_allclose(run(target, x)[0], expected, rtol=1e-6)
    gone, living = pairs[first], pairs[1 - first]
    gone[0].close()
    gone[0].close()
    np.testing.assert_allclose(run(living[1], x)[0], expected, rtol=1e-6)
    again = start(folder, backend)
    assert executable(again[0]) is executable(living[0])
    shared = executable(living[0])
    living[0].close()
    again[0].close()
    assert shared._closed
    last = start(folder, backend)
    assert executable(last[0]) is not shared
    np.testing.assert_allclose(run(last[1], x)[0], expected, rtol=1e-6)


def test_others_do_not(backend: str, folder: Path | None) -> None:
    one = start(folder, backend)
    for other in (
        start(folder, backend, precision="fp16"),
        start(folder, backend, chain(["ABS", "SQRT", "ABS"])),
        start(folder, backend, chain(["ABS", "SQRT", "NEG"], (2, 4, 4, 4))),
    ):
        assert executable(other[0]) is not executable(one[0])


def test_what_nobody_holds_is_forgotten(backend: str, folder: Path | None) -> None:
    gc.collect()
    before = len(sharing._running)
    pairs = [start(folder, backend) for _ in range(2)]
    assert len(sharing._running) == before + 1
    improving.wait_for(executable(pairs[0][0]))  # the compiling thread holds it for a moment
    del pairs
    gc.collect()
    assert len(sharing._running) == before


def test_a_file_that_is_overwritten_while_its_model_runs(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    models = [multiplied(factor) for factor in (2, 3)]
    assert len(models[0]) == len(models[1])
    x = random(1, 4)
    living = []
    for model, factor in zip(models, (2, 3), strict=True):
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(model)  # in place: whoever has mapped the file sees it
        gpu = GpuDelegate(backend=backend, cache=False)
        target = RUNTIME.Interpreter(model_path=str(path), experimental_delegates=[gpu])
        target.allocate_tensors()
        living.append((gpu, target))
        np.testing.assert_allclose(run(target, x)[0], factor * x, rtol=1e-6)
    assert executable(living[0][0]) is not executable(living[1][0])


def test_who_starts_together_shares(backend: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        pairs = list(threads.map(lambda _: start(None, backend), range(4)))
    assert len({id(executable(gpu)) for gpu, _ in pairs}) == 1
    x = random(1, 4, 4, 4)
    (expected,) = reference(MODEL, x)
    with ThreadPoolExecutor(4) as threads:
        for (found,) in threads.map(lambda pair: run(pair[1], x), pairs):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_start_that_fails_keeps_no_other_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise CompilationError("the first one")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionKernel, "_compile_graph", failing)
        gpu, _ = start(None, present()[0])
        assert not gpu._living()
    gpu, _ = start(None, present()[0])
    assert executable(gpu)
