"""The command `litegpu`: dispatch, help, errors, exit statuses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import litegpu
from litegpu.errors import ModelError
from litegpu.tools import cli
from litegpu.version import __version__


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], int]], None]:
    """Returns a function that puts another tool in the place of `litegpu demo`."""

    def install(main: Callable[[Any], int]) -> None:
        fake = SimpleNamespace(main=main, ARGUMENTS={}, FLAGS=(), EXAMPLES=("litegpu demo",))
        monkeypatch.setitem(sys.modules, "litegpu.tools.demo", cast(ModuleType, fake))

    return install


def test_help_names_every_tool(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["-h"], ["help"]):
        assert cli.main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"\n  {name}" in text for name in cli.TOOLS)
        assert "examples:" in text


def test_without_arguments_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == cli.help_text()


def test_unknown_tools_get_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chekc", "model.tflite"]) == 2
    error = capsys.readouterr().err
    assert "litegpu: error: unknown tool 'chekc'. Did you mean 'check'?" in error


@pytest.mark.parametrize("name", cli.TOOLS)
def test_every_tool_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: litegpu {name} ")
    assert "examples:" in text


def test_errors_are_one_clean_line(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: Any) -> int:
        raise ModelError("the model is damaged. Fetch it again.")

    tool(fail)
    monkeypatch.delenv("LITEGPU_DEBUG", raising=False)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == "litegpu: error: the model is damaged. Fetch it again.\n"
    monkeypatch.setenv("LITEGPU_DEBUG", "1")
    with pytest.raises(ModelError):
        cli.main(["demo"])


def test_an_interrupt_is_no_traceback(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(args: Any) -> int:
        raise KeyboardInterrupt

    tool(interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "litegpu: interrupted\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_tool_decides_the_status(status: int, tool: Any) -> None:
    tool(lambda args: status)
    assert cli.main(["demo"]) == status


def test_bad_usage_is_status_2(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tool(lambda args: 0)
    assert cli.main(["demo", "--colour=red"]) == 2
    assert "litegpu demo: error: unknown flag '--colour'." in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = [sys.executable, "-m", "litegpu.tools.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        error = process.stderr.read()
    assert error == b""
    assert process.returncode == 1


@pytest.mark.parametrize("spelling", [["zoo:x"], ["--graph=zoo:x"], ["--graph", "zoo:x"]])
def test_a_model_may_be_given_as_graph(
    spelling: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def remember(args: Any) -> int:
        seen.append(args.model)
        return 0

    fake = SimpleNamespace(
        main=remember,
        ARGUMENTS={"model": "a model"},
        FLAGS=(),
        EXAMPLES=("litegpu check x",),
    )
    monkeypatch.setitem(sys.modules, "litegpu.tools.check", cast(ModuleType, fake))
    assert cli.main(["check", *spelling]) == 0
    assert seen == ["zoo:x"]


def test_an_interrupt_while_modules_are_imported(tmp_path: Path) -> None:
    """The first one that the command needs interrupts itself, as Ctrl-C would at that moment."""
    for name in ("argparse", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise KeyboardInterrupt")
        command = [sys.executable, "-m", "litegpu", "devices"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        found = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        assert (found.returncode, found.stderr) == (130, "litegpu: interrupted\n"), name
        (tmp_path / f"{name}.py").unlink()


def test_names_of_the_package_are_imported_when_they_are_used() -> None:
    code = "import sys, litegpu.tools.cli; print('numpy' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
    code = "import litegpu; print(litegpu.errors.ModelError is litegpu.ModelError)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert all(getattr(litegpu, name) is not None for name in litegpu.__all__)
    assert set(litegpu.__all__) <= set(dir(litegpu))
    with pytest.raises(AttributeError, match="module 'litegpu' has no attribute 'GpuDelegat'"):
        litegpu.GpuDelegat  # noqa: B018


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "litegpu", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, f"litegpu {__version__}\n"), found.stderr
