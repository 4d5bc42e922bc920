"""Child processes: their output, their end, and what remains of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from litegpu.host.children import Ended, run_module

PROGRAM = """
import os, subprocess, sys, time
def main(arguments):
    what, *rest = arguments
    if what == "answer":
        print(sys.stdin.read() + rest[0])
        print("careful", file=sys.stderr)
        return 7
    if what == "crash":
        os.abort()
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(sleeper.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that only this test's path has."""
    (tmp_path / "a_child_of_tests.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    return "a_child_of_tests"


def test_what_it_is_given_and_says(program: str) -> None:
    ended = run_module(program, ["answer", "and more"], given=b"some ")
    assert (ended.status, ended.output.strip()) == (7, "some and more")
    assert ended.errors.strip() == "careful"
    assert ended.how() == "ends the process with status 0x7"


def test_a_crash(program: str) -> None:
    assert run_module(program, ["crash"]).how() == (
        "crashes: Aborted" if sys.platform != "win32" else "ends the process with status 0x3"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="its grandchildren live on")
def test_what_takes_too_long_is_killed_with_all_that_it_started(program: str) -> None:
    start = time.monotonic()
    ended = run_module(program, ["hang"], timeout=2)
    assert time.monotonic() - start < 60
    assert (ended.status, ended.how()) == (None, "hangs")
    assert not alive(int(ended.output))


def alive(pid: int) -> bool:
    """Return whether a process runs, after some time for what is dead to be gone."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


def test_endings_in_words() -> None:
    assert Ended(None, "", "").how() == "hangs"
    if sys.platform != "win32":
        assert Ended(-11, "", "").how() == "crashes: Segmentation fault"
