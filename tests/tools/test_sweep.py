"""`litegpu benchmark --sweep`: its table, files and advice, and errors."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.host.children import Ended
from litegpu.options import GpuDelegateOptions, InferencePriority
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools import (
    benchmark_model,
    cli,
    sweep,
)
from litegpu.tools.flags import FlagParser
from litegpu.tools.registrar import changed_options
from litegpu.tools.sweep import runs as sweep_runs
from litegpu.tools.sweep.advice import GOALS, ranked, recommend
from litegpu.tools.sweep.runs import BUILTIN, CPU, Combination, Row, combinations, try_out
from places import SOURCE
from small_models import CPU_ONLY, chain, fully_convolutional

QUICK = ("--num_runs=1", "--min_secs=0", "--warmup_min_secs=0", "--num_threads=1")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS", "LOGISTIC"]))
    return str(path)


def start(model: str, *flags: str) -> subprocess.Popen[str]:
    """Start a sweep as people do, in a process of its own; its temporary files lie by the model."""
    temporary = Path(model).parent / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "litegpu.tools.cli", "benchmark", f"--graph={model}"]
    return subprocess.Popen(
        [*command, "--sweep", *QUICK, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={
            **os.environ,
            **{"PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "utf-8"},
            **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)),
        },
    )


# The whole program


def test_a_sweep(model: str, tmp_path: Path) -> None:
    Path(model).write_bytes(fully_convolutional())
    target, table = tmp_path / "sweep.json", tmp_path / "sweep.csv"
    files = (f"--json={target}", f"--csv={table}")
    process = start(model, "--sweep_backends=opencl,cuda", "--sweep_batches=3", *files)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert re.search(r"^2 of 4, \d+ s left: CPU, XNNPACK, batch 3$", errors, re.MULTILINE)
    lines = output.splitlines()
    heading = "rank way batch median ms p90 ms p99 ms items/s init ms nodes on GPU max error"
    assert " ".join(lines[1].split()) == f"{heading} relative L2"
    ranks = [re.split(r"   +", line.strip())[:3] for line in lines[3:7]]
    assert [rank[0] for rank in ranks] == ["1", "2", "3", "4"]
    assert {rank[1].removesuffix(" (software)") for rank in ranks} == {
        "CPU, built-in kernels",
        "CPU, XNNPACK",
        "opencl fp32",
        "opencl fp16",
    }
    assert {rank[2] for rank in ranks} == {"3"}
    assert any(line.startswith("cuda: no usable device. ") for line in lines)
    assert re.search(r"^Best: .*, batch 3, ", output, re.MULTILINE)
    assert re.search(r"^  flags:  --use_.* --batch=3 --num_threads=1$", output, re.MULTILINE)
    assert re.search(r"^  Python: (no delegate|GpuDelegate\(.*\))$", output, re.MULTILINE)

    found = json.loads(target.read_text(encoding="utf-8"))
    rows = {(row["backend"], row["precision"]): row for row in found["rows"]}
    assert found["reference"] == BUILTIN and found["threads"] == 1
    assert list(found["absent"]) == ["cuda"]
    assert rows["opencl", "fp32"]["relative_l2"] < 1e-5
    assert rows["opencl", "fp16"]["relative_l2"] < 1e-2
    assert rows[CPU, "fp32"]["relative_l2"] < 1e-5
    assert rows[BUILTIN, "fp32"]["relative_l2"] is None
    assert rows["opencl", "fp16"]["nodes_on_gpu"] == rows["opencl", "fp16"]["nodes"]
    assert rows["opencl", "fp16"]["flags"] == (
        "--use_gpu=true --backend=opencl --precision=fp16 --batch=3"
    )
    assert [row["rank"] for row in found["rows"]] == [1, 2, 3, 4]
    assert found["recommended"]["flags"].endswith("--batch=3 --num_threads=1")
    with table.open(encoding="utf-8", newline="") as opened:
        reported = list(csv.DictReader(opened))
    assert [row["flags"] for row in reported] == [row["flags"] for row in found["rows"]]
    assert not [*(tmp_path / "temporary").glob("litegpu-sweep-*")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_prints_what_there_is(model: str, tmp_path: Path) -> None:
    target = tmp_path / "sweep.json"
    process = start(model, "--sweep_backends=opencl", f"--json={target}")
    assert process.stderr
    seen = ""
    while "2 of 4" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("litegpu: interrupted\n")
    assert re.search(r"^ +1 +CPU, built-in kernels ", output, re.MULTILINE)
    assert "\nopencl fp16: not tried.\n" in output
    found = json.loads(target.read_text(encoding="utf-8"))
    assert len(found["rows"]) == 1
    assert found["not_tried"] == ["CPU, XNNPACK", "opencl fp32", "opencl fp16"]
    assert not [*(tmp_path / "temporary").glob("litegpu-sweep-*")]


# In this process, with tries that end as they are told


def quickly(
    monkeypatch: pytest.MonkeyPatch, endings: dict[str, Any], absent: dict[str, str] | None = None
) -> list[Combination]:
    """Have tries end so, by their titles, without a process; return the list of those."""
    tried: list[Combination] = []

    def fake(way: Combination, _: Path, flags: Any, timeout: float, reference: Row | None) -> Row:
        tried.append(way)
        ending = endings[way.title]
        if isinstance(ending, BaseException):
            raise ending
        figures = Row(way, batch=way.batch or 1, median_us=ending, relative_l2=1e-6)
        return Row(way, ending) if isinstance(ending, str) else figures

    monkeypatch.setattr(sweep, "try_out", fake)
    monkeypatch.setattr(sweep, "_present", lambda wanted: (["opencl"], absent or {}))
    return tried


def run(model: str, *flags: str) -> int:
    return cli.main(["benchmark", f"--graph={model}", "--sweep", *flags])


def test_a_try_that_fails_is_a_line(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = {"CPU, built-in kernels": 4000.0, "CPU, XNNPACK": 1000.0}
    crash = {"opencl fp32": "It crashes: Segmentation fault.", "opencl fp16": 500.0}
    quickly(monkeypatch, endings | crash, {"cuda": "There is no driver."})
    assert run(model) == 0
    text = capsys.readouterr().out
    assert "\nopencl fp32: It crashes: Segmentation fault.\n" in text
    assert "\ncuda: no usable device. There is no driver.\n" in text
    assert re.search(r"\n +1 +opencl fp16 +1 +0\.500 ", text)
    assert (
        "Best: opencl fp16, 2000 items/s, 2 times as fast as the best of the CPU (CPU, XNNPACK), "
        "at a relative error of 1e-06. flags: --use_gpu=true --backend=opencl "
    ) in " ".join(text.split())
    assert text.endswith('\n  Python: GpuDelegate(backend="opencl", precision="fp16")\n')


def test_nothing_runs(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    titles = ("CPU, built-in kernels", "CPU, XNNPACK", "opencl fp32", "opencl fp16")
    quickly(monkeypatch, dict.fromkeys(titles, "It is broken."))
    assert run(model) == 1
    assert "error: No configuration can run this model: It is broken.\n" in capsys.readouterr().err


def test_a_batch_that_the_model_cannot_have_is_tried_on_the_cpu_only(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cannot = "The model cannot run with batch=2: no."
    tried = quickly(monkeypatch, {"CPU, built-in kernels": cannot, "CPU, XNNPACK": cannot})
    assert run(model, "--sweep_batches=2") == 1
    assert [way.title for way in tried] == ["CPU, built-in kernels", "CPU, XNNPACK"]
    assert "error: No configuration can run this model: The model cannot run with batch=2: no." in (
        capsys.readouterr().err
    )


def test_what_is_tried(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = ("CPU, built-in kernels", "CPU, XNNPACK", "opencl fp32", "opencl fp16")
    tried = quickly(monkeypatch, dict.fromkeys(titles, 1.0))
    assert run(model, "--sweep_precisions=fp16", "--sweep_batches=1,8,1") == 0
    assert [(way.title, way.batch) for way in tried] == [
        *(("CPU, built-in kernels", 1), ("CPU, XNNPACK", 1), ("opencl fp16", 1)),
        *(("CPU, built-in kernels", 8), ("CPU, XNNPACK", 8), ("opencl fp16", 8)),
    ]


def test_json_is_alone_on_stdout(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings = {"CPU, built-in kernels": 4000.0, "CPU, XNNPACK": "broken"}
    quickly(monkeypatch, endings | {"opencl fp32": 1.0, "opencl fp16": KeyboardInterrupt()})
    assert run(model, "--json") == 130
    found = json.loads(capsys.readouterr().out)
    assert found["not_tried"] == ["opencl fp16"]
    failed = found["rows"][-1]
    assert (failed["rank"], failed["reason"], failed["median_us"]) == (None, "broken", None)


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--sweep_backends=opengl,vulcan"], 2, "--sweep_backends=opengl,vulcan: there is no 'vul"),
        (["--sweep_precisions=fp8"], 2, "there is no 'fp8'. Known: fp32, fp16."),
        (["--sweep_batches=1,0"], 2, "--sweep_batches=1,0: '0' is not a whole number of at least"),
        (["--sweep_goal=beauty"], 2, "--sweep_goal: 'beauty' is not one of throughput, lat"),
        (["--sweep_goal=energy"], 2, "--sweep_goal=energy needs --measure_energy=true."),
        (["--sweep_tolerance=0"], 2, "'0' is not a finite number above 0"),
        (["--use_gpu=true"], 2, "--use_gpu and --sweep exclude each other. Leave one of them out."),
        (["--csv=no/where.csv"], 1, "--csv=no/where.csv: the file cannot be written"),
        (
            ["--sweep_batches=1", "--input_layer=a", "--input_layer_shape=1"],
            2,
            "--sweep_batches and --input_layer_shape both set the shapes of the inputs. Give one",
        ),
    ],
)
def test_impossible_wishes(
    flags: list[str], status: int, message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, *flags) == status
    assert message in capsys.readouterr().err


def test_a_sweep_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", "--sweep"]) == 2
    assert "--sweep needs a model: give one with --graph=MODEL." in capsys.readouterr().err
    assert run("missing.tflite") == 1
    assert "No model 'missing.tflite'" in capsys.readouterr().err


def test_only_a_sweep_writes_a_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", f"--graph={model}", "--csv=a.csv", *QUICK]) == 0
    assert "WARN: `--sweep=true` must be set for the provided csv (a.csv) to be used." in (
        capsys.readouterr().out
    )
    assert not Path("a.csv").exists()


def test_drivers_that_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "run_module", lambda *_: Ended(-11, "", ""))
    present, absent = sweep._present(["cuda", "opencl"])
    assert present == []
    assert absent["opencl"].startswith("`litegpu devices` ")
    assert absent["opencl"].endswith(" Run that command for details.")


# One try


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Ended(None, "", ""), "The benchmark process was stopped after 9 s without a result."),
        (Ended(-6, "", "terminate called\n\n"), r"It .*\. Its last output: 'terminate called'\."),
        (Ended(3, "", ""), "It ends the process with status 0x3."),
        (
            Ended(1, "", "news\nERROR: No memory is left.\nERROR: Benchmarking failed.\n"),
            "No memory is left.",
        ),
    ],
)
def test_how_a_try_ends(
    ended: Ended, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_runs, "run_module", lambda *_: ended)
    row = try_out(Combination("opencl", "fp32", 0), tmp_path / "m.tflite", (), 9, None)
    assert re.fullmatch(reason, row.reason)
    assert row.failed


def test_tries_that_take_too_long(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "_present", lambda wanted: (["opencl"], {}))
    assert run(model, "--sweep_timeout_secs=0.05") == 1
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    assert shown.count(": The benchmark process was stopped after 0.05 s without a result.") == 4
    assert (
        "error: No configuration can run this model: The benchmark process was stopped"
        in captured.err
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to tell")
def test_a_driver_that_crashes(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyopencl.py").write_text("import os\nos.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sweep, "_present", lambda wanted: (["opencl"], {}))
    assert run(model, *QUICK, "--sweep_precisions=fp32") == 0
    text = capsys.readouterr().out
    assert "\nopencl fp32: It crashes: Aborted." in text
    assert "CPU, XNNPACK" in text and "  flags:  --use_xnnpack=" in text


def test_a_model_of_which_nothing_runs_on_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain([CPU_ONLY]))
    row = try_out(Combination("opencl", "fp32", 0), path, QUICK, 60, None)
    assert row.reason == "No node of the model runs on the GPU."


def test_a_backend_that_is_not_there_after_all(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS"]))
    row = try_out(Combination("cuda", "fp32", 0), path, QUICK, 60, None)
    if row.failed:  # on machines without NVIDIA's GPUs
        assert "CUDA" in row.reason or "NVIDIA" in row.reason


def outputs(*arrays: Any) -> tuple[Output, ...]:
    return tuple(Output("y", np.array(each, np.float32)) for each in arrays)


def test_errors_are_of_the_worst_output() -> None:
    reference = outputs([3, 4], [1])
    found = sweep_runs._errors(outputs([3, 4.5], [1.3]), reference)
    assert found == pytest.approx((0.5, 0.3))
    worst = sweep_runs._errors(outputs([3, 4.5], [np.nan]), reference)
    assert str(worst) == "(nan, nan)"
    assert sweep_runs._errors(outputs([3, 4]), reference) == (None, None)
    assert sweep_runs._errors((), ()) == (None, None)


def test_raw_outputs_become_real_numbers() -> None:
    details = [
        {"name": "a", "shape": [2], "type": "float32", "quantization": [0.0, 0]},
        {"name": "b", "shape": [1, 3], "type": "int8", "quantization": [0.5, 1]},
        {"name": "c", "shape": [1], "type": "bytes", "quantization": [0.0, 0]},
    ]
    content = np.array([1, 2], np.float32).tobytes() + np.array([1, 3, -1], np.int8).tobytes()
    found = sweep_runs._outputs(details, content + b"text")
    assert [each.name for each in found] == ["a", "b"]
    assert found[1].values.tolist() == [[0.0, 1.0, -1.0]]


# Advice


def row(backend: str, precision: str, us: float, error: float | None, **more: Any) -> Row:
    return Row(Combination(backend, precision, 0), median_us=us, relative_l2=error, **more)


REFERENCE = row(BUILTIN, "", 9000, None)
XNN = row(CPU, "", 2000, 1e-6)


@pytest.mark.parametrize(
    ("rows", "best", "said"),
    [
        (
            [row("cuda", "fp16", 100, 2e-3), row("cuda", "fp32", 200, 1e-6)],
            ("cuda", "fp16"),
            "10000 items/s, 20 times as fast as the best of the CPU (CPU, XNNPACK), at a relative "
            "error of 0.002.",
        ),
        (
            [row("cuda", "fp16", 100, 2e-3), row("cuda", "fp32", 104, 1e-6)],
            ("cuda", "fp32"),
            "at a relative error of 1e-06. cuda fp16 is only a little better (10000 items/s) "
            "and less "
            "exact (0.002).",
        ),
        (
            [row("cuda", "fp16", 100, 0.5), row("cuda", "fp32", 200, 1e-6)],
            ("cuda", "fp32"),
            "cuda fp16 would be the fastest (10000 items/s), but its error, 0.5, is beyond "
            "--sweep_tolerance=0.02.",
        ),
        (
            [row("cuda", "fp16", 100, float("nan")), row("cuda", "fp32", 4000, 1e-6)],
            (CPU, ""),
            "500 items/s, 2 times as fast as the best of the GPU (cuda fp32)",
        ),
    ],
)
def test_what_is_recommended(rows: list[Row], best: tuple[str, str], said: str) -> None:
    if best[0] == CPU:
        rows = [replace(rows[0], relative_l2=0.7), rows[1]]
        rows[0] = replace(rows[0], median_us=5000)
    found = recommend([REFERENCE, XNN, *rows], GOALS["throughput"], 0.02, 4)
    assert found
    assert (found.row.way.backend, found.row.way.precision) == best
    assert said in found.reason
    assert found.flags.endswith("--num_threads=4")
    assert (found.python is None) == (best[0] == CPU)


def test_the_delegate_can_be_pasted_with_all_that_was_set() -> None:
    parser = FlagParser("benchmark_model", "")
    parser.add_flags(benchmark_model.FLAGS)
    given = (
        *("--graph=m", "--sweep", "--num_runs=3", "--max_delegated_partitions=4"),
        *("--gpu_inference_for_sustained_speed=true", "--quantized=float", "--device=0"),
    )
    args = parser.parse(given)
    flags = sweep._flags(args, (*sweep._OPTIONS, *sweep._OF_GPU))
    rows = [REFERENCE, row("cuda", "fp16", 100, 1e-3)]
    found = recommend(rows, GOALS["throughput"], 0.02, 4, flags, changed_options(args))
    assert found
    assert found.flags.endswith(f" --num_threads=4 {' '.join(given[3:])}")
    assert found.python is not None and found.lines()[1] == f"Python: {found.python}"
    options = eval(found.python, {"GpuDelegate": GpuDelegateOptions})  # as one pastes it
    assert options == GpuDelegateOptions(
        backend="cuda",
        precision="fp16",
        max_delegated_partitions=4,
        inference_preference=1,
        quantized="float",
        device="0",
    )


def test_a_priority_that_was_given_is_in_every_trial_and_in_the_recommendation(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed = list[list[str]]()

    def fake(way: Combination, _: Path, flags: Any, *others: object) -> Row:
        passed.append([*way.flags(), *flags])
        return Row(way, batch=1, median_us=100 if way.precision == "fp16" else 900, relative_l2=0)

    monkeypatch.setattr(sweep, "try_out", fake)
    monkeypatch.setattr(sweep, "_present", lambda wanted: (["opencl"], {}))
    assert run(model, "--inference_priority1=MIN_MEMORY_USAGE") == 0
    on_gpu = [flags for flags in passed if "--use_gpu=true" in flags]
    assert len(on_gpu) == 2 and all("--inference_priority1=3" in flags for flags in on_gpu)
    on_cpu = [flags for flags in passed if flags not in on_gpu]
    assert on_cpu and not any("priority" in flag for flags in on_cpu for flag in flags)
    text = capsys.readouterr().out
    (python,) = (line.partition("Python: ")[2] for line in text.splitlines() if "Python: " in line)
    options = eval(python, {"GpuDelegate": GpuDelegateOptions})  # as one pastes it
    assert options == GpuDelegateOptions(
        backend="opencl", precision="fp16", inference_priority1=InferencePriority.MIN_MEMORY_USAGE
    )
    (line,) = (line for line in text.splitlines() if "--backend=opencl" in line)
    parser = FlagParser("benchmark_model", "")
    parser.add_flags(benchmark_model.FLAGS)
    args = parser.parse(["--graph=m", *line.partition("flags: ")[2].split()])
    assert args.inference_priority1 == InferencePriority.MIN_MEMORY_USAGE


def test_an_error_that_is_no_number_is_never_recommended() -> None:
    rows = [row("cuda", "fp16", 100, float("nan")), row("opencl", "fp16", 100, None)]
    found = recommend([REFERENCE, *rows], GOALS["throughput"], 0.02, 1)
    assert found and found.row is REFERENCE
    assert recommend(rows, GOALS["throughput"], 0.02, 1) is None
    assert recommend([], GOALS["throughput"], 0.02, 1) is None


def test_goals_rank_differently() -> None:
    one, many = (replace(row("cuda", "fp16", us, 0.0), batch=n) for us, n in ((100, 1), (800, 64)))
    frugal = replace(row("opencl", "fp16", 300, 0.0), joules=0.5)
    rows = [one, many, frugal, row("webgpu", "fp16", 1, 0.0, reason="broken")]
    assert ranked(rows, GOALS["throughput"]) == [many, one, frugal]
    assert ranked(rows, GOALS["latency"]) == [one, frugal, many]
    assert ranked(rows, GOALS["energy"]) == [frugal, one, many]
    found = recommend(rows, GOALS["energy"], 0.02, 1)
    assert found and found.reason.startswith("0.5 J an item")


def test_combinations_begin_with_the_reference() -> None:
    found = combinations(["cuda"], ["fp32"], [0])
    assert [way.title for way in found] == ["CPU, built-in kernels", "CPU, XNNPACK", "cuda fp32"]
    assert found[0].flags() == ["--use_xnnpack=false"]
