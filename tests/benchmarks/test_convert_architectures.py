"""The script that tries converted models: what it runs, and the page that it writes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_modules import load_benchmark
from litegpu.zoo.writer import ModelWriter
from small_models import classifier

PLACES = [(b, p) for b in ("opencl", "webgpu") for p in ("fp32", "fp16")]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load_benchmark("convert_architectures", monkeypatch)
    for name in module.NO_DRIVER_CACHES:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # main() sets them, for this process
    return module


@pytest.fixture
def trial(script: Any) -> Any:
    return script.Trial(9, 9, 1, 5, 0.5, 1e-6, 0.0, (), "A GPU", "0123456789ab")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("bert", "swin"):
        (folder / f"{name}.tflite").touch()
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return the file of a model of pictures, with its input next to it."""
    path = tmp_path / "classifier.tflite"
    path.write_bytes(classifier())
    picture = np.random.default_rng(0).standard_normal((1, 128, 128, 3)).astype(np.float32)
    np.savez(path.with_suffix(".npz"), picture)
    return path


def fake_processes(
    script: Any, monkeypatch: pytest.MonkeyPatch, result: Callable[..., tuple[str, str] | None]
) -> list[Sequence[str]]:
    """Replace the script's processes; return the arguments that they get."""
    requested: list[Sequence[str]] = []

    def alone(_limit: float, _deadline: float, arguments: Sequence[str]) -> Any:
        requested.append(arguments)
        return result(*arguments)

    monkeypatch.setattr(script, "_alone", alone)
    return requested


def test_a_whole_model_is_accurate_at_each_precision(script: Any, pictures: Path) -> None:
    for precision in script.TOLERANCES:
        found = script.attempt(pictures, "opencl", precision)
        assert found.whole and found.kernels and found.seconds > 0 and found.device
        assert found.reasons == () and found.differing == 0
        assert found.error <= script.TOLERANCES[precision]


def test_errors_are_of_floats_and_shares_of_other_elements(script: Any) -> None:
    floats = np.array([3, 4], np.float32)
    assert script.errors([floats], [floats]) == (0, 0)
    assert script.errors([floats], [np.array([3, 9], np.float32)]) == (1, 0)
    assert script.errors([np.arange(4)], [np.array([0, 1, 2, 0])]) == (0, 0.25)
    assert script.errors([np.zeros((0, 2), np.int32)], [np.zeros((0, 2), np.int32)]) == (0, 0)
    error, _ = script.errors([floats, floats], [floats * math.nan, floats])
    assert math.isnan(error)
    with pytest.raises(SystemExit, match=r"ValueError: The CPU's result is not finite\."):
        script.errors([floats * math.inf], [floats])


def test_the_spread_is_of_default_kernels_and_of_inputs_one_ulp_away(
    script: Any, pictures: Path
) -> None:
    found = script.spread(pictures)
    for error, differing in (found.kernels, found.inputs):
        assert 0 < error < 1e-5 and differing == 0
    assert script.spread(pictures) == found


def test_the_spread_of_words_is_only_of_kernels(script: Any, tmp_path: Path) -> None:
    writer = ModelWriter()
    words = writer.input((1, 4), "int32")
    writer.output(writer.op("ABS", [words], [words.shape], dtype="int32"))
    path = tmp_path / "words.tflite"
    path.write_bytes(writer.build())
    np.savez(path.with_suffix(".npz"), np.arange(4, dtype=np.int32)[None])
    assert script.spread(path) == script.Spread((0, 0), None)


def test_floats_change_by_one_ulp_in_both_directions(script: Any) -> None:
    floats, words = np.ones(64, np.float32), np.arange(4)
    changed, same = script.one_ulp_away([floats, words])
    assert set(changed.tolist()) == {1 - 2**-24, 1 + 2**-23} and changed.dtype == np.float32
    assert same is words


def test_architectures_are_tried_in_the_order_of_the_patterns(script: Any) -> None:
    names = script.parse(["--only", "yolo[v1]*", "bert", "*"]).names
    assert names[:3] == ["yolov8", "yolo11", "bert"]
    assert len(names) == len(set(names)) == len(script.parse([]).names)
    with pytest.raises(SystemExit):
        script.parse(["--only", "nothing"])


def test_each_backend_and_precision_is_a_trial_of_its_own(
    script: Any, trial: Any, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(flag: str, _path: str, backend: str = "", precision: str = "") -> tuple[str, str]:
        if flag == "--spread":
            return json.dumps(asdict(script.Spread((1e-7, 0.0), (2e-7, 0.0)))), ""
        failed = (backend, precision) == ("webgpu", "fp16")
        return ("", "DeviceError: lost") if failed else (json.dumps(asdict(trial)), "")

    requested = fake_processes(script, monkeypatch, result)
    file = tmp_path / "trials.json"
    arguments = ["--only", "swin", "--models", str(models), "--json", str(file), "--jobs", "2"]
    arguments += ["--backend", "opencl", "webgpu"]
    script.main(arguments)
    assert requested[0] == ("--spread", str(models / "swin.tflite"))
    assert sorted(tuple(each[2:]) for each in requested[1:]) == sorted(PLACES)
    results = json.loads(file.read_text("utf-8"))
    assert results["spreads"]["swin"] == {"kernels": [1e-7, 0.0], "inputs": [2e-7, 0.0]}
    swin = results["models"]["swin"]
    assert swin["opencl"]["fp16"]["nodes"] == 9
    assert swin["webgpu"]["fp16"] == "failed: DeviceError: lost"
    requested.clear()
    script.main(arguments)  # only what failed is tried again
    assert [each[2:] for each in requested] == [("webgpu", "fp16")]


def test_the_cpu_is_compared_once_without_backends(
    script: Any, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads = {"bert": script.Spread((1e-7, 0.0), None)}

    def result(_flag: str, path: str) -> tuple[str, str]:
        found = spreads.get(Path(path).stem)
        return (json.dumps(asdict(found)), "") if found else ("", "ModelError: no kernel")

    requested = fake_processes(script, monkeypatch, result)
    file = tmp_path / "trials.json"
    arguments = ["--only", "bert", "swin", "--models", str(models), "--json", str(file)]
    script.main([*arguments, "--cpu-only"])
    assert [each[0] for each in requested] == ["--spread", "--spread"]
    assert script._read(file) == ({}, spreads)
    requested.clear()
    script.main([*arguments, "--cpu-only"])  # only what failed is compared again
    assert requested == [("--spread", str(models / "swin.tflite"))]


def test_models_are_converted_before_they_are_tried(
    script: Any, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = fake_processes(script, monkeypatch, lambda *_: ("", "ValueError: no kernel"))
    script.main(["--only", "gpt2", "swin", "--models", str(models), "--convert-only"])
    assert requested == [("--convert", "gpt2", str(models / "gpt2.tflite"))]
    assert "not converted: ValueError: no kernel" in capsys.readouterr().out


def test_no_process_starts_after_the_time_and_none_is_a_result_that_it_ends(
    script: Any, monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trials.json"
    arguments = ["--only", "swin", "--models", str(models), "--json", str(file)]
    requested = fake_processes(script, monkeypatch, lambda *_: None)
    script.main(arguments)
    assert len(requested) == 2 and not file.exists()
    monkeypatch.undo()
    script.main([*arguments, "--minutes", "0"])
    assert not file.exists()


def test_a_process_has_a_limit_and_says_why_it_failed(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    monkeypatch.setattr(script, "__file__", str(program))
    program.write_text("print('before'); print('{}')", "utf-8")
    assert script._alone(60, math.inf, ()) == ("{}", "")
    program.write_text("raise ValueError('bad')", "utf-8")
    assert script._alone(60, math.inf, ()) == ("", "ValueError: bad")
    program.write_text("raise SystemExit(3)", "utf-8")
    assert script._alone(60, math.inf, ()) == ("", "The process ended with 3.")
    program.write_text("import time; time.sleep(60)", "utf-8")
    assert script._alone(0.2, math.inf, ()) == ("", "It took more than 0.2 seconds.")
    assert script._alone(60, script.time.monotonic() + 0.2, ()) is None


def test_the_page_marks_what_is_not_whole_or_inaccurate(
    script: Any, trial: Any, tmp_path: Path
) -> None:
    found = {
        ("cuda", "fp32"): replace(trial, error=2e-5),
        ("cuda", "fp16"): replace(trial, error=4e-3),
        ("opencl", "fp32"): replace(trial, delegated=7, partitions=2),
        ("opencl", "fp16"): replace(trial, differing=0.25),
        ("webgpu", "fp32"): replace(trial, error=math.nan),
        ("webgpu", "fp16"): "failed: lost",
        ("opengl", "fp32"): trial,
    }
    row = script.backends_row("swin", found, None)
    assert row == [
        *("swin", "**2.0e-05** / 4.0e-03"),
        "**7 of 9 nodes in 2 partitions, 1.0e-06** / **2.5e-01**",
        *("**nan** / **failed: lost**", "1.0e-06", "", "", "A GPU", "0123456789ab"),
    ]
    assert script.backends_row("swin", "not converted: reason", None) is None
    first = script.row("swin", found, "cuda")
    assert first[1:8] == ["9", "9", "1", "5", "2.0e-05", "4.0e-03", "0.5"]
    assert script.row("swin", found, "webgpu")[8] == "failed: lost"
    assert script.row("swin", {}, "cuda") is None
    page = tmp_path / "page.md"
    script.write_page(page, "Text.", [first, script.row("bert", found, "opencl")], [row])
    text = page.read_text("utf-8")
    assert "2 architectures, 2 tried, 1 whole in one partition." in text
    assert "accurate: cuda 0 of 1, opencl 0 of 1, webgpu 0 of 1, opengl 1 of 1." in text


def test_an_error_within_the_spread_of_the_cpu_does_not_stand_out(script: Any, trial: Any) -> None:
    found = {
        ("cuda", "fp32"): replace(trial, error=1.9e-4),
        ("cuda", "fp16"): replace(trial, error=2.1e-4),
        ("opencl", "fp32"): replace(trial, error=2.1e-4),
        ("opencl", "fp16"): replace(trial, error=6e-3),
        ("webgpu", "fp32"): replace(trial, differing=0.5),
        ("webgpu", "fp16"): replace(trial, differing=0.52),
        ("opengl", "fp32"): replace(trial, error=math.nan),
        ("opengl", "fp16"): replace(trial, delegated=7, error=1e-7),
    }
    row = script.backends_row("swin", found, script.Spread((3e-5, 0.25), (1e-4, 0.0)))
    assert row[1:7] == [
        *("1.9e-04 / 2.1e-04", "**2.1e-04** / **6.0e-03**", "5.0e-01 / **5.2e-01**"),
        *("**nan** / **7 of 9 nodes in 1 partitions, 1.0e-07**", "2.5e-01", "1.0e-04"),
    ]
    row = script.backends_row("swin", found, script.Spread((1e-4, 0.0), None))
    assert row[1] == "1.9e-04 / 2.1e-04" and row[5:7] == ["1.0e-04", ""]


def test_a_page_has_rows_of_earlier_runs(script: Any, trial: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    found = {(backend, "fp32"): trial for backend in ("cuda", "opencl")}
    rows = [script.row(name, found, "cuda") for name in ("swin", "bert")]
    script.write_page(page, "Text.", rows, [script.backends_row("swin", found, None)])
    better = replace(trial, error=2e-7)
    script.write_page(page, "Text.", [script.row("swin", {("cuda", "fp32"): better}, "cuda")], [])
    lines = [line.split()[1:4] for line in page.read_text("utf-8").splitlines() if "|" in line]
    assert [line[0] for line in lines if line[0] in ("swin", "bert")] == ["swin", "bert", "swin"]
    assert page.read_text("utf-8").count("2.0e-07") == 1
