"""GPU memory in benchmark_model: NVML's figures, and the output without NVML."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_nvml import Board, Clock, FakeNvml, install
from litegpu.tools import benchmark_model, cli
from litegpu.tools.benchmark_model.memory_gpu import GpuPeak
from small_models import chain

MB = 2**20
WATCHED = "--report_peak_memory_footprint"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    boards = (Board("NVIDIA H200", used=900 * MB), Board("NVIDIA H200", used=5 * MB))
    return install(monkeypatch, FakeNvml(Clock(), *boards))


def look_again(peak: GpuPeak) -> None:
    """Look at once; the thread looks when it likes."""
    peak._look()


def test_the_most_of_this_process_is_kept(nvml: FakeNvml) -> None:
    mine, other = nvml.boards[1], os.getpid() + 1
    mine.users = {other: 4000 * MB}
    with GpuPeak(1) as peak:
        mine.users = {other: 4000 * MB, os.getpid(): 700 * MB}
        mine.used = 4700 * MB
        look_again(peak)
        mine.users, mine.used = {os.getpid(): 300 * MB}, 300 * MB
    assert (peak.own_mb, peak.grown_mb, peak.missing) == (700, 4695, "")
    assert nvml.opened == 0


@pytest.mark.parametrize("users", [{}, {os.getpid(): None}], ids=["container", "Windows"])
def test_where_nvml_does_not_tell_processes_apart(
    users: dict[int, int | None], nvml: FakeNvml
) -> None:
    nvml.failing["nvmlDeviceGetGraphicsRunningProcesses"] = "Not Supported"
    with GpuPeak(1) as peak:
        nvml.boards[0].users, nvml.boards[0].used = users, 1000 * MB
    assert (peak.own_mb, peak.grown_mb, peak.missing) == (0, 100, "")


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_nvml_that_fails(function: str, nvml: FakeNvml) -> None:
    nvml.failing[function] = "Driver Not Loaded"
    with GpuPeak(1) as peak:
        pass
    assert peak.missing == (
        "NVML, which reports on NVIDIA GPUs, failed (Driver Not Loaded). Check `nvidia-smi`."
    )
    assert nvml.opened == 0


def test_nvml_that_fails_later(nvml: FakeNvml) -> None:
    with GpuPeak(1) as peak:
        nvml.failing["nvmlDeviceGetMemoryInfo"] = "GPU is lost"
        nvml.failing["nvmlShutdown"] = "GPU is lost"
    assert "failed (GPU is lost)" in peak.missing


# The tool


@pytest.fixture
def benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Returns a function that runs the tool on a GPU, and what it printed about memory."""
    monkeypatch.setattr(benchmark_model, "_is_software", lambda session: False)
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS", "LOGISTIC"]))
    quick = ("--num_runs=2", "--min_secs=0", "--warmup_min_secs=0", "--use_gpu=true")

    def run(*flags: str) -> list[str]:
        assert cli.main(["benchmark", f"--graph={path}", *quick, *flags]) == 0
        captured = capsys.readouterr()
        lines = captured.out.splitlines()
        return [line for line in lines if ("GPU" in line and "(MB)" in line) or "WARN" in line]

    return run


def test_the_lines_about_memory(
    benchmark: Callable[..., list[str]], nvml: FakeNvml, tmp_path: Path
) -> None:
    delegate = r"INFO: GPU memory of the delegate \(MB\): tensors=[\d.e-]+ weights=0"
    result = tmp_path / "result.json"
    nvml.boards[0].users = {os.getpid(): 512 * MB}
    first, second = benchmark(WATCHED, f"--json={result}")
    assert re.fullmatch(delegate, first)
    assert second == "INFO: Peak GPU memory of this process (MB), by NVML: 512"
    found = json.loads(result.read_text(encoding="utf-8"))["gpu_memory_mb"]
    assert (found["process_peak"], found["board_growth"]) == (512, 0)
    assert 0 < found["tensors"] < 1
    nvml.boards[0].users = {}
    assert benchmark(WATCHED)[1] == (
        "INFO: Peak GPU memory (MB), by NVML: 0 more than before, of all processes (it does not "
        "report this one, for example in a container)"
    )
    assert len(benchmark()) == 1, "nobody asked for it"


def test_without_nvml(
    benchmark: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    result = tmp_path / "result.json"
    assert benchmark(WATCHED, f"--json={result}")[1] == (
        "WARN: The peak GPU memory is not known: Measuring a GPU's memory needs the "
        "Python package 'nvidia-ml-py', which is not installed. Install it with: pip install "
        "'litegpu[energy]'"
    )
    found = json.loads(result.read_text(encoding="utf-8"))["gpu_memory_mb"]
    assert (found["process_peak"], found["board_growth"]) == (None, None)


def test_a_software_devices_memory_is_the_hosts(
    benchmark: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert len(benchmark(WATCHED)) == 1
