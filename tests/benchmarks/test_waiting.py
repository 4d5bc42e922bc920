"""The benchmark of ways to wait and to stage: each does what it says, and computes the same."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_modules import load_benchmark
from cuda_emulator import needs_emulator
from fake_cuda import Status
from litegpu import CompiledModel
from simulated_cuda import SimulatedDriver, put_in_place
from small_models import chain

pytestmark = needs_emulator
SHAPE = (1, 2, 2, 4)
CONTENT = chain(["ABS"], SHAPE)
NEEDED = {
    "product": "cuCtxSetFlags",
    "block": "cuCtxSetFlags",
    "event": "cuEventSynchronize",
    "query": "cuStreamQuery",
    "query, yielding": "cuStreamQuery",
    "flag": "cuStreamWriteValue32",
    "flag, yielding": "cuStreamWriteValue32",
    "huge pages": "cuMemHostRegister",
    "lock kept": "cuGraphLaunch",
    "lock released": "cuGraphLaunch",
    "write-combined": "cuMemHostAlloc",
}
"""What a way calls."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDriver]:
    driver = put_in_place(monkeypatch)

    def write(_stream: int, address: int, value: int, _flags: int | None) -> tuple[Status]:
        ctypes.c_uint32.from_address(address).value = value
        return (Status.CUDA_SUCCESS,)

    def succeed(*_: Any) -> tuple[Status]:
        return (Status.CUDA_SUCCESS,)

    more = {"cuCtxSetFlags": succeed, "cuMemHostRegister": succeed, "cuStreamWriteValue32": write}
    for name, function in more.items():
        driver._own[name] = function
        setattr(driver, name, driver._named(name))
    yield driver
    gc.collect()


@pytest.mark.parametrize("way", NEEDED)
def test_a_way_computes_the_same(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    benchmark = load_benchmark("waiting", monkeypatch)
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    with benchmark.WAYS[way](), CompiledModel.from_buffer(CONTENT, backend="cuda") as model:
        for factor in (1, 2):
            np.testing.assert_array_equal(model(x * factor), np.abs(x * factor))
    assert NEEDED[way] in driver.calls


def test_figures(driver: SimulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, output = load_benchmark("waiting", monkeypatch), tmp_path / "waiting.json"
    model = tmp_path / "model.tflite"
    model.write_bytes(CONTENT)
    settings = [
        "--seconds=0.01",
        "--repeats=3",
        "--threads",
        "2",
        "--precision=fp32",
        f"--large={model}",
    ]
    ways = ["--way=product", "--way=flag, yielding", "--way=write-combined"]
    files = [f"--model={model}", f"--out={output}"]
    monkeypatch.setattr(sys, "argv", ["waiting.py", *files, *settings, *ways])
    benchmark.main()
    found = json.loads(output.read_text(encoding="utf-8"))
    steps = {each["call"]: each["keeps lock"] for each in found["steps"]["calls"]}
    assert steps["cuCtxPushCurrent"] and not steps["cuStreamSynchronize"]
    assert 0 < found["steps"]["lock held us"] <= found["steps"]["us"]
    assert [*found["ways"]] == ["product", "flag, yielding", "write-combined"]
    for figures in found["ways"].values():
        assert "error" not in figures
        assert all(each["us"] > 0 for each in figures["calls"].values())
        assert all(each["calls/s"] > 0 for each in figures["threads"].values())
    assert "large" in found["ways"]["product"] and "large" not in found["ways"]["flag, yielding"]


def test_what_a_driver_lacks(driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load_benchmark("waiting", monkeypatch)
    driver._own["cuCtxSetFlags"] = lambda _: (Status.CUDA_ERROR_INVALID_VALUE,)
    monkeypatch.setattr(benchmark, "resolve_model", lambda _: CONTENT)
    args = argparse.Namespace(model="", large="", seconds=0.01, threads=[1])
    found = benchmark.measure("spin", args, {"backend": "cuda"})
    assert [*found] == ["error"]
    assert "does not run all of the model" in found["error"]
    assert "cuCtxSetFlags returned" in found["error"]
