"""The tools for a new user: a plain install, a terminal of 80 columns, wrong commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from litegpu.tools import check, cli, demo, profile, run
from litegpu.tools.picture_flag import (
    default_picture,
)
from places import SOURCE
from small_models import CPU_ONLY, chain, fully_convolutional

SMALL = "zoo:mobilenet_v1_0.25_128"
OPTIONAL = ("PIL", "flatbuffers", "matplotlib", "rich", "typing_extensions")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS", "EXP", CPU_ONLY, "TANH"], (1, 8, 8, 3)))
    return str(path)


# A plain install


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder whose packages come first; none that is optional can be imported."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in OPTIONAL)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{blocked}")
    return tmp_path


def litegpu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if "LITEGPU" not in name}
    environment |= {"LITEGPU_MODELS": str(folder), "XDG_CACHE_HOME": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(SOURCE)])
    command = [sys.executable, "-m", "litegpu.tools.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


def test_a_plain_install_lists_devices(plain: Path) -> None:
    result = litegpu(plain, "devices")
    assert result.stderr == ""
    assert "backend" in result.stdout or "no usable device" in result.stdout
    assert result.returncode == (0 if "backend" in result.stdout else 1)


def test_a_plain_install_with_a_runtime_checks_and_runs_models(plain: Path, model: str) -> None:
    checked = litegpu(plain, "check", model)
    assert checked.returncode == 0, checked.stderr
    assert "partition  nodes  kernels" in checked.stdout
    result = litegpu(plain, "run", model, "--json", "--num_runs=1")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["agreement"][0]["top1_equal"] and found["latency"]["delegate"]["runs"] == 1


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["check", SMALL], "flatbuffers", "zoo"),
        (["run", "model.tflite", f"--image={default_picture()}"], "pillow", "tools"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    arguments: list[str], package: str, extra: str, plain: Path, model: str
) -> None:
    result = litegpu(plain, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"'{package}', which is not installed. Install it with: pip install" in result.stderr
    assert f"pip install 'litegpu[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr


# A home that takes no files

HOMELESS = {
    "check": ["@model.tflite", "--cache"],
    "run": ["@model.tflite", "--num_runs=1", "--image=@picture.jpg", "--cache"],
    "profile": ["@model.tflite", "--repeats=1", "--peaks=false"],
    "benchmark": ["@model.tflite", "--use_gpu", "--num_runs=1", "--min_secs=0"],
    "inference_diff": ["@model.tflite", "--delegate=gpu", "--num_runs=1"],
    "cache": [],
    "demo": ["--num_runs=1"],
}


@pytest.mark.parametrize("tool", HOMELESS)
def test_a_home_and_a_current_folder_that_take_no_files(
    tool: str, model: str, tmp_path: Path
) -> None:
    """As in a container that is read-only: in both nothing can be made, not even by root."""
    for name in (demo.CLASSIFIER, demo.SEGMENTER):
        shutil.copy(model, tmp_path / f"{name}.tflite")
    shutil.copy(default_picture(), tmp_path / "picture.jpg")
    (tmp_path / "file").touch()
    nowhere = Path("/proc") if sys.platform == "linux" else tmp_path / "file"
    dropped = ("XDG_", "LITEGPU")
    environment = {k: text for k, text in os.environ.items() if not k.startswith(dropped)}
    environment |= {
        "HOME": str(nowhere / "home"),
        "LITEGPU_MODELS": str(tmp_path),
        "PYTHONPATH": str(SOURCE),
    }
    words = [word.replace("@", f"{tmp_path}{os.sep}") for word in HOMELESS[tool]]
    result = subprocess.run(
        [sys.executable, "-m", "litegpu.tools.cli", tool, *words],
        capture_output=True,
        text=True,
        env=environment,
        cwd=nowhere if nowhere.is_dir() else tmp_path,
        check=False,
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == 0, result.stderr


# 80 columns


@pytest.mark.parametrize(
    ("columns", "arguments"),
    [
        (60, ["devices"]),
        (60, ["check", "zoo:ssd_mobilenet_v1_300"]),
        (80, ["devices"]),
        (80, ["check", SMALL, "--max_delegated_partitions=3"]),
        (80, ["run", SMALL, "--num_runs=1", "--last_delegate_node_index=20"]),
        (80, ["profile", SMALL, "--repeats=1", "--peaks=false"]),
        *((80, [name, "--help"]) for name in cli.TOOLS),
        (80, ["--help"]),
    ],
)
def test_lines_fit_the_terminal(
    arguments: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > columns] == []


def test_rows_in_a_pipe_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", SMALL, "--repeats=1"]) == 0
    heading = next(line for line in capsys.readouterr().out.splitlines() if "kernel " in line)
    assert heading.split()[-5:] == ["GFLOP/s", "GB/s", "floor", "µs", "efficiency"]


# JSON


@pytest.mark.parametrize("spelling", ["--json", "--json=true", "--json=1"])
@pytest.mark.parametrize("tool", ["devices", "check", "run", "profile"])
def test_json_is_all_that_stdout_holds(
    tool: str, spelling: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quickly = {"run": ["--num_runs=1"], "profile": ["--repeats=1", "--peaks=false"]}
    words = [tool, *([model] if tool != "devices" else []), spelling, *quickly.get(tool, [])]
    assert cli.main(words) == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("tool", ["devices", "check", "run", "profile"])
def test_json_goes_to_a_file(
    tool: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    quickly = {"run": ["--num_runs=1"], "profile": ["--repeats=1", "--peaks=false"]}
    words = [tool, *([model] if tool != "devices" else []), f"--json={file}"]
    assert cli.main([*words, *quickly.get(tool, [])]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))
    captured = capsys.readouterr()
    assert "litegpu on " in captured.out or "number" in captured.out
    assert f"json: {file}" in captured.err


def test_what_json_cannot_hold_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nan.tflite"
    path.write_bytes(chain(["NEG", "LOG"], (1, 8, 8, 3)))
    assert cli.main(["run", str(path), "--json", "--num_runs=1"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert found["outputs"][0]["mean"] is None
    assert found["agreement"][0]["has_nan"] and not found["agreement"][0]["top1_equal"]
    assert cli.main(["run", str(path), "--num_runs=1"]) == 0
    assert "no: NaN" in capsys.readouterr().out


# What is tried before the work


@pytest.mark.parametrize(
    ("flag", "tools"),
    [("json", (check, run, profile)), ("trace", (profile,))],
)
def test_files_are_tried_before_the_work(
    flag: str,
    tools: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    positions = {tmp_path / "absent" / "file.json": "No such file", tmp_path: "directory"}
    for tool in tools:
        name = tool.__name__.rsplit(".", 1)[1]  # type: ignore[attr-defined]
        monkeypatch.setattr(tool, "find_model", lambda _: pytest.fail("work was begun"))
        for position in positions:
            assert cli.main([name, "model.tflite", f"--{flag}={position}"]) == 1
            error = capsys.readouterr().err
            assert f"--{flag}={position}: the file cannot be written: " in error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    saved = tmp_path / "kept.json"
    saved.write_text("before")
    assert cli.main(["check", str(tmp_path / "absent.tflite"), f"--json={saved}"]) == 1
    assert saved.read_text() == "before"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("--input_std=0", "a finite number other than 0"),
        ("--input_std=nan", "a finite number other than 0"),
        ("--input_mean=inf", "a finite number"),
        ("--max_secs=-1", "a finite number above 0"),
        ("--max_secs=inf", "a finite number above 0"),
        ("--num_runs=-3", "a whole number of at least 1"),
        ("--num_threads=0", "a whole number of at least 1"),
        ("--inference_priority1=speed", "one of 0 AUTO, 1 MAX_PRECISION, 2 MIN_LATENCY"),
        ("--max_delegated_partitions=few", "a whole number"),
    ],
)
def test_impossible_values_are_refused_by_name(
    words: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "model.tflite", words]) == 2
    flag, _, value = words.partition("=")
    assert f"error: argument {flag}: '{value}' is not {allowed}" in capsys.readouterr().err


def test_an_unreadable_picture_is_told_before_the_work(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "find_model", lambda _: pytest.fail("work was begun"))
    for wrong in (f"--image={model}", f"--labels={Path(model).parent}"):
        assert cli.main(["run", model, wrong]) == 1
        assert "cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a" * 300, "The picture '{}' cannot be read: "),
        ("", "The picture '{}' cannot be read: "),
        (".", "--image={}: the folder has no pictures."),
    ],
)
def test_names_that_are_no_files(
    name: str,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", name]) == 1
    assert f"error: No model '{name}' in the current folder" in capsys.readouterr().err
    assert cli.main(["run", SMALL, f"--image={name}"]) == 1
    assert error.format(name) in capsys.readouterr().err


def test_a_model_that_must_not_be_read(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, mode: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert cli.main(["check", model]) == 1
    expected = f"The model file '{model}' cannot be read: Permission denied. Check its"
    assert expected in capsys.readouterr().err


# Agreement


def test_what_the_cpu_keeps_is_compared_with_the_same_kernels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only a RESHAPE runs on the GPU: all that differs would be XNNPACK's."""
    only = [f"--{end}_delegate_node_index=29" for end in ("first", "last")]
    assert cli.main(["run", SMALL, "--json", "--num_runs=1", *only]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"]["delegated_nodes"] == [29]
    assert found["agreement"][0]["relative_l2"] == 0


# Wishes in other words


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("litegpu 0.")
    assert cli.main(["help", "run"]) == 0
    helped = capsys.readouterr().out
    assert cli.main(["run", "--help"]) == 0
    assert capsys.readouterr().out == helped
    assert cli.main(["help", "rnu"]) == 2
    assert "Did you mean 'run'?" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--backend=CL", "--backend=OpenCL", "--precision=FP16"])
def test_the_case_of_values_does_not_matter(flag: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    assert cli.main(["check", str(path), flag]) == 0
