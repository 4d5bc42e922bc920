"""`litegpu exec`: Python programs whose interpreters use the delegate."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu.acceleration import AcceleratedModel
from litegpu.tools import cli
from litegpu.tools import exec as tool
from litegpu.tools.flags import Flag, FlagParser
from small_models import CPU_ONLY, chain

PROGRAM = """
import sys
from ai_edge_litert.interpreter import Interpreter
for _ in range(2):
    Interpreter("model.tflite")
print(__name__, sys.argv[1:], sys.path[0])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.tflite").write_bytes(chain(["ABS", CPU_ONLY]))
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "program", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return tmp_path


@pytest.mark.parametrize("program", ["program.py", "-m program", "-- program.py"])
def test_a_program_runs_on_the_gpu(
    program: str, folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.argv, sys.path[:]
    words = [*program.split(), "--precision=x", "y"]
    assert cli.main(["exec", "--precision", "fp16", "--quick_start", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"__main__ ['--precision=x', 'y'] {folder}\n"
    line = "litegpu: model.tflite: 1 of 2 nodes on "
    assert captured.err.splitlines()[-1].startswith(line)
    assert captured.err.endswith(" (2 interpreters)\n")
    assert (sys.argv, sys.path) == before


def test_a_command_of_the_environment_runs(
    null_device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        print(sys.argv)
        return 3

    found = SimpleNamespace(name="yolo", load=lambda: command)
    monkeypatch.setattr(tool, "entry_points", lambda group: [found])
    assert cli.main(["exec", "yolo", "predict"]) == 3
    captured = capsys.readouterr()
    assert captured.out == "['yolo', 'predict']\n"
    assert "no interpreter got a delegate: the program created none that litegpu" in captured.err


@pytest.mark.parametrize(
    ("end", "status", "message"), [("", 0, ""), ("4", 4, ""), ("'no model'", 1, "no model\n")]
)
def test_the_status_is_the_program_s(
    end: str,
    status: int,
    message: str,
    folder: Path,
    null_device: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "program.py").write_text(f"import sys\nsys.exit({end})")
    assert cli.main(["exec", "program.py"]) == status
    assert message in capsys.readouterr().err


def test_a_program_configures_its_own_log(
    folder: Path, null_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    (folder / "program.py").write_text("import logging, sys\nsys.exit(logging.root.hasHandlers())")
    assert cli.main(["exec", "program.py"]) == 0


def test_threads_of_a_program_end_before_the_acceleration(
    folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
import threading, time
from ai_edge_litert.interpreter import Interpreter
def work():
    time.sleep(0.5)
    Interpreter("model.tflite")
threading.Thread(target=work).start()
"""
    (folder / "program.py").write_text(program)
    assert cli.main(["exec", "program.py"]) == 0
    assert "litegpu: model.tflite: 1 of 2 nodes on " in capsys.readouterr().err


def test_a_program_is_the_main_module_until_the_end(folder: Path) -> None:
    program = """
import atexit, os, pickle, sys
class Kind: pass
atexit.register(lambda: print(len(pickle.dumps(Kind())) > 0, flush=True))
print(sys.argv[0], os.path.isabs(__file__), __package__, flush=True)
"""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "litegpu", "exec", "--backend=opencl", "program.py"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert printed.stdout.splitlines() == ["program.py True None", "True"]


def test_errors_of_a_program_are_its_own(folder: Path, null_device: Any) -> None:
    (folder / "program.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        cli.main(["exec", "program.py"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: PROGRAM"),
        (["-m"], "-m needs the name of a module"),
        (["pytset"], "There is no file 'pytset', and no command of this name in the Python"),
        (["python", "x.py"], "Omit it: this command runs the program itself."),
        (["--precisoin=fp16", "x.py"], "unknown flag '--precisoin'"),
    ],
)
def test_wrong_commands(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_on_the_cpu_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    tool._print_summary([AcceleratedModel("a.tflite", error="The device is gone.")])
    assert capsys.readouterr().err == "litegpu: a.tflite: on the CPU. The device is gone.\n"


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--text", "a", "x", "--text", "b"], 2),
        (["--text=a", "x"], 1),
        (["--yes", "x"], 1),
        (["--yes", "true", "x"], 2),
        (["--folder", "x"], 1),
        (["--folder", "false", "x"], 2),
        (["--no-flag", "x"], 1),
        (["--help"], 1),
        (["-h", "x"], 1),
        (["-m", "x"], 0),
    ],
)
def test_flags_end_before_the_program(words: list[str], own: int) -> None:
    parser = FlagParser("litegpu exec", "", usage="")
    parser.add_flags(
        [
            Flag("text", str, None, ""),
            Flag("yes", bool, False, ""),
            Flag("folder", str, None, "", bare="true"),
        ]
    )
    assert parser.split(words) == (words[:own], words[own:])
    assert parser.split([*words[:own], "--", *words]) == (words[:own], words)
