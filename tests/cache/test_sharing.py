"""Interpreters of one process with the same model: one executable, whoever goes first."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from litegpu import GpuDelegate
from litegpu.backends import list_devices
from litegpu.cache import sharing
from simulated_cuda import put_in_place
from small_models import chain, interpreter, random, reference, run

REAL = sorted({each.backend for each in list_devices()} - {"cuda"})
MODEL = chain(["ABS", "SQRT", "NEG"])


@pytest.fixture(params=[*REAL, pytest.param("cuda", marks=needs_emulator)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "cuda":
        put_in_place(monkeypatch)
    yield request.param
    gc.collect()


def start(folder: Path, backend: str, model: bytes = MODEL, **options: Any) -> Any:
    gpu = GpuDelegate(backend=backend, cache=True, serialization_dir=folder, **options)
    return gpu, interpreter(model, gpu)


def executable(gpu: GpuDelegate) -> Any:
    (kernel,) = gpu._living()
    return kernel.compiled.executable


@pytest.mark.parametrize("first", [0, 1])
def test_equal_models_share_one_executable(backend: str, first: int, tmp_path: Path) -> None:
    pairs = [start(tmp_path, backend) for _ in range(2)]
    assert executable(pairs[0][0]) is executable(pairs[1][0])
    x = random(1, 4, 4, 4)
    (expected,) = reference(MODEL, x)
    for _, target in pairs:
        np.testing.assert_allclose(run(target, x)[0], expected, rtol=1e-6)
    gone, living = pairs[first], pairs[1 - first]
    gone[0].close()
    gone[0].close()
    np.testing.assert_allclose(run(living[1], x)[0], expected, rtol=1e-6)
    again = start(tmp_path, backend)
    assert executable(again[0]) is executable(living[0])
    shared = executable(living[0])
    living[0].close()
    again[0].close()
    assert shared._closed
    last = start(tmp_path, backend)
    assert executable(last[0]) is not shared
    np.testing.assert_allclose(run(last[1], x)[0], expected, rtol=1e-6)


def test_others_do_not(backend: str, tmp_path: Path) -> None:
    one = start(tmp_path, backend)
    for other in (
        start(tmp_path, backend, precision="fp16"),
        start(tmp_path, backend, chain(["ABS", "SQRT", "ABS"])),
        start(tmp_path, backend, chain(["ABS", "SQRT", "NEG"], (2, 4, 4, 4))),
    ):
        assert executable(other[0]) is not executable(one[0])


def test_what_nobody_holds_is_forgotten(backend: str, tmp_path: Path) -> None:
    gc.collect()
    before = len(sharing._running)
    pairs = [start(tmp_path, backend) for _ in range(2)]
    assert len(sharing._running) == before + 1
    del pairs
    gc.collect()
    assert len(sharing._running) == before
