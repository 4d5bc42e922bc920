"""`litegpu exec`: Python programs whose interpreters use the delegate."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu import UnsupportedDeviceError
from litegpu.acceleration import AcceleratedModel, children
from litegpu.progress import Progress
from litegpu.tools import cli, python_program
from litegpu.tools.flags import Flag, FlagParser
from places import python_path
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
    monkeypatch.setattr(python_program, "entry_points", lambda group: [found])
    assert cli.main(["exec", "yolo", "predict"]) == 3
    captured = capsys.readouterr()
    assert captured.out == "['yolo', 'predict']\n"
    assert "no interpreter of this process got a delegate: the program created" in captured.err


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


@pytest.mark.parametrize("words", [["program.py"], ["-m", "program"], ["program"]])
def test_errors_of_a_program_have_its_frames_only(
    words: list[str],
    folder: Path,
    null_device: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = """
from ai_edge_litert.interpreter import Interpreter
def main():
    try:
        1 / 0
    except ZeroDivisionError as error:
        Interpreter("missing.tflite")
if __name__ == "__main__":
    main()
"""
    (folder / "program.py").write_text(program)
    if words == ["program"]:
        monkeypatch.syspath_prepend(folder)
        found = EntryPoint("program", "program:main", "console_scripts")
        monkeypatch.setattr(python_program, "entry_points", lambda group: [found])
    assert cli.main(["exec", *words]) == 1
    printed = capsys.readouterr().err
    assert "ZeroDivisionError" in printed and "Could not open 'missing.tflite'" in printed
    files = re.findall(r'File "(.*)", line', printed)
    assert {Path(each).name for each in files} == {"program.py", "interpreter.py"}
    assert "runpy" not in printed and "/litegpu/" not in printed


def test_a_log_of_litegpu_has_all_frames(
    folder: Path,
    null_device: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(python_program, "config", SimpleNamespace(debug_level=lambda: 1))
    (folder / "program.py").write_text("1 / 0")
    assert cli.main(["exec", "program.py"]) == 1
    assert "python_program.py" in capsys.readouterr().err


def test_an_error_in_the_text_of_a_program(
    folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "program.py").write_text("1 +")
    assert cli.main(["exec", "program.py"]) == 1
    assert capsys.readouterr().err.startswith(f'  File "{folder / "program.py"}", line 1\n    1 +')


CODE = """
import os, sys
def f(x: int) -> None: pass
print(__name__, sys.argv, os.path.abspath(sys.path[0]))
print(f.__annotations__["x"] is int, sys.modules[__name__].f is f)
"""


@pytest.mark.parametrize("kind", ["-c", "-", "folder", "a.pyz", "-m package", "-m folder.program"])
def test_programs_run_as_in_python(
    kind: str, folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    for name in ("folder", "package"):
        (folder / name).mkdir()
        (folder / name / "__main__.py").write_text(CODE)
        (folder / name / "program.py").write_text(CODE)
    with zipfile.ZipFile(folder / "a.pyz", "w") as archive:
        archive.writestr("__main__.py", CODE)
    words = [*kind.split(), *[CODE] * (kind == "-c"), "--x", "y"]
    by_python = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, input=CODE, check=True
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(CODE))
    monkeypatch.delitem(sys.modules, "package", raising=False)
    monkeypatch.delitem(sys.modules, "folder", raising=False)
    assert cli.main(["exec", *words]) == 0
    assert capsys.readouterr().out == by_python.stdout


def test_a_folder_without_a_main_module(
    folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    assert cli.main(["exec", "empty"]) == 1
    assert f"can't find '__main__' module in '{folder / 'empty'}'" in capsys.readouterr().err


def litegpu_exec(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "litegpu", "exec", "--backend=opencl", *words]
    environment = {**os.environ, "PYTHONPATH": python_path(), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


CHILD = """
import subprocess, sys, multiprocessing
from ai_edge_litert.interpreter import Interpreter
def work(path):
    Interpreter(path)
if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        process = multiprocessing.get_context("spawn").Process(target=work, args=["model.tflite"])
        process.start()
        process.join()
    elif sys.argv[1] == "grandchild":
        subprocess.run([sys.executable, __file__, "child"], check=True)
    elif sys.argv[1] == "child":
        subprocess.run([sys.executable, __file__, "itself"], check=True)
    else:
        work("model.tflite")
"""


@pytest.mark.parametrize("kind", ["spawn", "child", "grandchild"])
def test_child_processes_are_accelerated(kind: str, folder: Path) -> None:
    (folder / "program.py").write_text(CHILD)
    printed = litegpu_exec("program.py", kind)
    assert printed.returncode == 0, printed.stderr
    assert printed.stderr.count("litegpu: model.tflite: 1 of 2 nodes on opencl") == 1


def test_child_processes_with_the_c_library(folder: Path) -> None:
    package = pytest.importorskip("pymicro_wakeword", reason="a package with the C library")
    library = next(Path(package.__file__).parent.glob("lib/**/*tensorflowlite_c*"))
    program = f"""
import ctypes, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
runtime = ctypes.CDLL({str(library)!r})
for name in ("ModelCreateFromFile", "InterpreterCreate"):
    getattr(runtime, "TfLite" + name).restype = ctypes.c_void_p
model = ctypes.c_void_p(runtime.TfLiteModelCreateFromFile(b"model.tflite"))
assert runtime.TfLiteInterpreterCreate(model, None)
"""
    (folder / "program.py").write_text(program)
    printed = litegpu_exec("program.py")
    assert printed.returncode == 0, printed.stderr
    assert printed.stderr.count("litegpu: model.tflite: 1 of 2 nodes on opencl") == 1


def test_child_processes_without_a_runtime_do_not_import_litegpu(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.own = 'own'")
    check = "import sys; print(sys.own, 'litegpu' in sys.modules, sys.path, sys.modules.keys())"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {check!r}])"
    path = os.pathsep.join([str(folder), python_path()])
    printed = litegpu_exec("-c", program, PYTHONPATH=path)
    assert printed.stdout.startswith("own False ")
    assert "startup" not in printed.stdout.partition("dict_keys")[0]


def test_child_processes_of_another_environment_are_not_changed(folder: Path) -> None:
    check = "import sys, ctypes; print(sys.meta_path[0], ctypes.CDLL.__getitem__.__module__)"
    wanted = '{"prefix": "/other", "options": {}, "runtimes": []}'
    environment = {"LITEGPU_EXEC": wanted, "PYTHONPATH": str(children._STARTUP)}
    printed = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )
    assert "Finder'>" not in printed.stdout.replace("BuiltinImporter", "")
    assert printed.stdout.endswith(" ctypes\n")


def test_a_child_without_a_device_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise UnsupportedDeviceError("There is no GPU.")

    monkeypatch.setattr(children, "accelerate", fail)
    children.start({})
    assert f"interpreters of process {os.getpid()} run on the CPU: There is no GPU." in caplog.text


def test_long_compiling_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    announce = children.Announcement()
    for seconds in (0.5, 2.5, 3.0):
        announce(Progress("compile", seconds=seconds))
    assert capsys.readouterr().err == "litegpu: compiling the kernels of a model\n"


def test_the_environment_is_as_before_afterwards(folder: Path, null_device: Any) -> None:
    before = dict(os.environ)
    (folder / "program.py").write_text("import os\nassert 'startup' in os.environ['PYTHONPATH']")
    assert cli.main(["exec", "program.py"]) == 0
    assert dict(os.environ) == before


def test_an_interrupted_program_has_no_summary(
    folder: Path, null_device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "program.py").write_text("raise KeyboardInterrupt")
    assert cli.main(["exec", "program.py"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "litegpu: interrupted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: PROGRAM"),
        (["--nonsense"], "unknown flag '--nonsense'"),
        (["-m"], "-m needs the name of a module"),
        (["-c"], "-c needs the code"),
        (["pytset"], "There is no file 'pytset', and no command of this name in the Python"),
        (["python", "x.py"], "Omit it: this command runs the program itself."),
        (["--precisoin=fp16", "x.py"], "unknown flag '--precisoin'"),
    ],
)
def test_wrong_commands(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_on_the_cpu_is_reported() -> None:
    lines = children.summary([AcceleratedModel("a.tflite", error="The device is gone.")])
    assert lines == ["a.tflite: on the CPU. The device is gone."]


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
