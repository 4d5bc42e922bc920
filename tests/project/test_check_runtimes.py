"""The script that runs the tests in older runtimes, and its errors."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

Version = namedtuple("Version", "major minor")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Return the names of the script, which keeps its environments elsewhere."""
    names = runpy.run_path(str(ROOT / "scripts" / "check_runtimes.py"))
    main: dict[str, Any] = names["main"].__globals__
    monkeypatch.setitem(main, "FOLDER", tmp_path)
    monkeypatch.setitem(main, "ROOT", ROOT)
    return main


def played(tests: str, status: int = 0) -> Callable[..., Any]:
    """Return what stands in for subprocess.run: pytest says `tests` and ends with `status`."""

    def run(command: list[Any], **_: Any) -> Any:
        words = [str(word) for word in command]
        if "venv" in words:
            Path(words[-1]).mkdir(parents=True)
        said = str(Path(words[0]).parents[1]) if "-c" in words else tests
        if "pytest" in words and status:
            raise subprocess.CalledProcessError(status, words, output=said)
        return subprocess.CompletedProcess(words, 0, stdout=said)

    return run


CLOSING = "....\n141 passed, 4 deselected in 33.21s\n"


@pytest.mark.parametrize(
    ("tests", "status", "result", "said"),
    [
        (CLOSING, 0, 0, "141 passed, 4 deselected"),
        ("E   SystemError\n1 failed, 3 passed in 2s\n", 1, 1, "E   SystemError"),
        ("no tests ran in 0.01s\n", 0, 1, "FAILED: no test ran"),
    ],
)
def test_what_the_tests_say(
    tests: str,
    status: int,
    result: int,
    said: str,
    script: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "version_info", Version(3, 11))
    monkeypatch.setattr(subprocess, "run", played(tests, status))
    assert script["main"](["ai-edge-litert-1.4"]) == result
    output = capsys.readouterr().out
    assert said in output
    assert "making" in output


def test_an_environment_is_made_once(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", played(CLOSING))
    monkeypatch.setattr(sys, "version_info", Version(3, 11))
    assert script["main"](["ai-edge-litert-2.0"]) == 0
    assert script["main"](["ai-edge-litert-2.0"]) == 0
    assert capsys.readouterr().out.count("making") == 1


def test_a_runtime_without_a_wheel_is_named(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", Version(3, 13))
    assert script["main"]([]) == 0
    assert capsys.readouterr().out.count("no wheel for Python 3.13") == len(script["RUNTIMES"])


def test_an_unknown_name(script: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert script["main"](["tensorflow-1"]) == 2
    assert "unknown runtime 'tensorflow-1'. Known: tflite-runtime-2.14," in capsys.readouterr().err
