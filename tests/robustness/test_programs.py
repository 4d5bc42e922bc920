"""The programs of this suite: their output, their exit, and no hangs."""

from __future__ import annotations

import signal
import sys

import pytest

from every_backend import on_every_backend, present
from robustness.programs import Program, run_program

PLAIN = ""
"""Programs of this file need no model."""

signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@on_every_backend
def test_a_program_runs_on_its_backend(backend: str) -> None:
    ended = run_program(
        """
        delegate = GpuDelegate()
        (result,) = run(interpreter(model, delegate), x)
        assert abs(result - reference(model, x)[0]).max() < 1e-5
        print(delegate.device.backend)
        """,
        backend,
    )
    assert (ended.code, ended.stdout, ended.stderr) == (0, f"{backend}\n", "")
    assert ended.seconds > 0


def test_there_is_a_backend() -> None:
    assert present()


@signals
def test_a_signal_after_a_marker() -> None:
    with Program("print('ready', flush=True)\ninput()", "", start=PLAIN) as program:
        program.wait_for("ready")
        program.send(signal.SIGINT)
        ended = program.end()
    assert ended.code == -signal.SIGINT
    assert "KeyboardInterrupt" in ended.stderr


def test_a_line_for_the_program() -> None:
    with Program("import sys\nsys.exit(input() + sys.argv[1])", "", "b", start=PLAIN) as program:
        program.write("a")
        assert program.pid > 0
        ended = program.end()
    assert (ended.code, ended.stderr) == (1, "ab\n")


def test_a_program_that_ends_early() -> None:
    with (
        Program("print('one')", "", start=PLAIN) as program,
        pytest.raises(pytest.fail.Exception, match="ended before it printed 'two'") as caught,
    ):
        program.wait_for("two")
    assert "one" in str(caught.value)


@signals
def test_a_program_that_hangs_shows_where_and_is_killed() -> None:
    source = """
        import os, time
        child = os.fork() or time.sleep(1000)
        print(child, flush=True)
        time.sleep(1000)
        """
    with (
        Program(source, "", start=PLAIN, limit=3) as program,
        pytest.raises(pytest.fail.Exception, match="hangs") as caught,
    ):
        program.end()
    assert "most recent call first" in str(caught.value)
