"""`litegpu profile`: its tables, its files, and errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from litegpu.tools import cli
from litegpu.tools.profile import print_profile
from made_up import made_up_profile
from small_models import CPU_ONLY, chain, encode_and_decode, fully_convolutional

SMALL = "zoo:mobilenet_v1_0.25_128"


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A file with three convolutions and a LOGISTIC that is fused into the last."""
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    return str(path)


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(made_up_profile())
    lines = [re.sub(r" {2,}", "  ", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        "litegpu on A GPU (cuda, fp16)",
        "measured limits: 5000 GFLOP/s, 60000 GFLOP/s on tensor cores, 700 GB/s over 2",
        "  MiB, 800 GB/s over 256 MiB",
    ]
    for line in (
        "partition 0",
        "kernel  operation  node  output  µs  share  GFLOP/s  GB/s  floor µs  efficiency",
        "conv_2d  CONV_2D  4  1×8×8×16  100.0  62%  30.0  20.0  25.0  25%",
        "copy  COPY  1×8×8×16  60.0  38%  0.0  25.0  42%",
        "2 kernels, each measured alone  160.0",
        "their floors  50.0",
        "all kernels in sequence  140.0",
        "host: wait  150.0",
        "interpreter.invoke()  180.0",
        "of it: runtime, Python, nodes on the CPU  4.0",
        "CONV_2D  1  100.0  62%  25%",
    ):
        assert line in lines
    assert not any("device, with copies" in line for line in lines), "nobody could tell"


@pytest.mark.parametrize(
    ("top", "heading", "kernels"),
    [
        (1, "the slowest 1 of 3 rows: 53% of the time", ["copy"]),
        (2, "the slowest 2 of 3 rows: 82% of the time", ["copy", "conv_2d"]),
        (9, "the slowest 3 of 3 rows: 100% of the time", ["copy", "conv_2d", "copy"]),
    ],
)
def test_the_slowest_kernels(
    top: int, heading: str, kernels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    profile = made_up_profile()
    (part,) = profile.partitions
    slow = replace(part.kernels[1], seconds=180e-6)
    print_profile(replace(profile, partitions=(part, replace(part, kernels=(slow,)))), top)
    text = capsys.readouterr().out
    assert heading in text
    assert "partition 0" not in text
    table = text[text.index(heading) : text.index("where the time goes")]
    assert re.findall(r"^(conv_2d|copy) ", table, re.MULTILINE) == kernels


def test_kernels_of_all_passes_of_a_loop_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    profile = made_up_profile()
    (part,) = profile.partitions
    first, copy = part.kernels
    passes = (first, copy, replace(first, seconds=50e-6), copy)
    print_profile(replace(profile, partitions=(replace(part, kernels=passes),)))
    lines = [re.sub(r" {2,}", "  ", line) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("partition 0")
    assert [line.split("  GFLOP")[0] for line in lines[start + 2 : start + 7]] == [
        "kernel  operation  node  output  runs  µs  share",
        lines[start + 3],
        "conv_2d  CONV_2D  4  1×8×8×16  2  150.0  56%  40.0  26.7  50.0  33%",
        "copy  COPY  1×8×8×16  1  60.0  22%  0.0  25.0  42%",
        "copy  COPY  1×8×8×16  1  60.0  22%  0.0  25.0  42%",
    ]
    assert "4 kernels, each measured alone  270.0" in lines


def test_tables_without_ceilings(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(made_up_profile(peaks=False))
    text = capsys.readouterr().out
    assert "ceilings" not in text
    assert "their floors" not in text
    assert re.search(r"conv_2d +CONV_2D +4 +1×8×8×16 +100.0 +62% +30.0 +20.0$", text, re.MULTILINE)


@pytest.mark.parametrize(("key", "graph"), [("encode", 0), ("decode", 1)])
def test_a_signature(
    key: str, graph: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nodes of the other graph, with equal numbers, get no times."""
    model, data, times = (tmp_path / name for name in ("a.tflite", "a.json", "times.json"))
    model.write_bytes(encode_and_decode("EXP", "EXP"))
    command = ["profile", str(model), "--repeats=1", "--peaks=false", "--batch=2"]
    command += ["--min_nodes_per_partition=0", f"--json={data}", f"--export={times}"]
    assert cli.main([*command, f"--signature={key}"]) == 0
    (part,) = json.loads(data.read_text(encoding="utf-8"))["partitions"]
    assert (part["graph"], part["kernels"][0]["shape"][0]) == (graph, 2)
    (first,) = json.loads(times.read_text(encoding="utf-8")).values()  # the graphs have one name
    assert bool(first["results"]) == (graph == 0)
    assert "interpreter.invoke()" in capsys.readouterr().out
    assert cli.main([*command, "--signature=encod"]) == 1
    assert "there is no such signature. Did you mean 'encode'" in capsys.readouterr().err


def test_a_model_of_the_zoo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, data = tmp_path / "trace.json", tmp_path / "profile.json"
    assert cli.main(["profile", SMALL, "--repeats=2", f"--trace={trace}", f"--json={data}"]) == 0
    captured = capsys.readouterr()
    profile = json.loads(data.read_text(encoding="utf-8"))
    kernels = profile["partitions"][0]["kernels"]
    assert (profile["model"], profile["repeats"], len(kernels)) == (SMALL, 2, 30)
    assert len(re.findall(r"^conv_2d(?:_split)? +CONV_2D ", captured.out, re.MULTILINE)) == 15
    assert "measured limits: " in captured.out
    assert profile["peaks"]["flops_per_second"] > 0
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert [e["args"]["name"] for e in events if e.get("tid") == 1 and e["ph"] == "X"] == [
        kernel["name"] for kernel in kernels
    ]
    assert f"trace: {trace}" in captured.err and f"json: {data}" in captured.err


def test_no_ceilings_when_not_wanted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", model, "--peaks=false", "--repeats=1", "--precision=fp16"]) == 0
    text = capsys.readouterr().out
    assert "ceilings" not in text
    assert "fp16)" in text


def test_another_batch(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", model, "--batch=3", "--peaks=false", "--repeats=1"]) == 0
    assert "3×5×4×8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("--top=0", 2, "'0' is not a whole number of at least 1"),
        ("--backend=opengel", 2, "Unknown backend 'opengel'. Did you mean 'opengl'?"),
        ("--device=99", 1, "No device matches '99'"),
        ("--precision=fp8", 2, "Unknown precision 'fp8'"),
        ("--trace=/no/such/folder/t.json", 1, "--trace=/no/such/folder/t.json: the file cannot be"),
        ("--json=/no/such/folder/p.json", 1, "p.json: the file cannot be written: "),
    ],
)
def test_impossible_wishes_are_named(
    argument: str, status: int, message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["profile", model, "--repeats=1", "--peaks=false", argument]) == status
    assert message in capsys.readouterr().err


def test_a_batch_that_the_model_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", SMALL, "--batch=2"]) == 1
    error = capsys.readouterr().err
    assert "cannot run with batch=2: " in error
    assert "[2, 1, 1, 1001] cannot be reshaped to [1, 1001]" in error
    assert "Leave --batch out" in error


def test_an_input_without_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "number.tflite"
    path.write_bytes(chain(["ABS"], shape=()))
    assert cli.main(["profile", str(path), "--batch=2"]) == 1
    assert "is a scalar without a batch dimension. Leave --batch out." in capsys.readouterr().err


def test_no_repeats(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", model, "--repeats=0"]) == 2
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


def test_nothing_on_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.tflite"
    path.write_bytes(chain([CPU_ONLY]))
    assert cli.main(["profile", str(path)]) == 1
    error = capsys.readouterr().err
    assert "There is nothing to profile: no node of this model runs on the GPU." in error
    assert f"{CPU_ONLY}: " in error


def test_the_help_says_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    assert "measured alone with warm caches" in text
    assert "The floor of a kernel is" in text
