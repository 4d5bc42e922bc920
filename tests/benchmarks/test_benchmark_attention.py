"""Attention by all kinds of tiles, as the benchmark times it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_modules import load_benchmark
from cuda_emulator import EmulatedBackend, needs_emulator
from litegpu import backends
from litegpu.runtime_abi import kernel_slots


@needs_emulator
def test_tiles_of_a_layer_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_benchmark("attention", monkeypatch)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    kernels: list[str] = []

    def chain(target: Any, last: int) -> float:
        assert last == 1
        (detail,) = target.get_input_details()
        noise = np.random.default_rng(1).normal(size=detail["shape"]).astype(np.float32)
        target.set_tensor(detail["index"], noise)
        target.invoke()
        compiled: Any = kernel_slots.kernels()[-1]
        kernels.append(compiled.compiled.program.launches[-1].kernel)
        return 7.0

    monkeypatch.setattr(module, "chain_microseconds", chain)
    layers = {"several": module.Layer(1, 2, 5, 40, 12), "one": module.Layer(2, 1, 9, 9, 4)}
    out = tmp_path / "attention.json"
    module.Measurement(out, layers).run(1e9)
    found = json.loads(out.read_text(encoding="utf-8"))["layers"]
    for rows in found.values():
        assert rows[0]["error"] == 0.0 and max(row["error"] for row in rows) < 1e-5
        assert [row["tile"] for row in rows].count(None) == 1
    assert len(found["several"]) > len(found["one"]) >= 3
    assert sum("attention_mma" in name for name in kernels) == len(kernels) - 2
    assert capsys.readouterr().out.count("7.00 us") == len(kernels)


def test_nothing_begins_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_benchmark("attention", monkeypatch)
    out = tmp_path / "attention.json"
    module.Measurement(out).run(-1.0)
    assert not out.exists()


def test_the_best_tiles_and_all_kinds_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_benchmark("attention", monkeypatch)
    problem = module.AttentionProblem(3, 197, 197, 64, 64, 512, split=True)
    tiles = module.contenders(problem)
    clocks = [tile.clocks(module.PAPER) for tile in module.candidates(problem, module.PAPER)]
    assert [tile.clocks(module.PAPER) for tile in tiles[:3]] == sorted(clocks)[:3]
    assert {(tile.queries, tile.once) for tile in tiles} == {
        (queries, once) for queries in (8, 16) for once in (False, True)
    }
