"""Runs Python programs of litegpu in separate processes, which may crash or hang."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """
import sys
sys.path[:] = {}
from {} import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs `main` of a module with this process's import path, so that modules in the current folder
cannot replace litegpu's modules."""


@dataclass(frozen=True)
class Ended:
    """How a process ended; `status` is None if the process was stopped after a timeout."""

    status: int | None
    output: str
    errors: str

    def how(self) -> str:
        """Return how the process ended, as part of a sentence."""
        if self.status is None:
            return "hangs"
        if self.status < 0:  # on POSIX, the negative number of a signal
            return f"crashes: {signal.strsignal(-self.status)}"
        return f"ends the process with status {self.status:#x}"


def can_run_modules() -> bool:
    """Whether a Python executable is available (not in frozen or embedding applications)."""
    name = Path(sys.executable or "").name
    return not getattr(sys, "frozen", False) and bool(_PYTHON.fullmatch(name))


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?(\.exe)?", re.IGNORECASE)


def run_module(
    module: str, arguments: Sequence[str], timeout: float | None = None, given: bytes = b""
) -> Ended:
    """Run the `main` of a module on `arguments` in a separate process.

    The process receives no signals of the terminal, and does not outlive the call. After `timeout`
    seconds, or if the call raises an exception, the function kills the process and its child
    processes.

    Args:
        module: has a function `main` that takes a list of arguments and returns an exit status.
        arguments: the arguments of `main`.
        timeout: maximum seconds; None for no limit.
        given: the process's standard input.
    """
    windows = sys.platform == "win32"
    status: int | None = None
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(sys.path, module), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=not windows,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) if windows else 0,
    ) as process:
        try:
            output, errors = process.communicate(given, timeout)
            status = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            output, errors = process.communicate()
        except BaseException:
            _kill(process)
            raise
    return Ended(status, output.decode(errors="replace"), errors.decode(errors="replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):  # the process has just ended
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
