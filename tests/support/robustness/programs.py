"""Runs Python programs in processes of their own: on a backend, with signals and a time limit.

A program is text. Unless told otherwise it begins with `START`, which gives it a small model::

    with Program("print('ready', flush=True); input()", "opencl") as program:
        program.wait_for("ready")
        program.send(signal.SIGINT)
        ended = program.end()
    assert ended.code == -signal.SIGINT
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import pytest

from places import python_path

LIMIT = 100.0
"""Seconds after which a program has hung, on a machine that is busy with other things."""

START = """
import logging, sys
logging.getLogger("litegpu").setLevel(logging.ERROR)
from litegpu import GpuDelegate
from small_models import RUNTIME, fully_convolutional, interpreter, random, reference, run
model, x = fully_convolutional(), random(1, 9, 7, 3)
"""
"""What a program begins with: a model of three convolutions, its input, ways to run it."""

_WATCHED = (
    "import faulthandler, signal; faulthandler.register(signal.SIGUSR1)\n"
    if hasattr(signal, "SIGUSR1")
    else "import faulthandler; faulthandler.dump_traceback_later({seconds}, exit=True)\n"
)
"""Where every thread is goes to stderr when the time is up.

By a signal: a forked child waits at exit for faulthandler's thread, which it does not have.
"""

_OF_OTHERS = ("INFO: ", "WARNING: All log messages before absl", "I0000 ", "W0000 ")
"""How lines begin that a runtime or a driver writes by itself."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: `code` is its exit code, or minus the signal that killed it."""

    code: int
    stdout: str
    stderr: str
    """Without what a runtime writes by itself."""
    seconds: float
    """From its start to its end."""


class Program:
    """A program that runs; leaving the context kills it, and the processes that it has made."""

    def __init__(
        self,
        source: str,
        backend: str,
        *arguments: str,
        start: str = START,
        environment: Mapping[str, str] | None = None,
        limit: float = LIMIT,
    ) -> None:
        """Start `source`; after `limit` seconds it is killed, and shows where its threads were."""
        self._until = time.monotonic() + limit
        self._began = time.monotonic()
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._read: list[str] = []
        text = _WATCHED.format(seconds=limit * 0.9) + start + textwrap.dedent(source)
        self._process = subprocess.Popen(
            [sys.executable, "-c", text, *arguments],
            env=_environment(backend) | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
        self._stderr.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def wait_for(self, marker: str) -> None:
        """Wait until it has printed a line with `marker`. Fails if it ends before."""
        while True:
            line = self._next_line()
            if line is None:
                pytest.fail(f"ended before it printed {marker!r}\n{self._printed()}")
            if marker in line:
                return

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def write(self, text: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def end(self) -> Ended:
        """Wait for its end. Fails if that takes longer than the limit."""
        while self._next_line() is not None:
            pass
        try:
            code = self._process.wait(max(self._until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._fail_as_hung()
        seconds = time.monotonic() - self._began
        return Ended(code, "".join(self._read), self._errors(), seconds)

    def _next_line(self) -> str | None:
        """Return what it prints next, None at the end of its output."""
        try:
            line = self._lines.get(timeout=max(self._until - time.monotonic(), 0))
        except queue.Empty:
            self._fail_as_hung()
        if line is not None:
            self._read.append(line)
        return line

    def _fail_as_hung(self) -> None:
        if hasattr(signal, "SIGUSR1") and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGUSR1)
            time.sleep(1)
        self._kill()
        pytest.fail(f"hangs\n{self._printed()}")

    def _kill(self) -> None:
        """End the process and, where there are groups of processes, all that it has made."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def _printed(self) -> str:
        return f"stdout:\n{''.join(self._read)}\nstderr:\n{self._errors()}"

    def _errors(self) -> str:
        self._stderr.seek(0)
        return "".join(line for line in self._stderr if not line.startswith(_OF_OTHERS))


def _environment(backend: str) -> dict[str, str]:
    return os.environ | {"LITEGPU_BACKEND": backend, "PYTHONPATH": python_path(), "PYTHONUTF8": "1"}


def run_program(
    source: str,
    backend: str,
    *arguments: str,
    start: str = START,
    environment: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run a program to its end."""
    options = {"start": start, "environment": environment, "limit": limit}
    with Program(source, backend, *arguments, **options) as program:  # type: ignore[arg-type]
        return program.end()
