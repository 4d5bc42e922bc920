"""The script that times starts: what one measures, and the table."""

from __future__ import annotations

import compileall
import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import litegpu
from benchmark_modules import load_benchmark

SMALL = "zoo:mobilenet_v1_0.25_128?size=32"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("creation", monkeypatch)


def test_a_second_start_is_warm_and_the_same(script: Any, tmp_path: Path) -> None:
    starts = [script.in_this_process("opencl", SMALL, "fp32", str(tmp_path)) for _ in range(2)]
    assert starts[0].digest == starts[1].digest
    assert all(min(each.first_use, each.plain, each.creation) > 0 for each in starts)
    assert list(tmp_path.glob("creation-*.artifact"))
    cold, warm = (each.phases for each in starts)
    assert {"passes", "choose", "render", "pack", "first run", "write file"} <= cold.keys()
    assert {"read file", "check", "build, load, upload", "first run"} <= warm.keys()
    assert not {"passes", "choose", "render", "write file"} & warm.keys()
    assert all(0 < sum(each.phases.values()) < each.creation for each in starts)


def test_better_code_must_give_the_same(script: Any) -> None:
    start = script.Start(0.25, 0.125, 1.0, "one", {}, 0.002, 0.5, 0.001, "one")
    other = dataclasses.replace(start, best_digest="other")
    rows = [script.Row("cuda", "", SMALL, "fp32", cold, (start,)) for cold in (start, other)]
    assert [row.is_same for row in rows] == [True, False]


def test_what_does_not_run_on_the_device_is_an_error(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not run on the device"):
        delegate = script.GpuDelegate
        script.GpuDelegate = lambda **options: delegate(**options, first_delegate_node_index=999)
        script.in_this_process("opencl", SMALL, "fp32", str(tmp_path))


def test_the_results_are_written_after_each_row(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([4.0, 0.5, 0.25, 1.0])

    def started(*_: str, **__: str) -> Any:
        phases = {"passes": 0.0625}
        later = (0.002, 0.5, 0.001, "digest")
        return script.Start(0.25, 0.125, next(times), "digest", phases, *later)

    monkeypatch.setattr(script, "in_a_process", started)
    monkeypatch.setattr(script, "compile_once", lambda: None)
    path = tmp_path / "creation.json"
    flags = ["--backends", "opencl", "--models", SMALL, "--precisions", "fp32", "--rounds", "3"]
    flags.append("--phases")
    monkeypatch.setattr(sys, "argv", ["creation.py", *flags, "--output", str(path)])
    script.main()
    out = capsys.readouterr().out
    times_shown = "250 | 125 | 4000 | 500 | 12.5% | True | 2.00 | 1.00 | 500.00"
    assert f"| opencl | {SMALL} | fp32 | {times_shown} |" in out
    assert "\n  cold 4000: passes 62.5\n  warm 1000: passes 62.5\n" in out
    found = json.loads(path.read_text())
    (row,) = found["rows"]
    assert row["warm_seconds"] == 0.5 and row["same"] and len(row["warm"]) == 3
    assert 0 < found["import_seconds"] < 5


def test_processes_are_compared_with_one(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[bool] = []

    def started(*arguments: Any, **_: Any) -> Any:
        kinds.append(arguments[4:] == (True,))
        kind = str(kinds[-1])
        return script.Start(0.25, 0.125, 1.0, kind, {}, 0.002, 0.5, 0.001, kind)

    device = script.list_devices()[0]
    devices = [dataclasses.replace(device, backend="cuda"), device]
    monkeypatch.setattr(script, "list_devices", lambda: devices)
    monkeypatch.setattr(script, "in_a_process", started)
    row = script.measure("cuda", SMALL, "fp32", 2, alone=True)
    assert kinds == [False, False, False, True]
    assert len(row.phase_lines()) == 3 and not row.is_same
    assert script.measure(device.backend, SMALL, "fp32", 1).alone is None


def test_drivers_keep_theirs_where_they_may(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    def done(_command: Any, env: dict[str, str], **_: Any) -> Any:
        given.append(env)
        later = {"first_invoke": 1, "best_after": 0, "best_invoke": 1, "best_digest": ""}
        start = {"first_use": 1, "plain": 1, "creation": 1, "digest": "", "phases": {}, **later}
        return types.SimpleNamespace(returncode=0, stdout=json.dumps(start))

    monkeypatch.setattr(script.subprocess, "run", done)
    for cached in (False, True):
        script.measure("opencl", SMALL, "fp32", 2, cached=cached)
    off, on = given[:3], given[3:]
    assert {each["CUDA_CACHE_DISABLE"] for each in off} == {"1"}
    assert len({each["POCL_CACHE_DIR"] for each in off}) == 3, "a new one for each"
    assert {each["CUDA_CACHE_DISABLE"] for each in on} == {"0"}
    assert len({each["CUDA_CACHE_PATH"] for each in on}) == 1, "all share one"


def test_python_keeps_what_it_compiles(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(
        script.subprocess, "run", lambda command, env, check: found.append((command, env))
    )
    script.compile_once()
    ((command, environment),) = found
    assert "PYTHONDONTWRITEBYTECODE" not in environment and "PATH" in environment
    names = {"litegpu": litegpu, "compileall": compileall}
    with monkeypatch.context() as patch:
        patch.setattr(compileall, "compile_dir", lambda *_, **__: None)
        patch.setattr(importlib.import_module("litegpu.codegen.render"), "compile_templates", int)
        exec(command[2], names)


def test_a_process_that_fails_is_told(script: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)nothing\.tflite on opencl: .*No model"):
        script.in_a_process("opencl", "nothing.tflite", "fp32", str(tmp_path))
