"""The benchmark of batches in chunks: every way computes the same, and moves its inputs its way."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

import pytest

from benchmark_modules import load_benchmark
from cuda_emulator import needs_emulator
from litegpu import CompiledModel
from simulated_cuda import put_in_place
from small_models import chain

SHAPE = (4, 256, 256, 4)


@needs_emulator
def test_ways_to_move_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, driver = load_benchmark("chunks", monkeypatch), put_in_place(monkeypatch)
    found = {}
    with contextlib.ExitStack() as opened:
        model = opened.enter_context(
            CompiledModel.from_buffer(chain(["ABS"], SHAPE), backend="cuda")
        )
        calls, different = benchmark.calls_of(model, [2, 3, 4], opened)
        for name, call in calls.items():
            before = len(driver.calls)
            call()
            found[name] = (driver.calls[before:].count("cuMemcpyAsync"), driver._ran)
    assert set(different.values()) == {0}
    copied, moved, read, one = (2, 1), (0, 3), (0, 1), (0, 1)
    whole = {"default": copied, "device": one, "copied": copied, "moved": moved, "read": read}
    halves = {"2 chunks copied": (4, 1), "2 chunks moved": moved, "2 chunks read": read}
    fourths = {"4 chunks copied": (8, 1), "4 chunks moved": moved, "4 chunks read": read}
    assert found == whole | halves | fourths, "copies, and kernels of the last graph"
    del model, calls
    gc.collect()


def test_each_way_has_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = "zoo:mobilenet_v1_0.25_128?size=32&batch=2", tmp_path / "chunks.json"
    benchmark = load_benchmark("chunks", monkeypatch)
    settings = ["--repeats=1", "--rounds=1", "--chunks=2", "--backend=opencl"]
    monkeypatch.setattr(
        sys, "argv", ["chunks.py", f"--model={model}", f"--out={output}", *settings]
    )
    benchmark.main()
    models = json.loads(output.read_text(encoding="utf-8"))["models"]
    assert [*models] == [model, f"{model}, pictures"]
    for figures in models.values():
        assert all(ms > 0 for ms in figures["ms"].values())
        assert max(figures["different"].values()) < 1e-2
    assert "2 chunks read" in capsys.readouterr().out
