"""Processes that compile with NVRTC in parallel.

NVRTC parses sources under a process-wide lock, about 25 milliseconds per module, regardless of the
number of threads. Separate processes do not share this lock. The pool starts each process by the
path of its program, never by a fork. Compiler processes do not load CUDA's driver, and exit when
their request pipe closes. If a process cannot be started, or fails, litegpu compiles in the current
process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from litegpu import config
from litegpu.backends.cuda.compile_process import ASIDE, REPLY, REQUEST
from litegpu.host.children import can_run_modules

_PROGRAM = Path(__file__).with_name("compile_process.py")
_CPU_TIME = Path("/sys/fs/cgroup/cpu.max")
"""The Linux file with a container's CPU quota."""
_MIN_CORES = 4
"""Minimum cores for separate processes: with fewer cores, threads rarely wait for the lock."""
_MOST = 15
_HEAP = {
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""A glibc setting that keeps freed memory, which saves a tenth of a module's compile time."""
_PATIENCE_S = 120.0
"""Seconds per module after which litegpu considers a process hung."""


class CompilerProcesses:
    """A pool of compiler processes, each started at first use; threads may use it concurrently."""

    def __init__(self, command: Callable[[], Sequence[str]], most: int) -> None:
        """Create a pool of at most `most` processes; `command` starts one, () if impossible."""
        self._command = command
        self._changing = threading.Lock()
        self.wanted = self._left = most
        """Maximum number of processes."""
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: list[subprocess.Popen[bytes]] = []
        self.closed = False
        """Whether the pool is closed, which cancels the requests of its processes."""

    def start(self) -> None:
        """Start another process in advance, unless the pool has reached its maximum."""
        process = self._new()
        if process is not None:
            self._finish(process, keep=True)

    def compile(self, source: str, options: Sequence[str]) -> bytes | None:
        """Return the cubin of a module; None if no process returns one."""
        process = self._take()
        if process is None:
            return None
        impatience = threading.Timer(_PATIENCE_S, process.kill)
        impatience.daemon = True
        impatience.start()
        try:
            cubin = _answer(process, source.encode(), "\0".join(options).encode())
        finally:
            impatience.cancel()
        self._finish(process, keep=cubin is not None)
        return cubin

    def close(self) -> None:
        """End all processes, even busy processes; a thread that waits for a process releases it."""
        with self._changing:
            self.closed, self._left = True, 0
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()  # first kill all, then wait: they end at the same time
        for process in idle:
            _end(process)

    def _take(self) -> subprocess.Popen[bytes] | None:
        """Return an idle process, or a new one if none is idle; None if none can start."""
        with self._changing:
            if self._idle:
                self._busy.append(self._idle.pop())
                return self._busy[-1]
        return self._new()

    def _new(self) -> subprocess.Popen[bytes] | None:
        with self._changing:
            if not self._left:
                return None
            self._left -= 1
        process = _started(self._command())
        with self._changing:
            if process is None:
                self._left = 0
                return None
            self._busy.append(process)
            if self.closed:
                process.kill()
        return process

    def _finish(self, process: subprocess.Popen[bytes], keep: bool) -> None:
        """Return a process to the pool; without `keep`, end the process and start no others."""
        with self._changing:
            self._busy.remove(process)
            if keep := keep and not self.closed:
                self._idle.append(process)
            else:
                self._left = 0  # another process would fail in the same way
        if not keep:
            _end(process)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Return a new process; None if it cannot be started."""
    if not command:
        return None
    pipe, flags = subprocess.PIPE, getattr(subprocess, "CREATE_NO_WINDOW", 0)
    if command[-1] == ASIDE:  # Windows has no nice()
        flags |= getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)
    try:
        return subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            creationflags=flags,
            env={**_HEAP, **config.environment()},
        )
    except (OSError, ValueError):
        return None


def _answer(process: subprocess.Popen[bytes], source: bytes, options: bytes) -> bytes | None:
    """Return the cubin; None if the source has errors or the process has ended."""
    requests, replies = process.stdin, process.stdout
    if requests is None or replies is None:
        return None
    try:
        requests.write(REQUEST.pack(len(options), len(source)) + options + source)
        requests.flush()
        header = replies.read(REPLY.size)
        status, size = REPLY.unpack(header) if len(header) == REPLY.size else (1, 0)
        cubin = replies.read(size)
    except OSError:
        return None
    return None if status or len(cubin) < size else cubin


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process for which no thread waits, and release its resources."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # data that is still to be written
                pipe.close()
    process.wait()


def processes(version: Callable[[], Sequence[int]], aside: bool = False) -> CompilerProcesses:
    """Return the pool for this machine's cores, whose NVRTC must have this version.

    With `aside`, the pool has few processes, which run at low priority.
    """
    most = min(cores(), _MOST + 1) - 1
    wanted = (most + 1) // 2 if aside else most
    low = (ASIDE,) if aside else ()

    def started() -> Sequence[str]:
        found = command(version())
        return (*found, *low) if found else ()

    return CompilerProcesses(started, wanted if _are_wanted() else 0)


def are_possible() -> bool:
    """Return whether separate processes can compile."""
    return _are_wanted() and bool(_program())


def _are_wanted() -> bool:
    return cores() >= _MIN_CORES and config.are_compilers_wanted()


def cores() -> int:
    """Return the number of cores that the machine and the container allow this process."""
    affinity = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = map(int, _CPU_TIME.read_text(encoding="ascii").split())
        return max(1, min(found, quota // period))
    except (OSError, ValueError, ZeroDivisionError):  # without control groups, or "max"
        return found


def command(version: Sequence[int]) -> tuple[str, ...]:
    """Return the command of a process, with its arguments; empty if Python cannot start one."""
    program = _program()
    library = _library() if program else None
    return (*program, library, ".".join(map(str, version))) if library else ()


def _program() -> tuple[str, ...]:
    """Return the command of a process without its arguments; empty if Python cannot start one.

    An application that embeds Python has no interpreter executable, and a program inside an archive
    cannot be run.
    """
    if not can_run_modules() or not _PROGRAM.is_file():
        return ()
    return (sys.executable, "-I", "-S", "-B", str(_PROGRAM))


@cache
def _library() -> str | None:
    """Return the path of the NVRTC library that this process has loaded; None if unknown."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        return str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, AttributeError, RuntimeError):
        return None
