"""Runs Python programs in processes that begin with the packages of others already loaded.

    run(["-m", "litegpu.tools.cli", "devices"], folder, os.environ)

Each program has a process of its own, and loads litegpu itself, as a program that is started anew.
It is a fork of one process that has imported what litegpu imports of others, which takes as long as
most programs here take otherwise. Systems without fork start programs anew.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from places import SUPPORT

_PACKAGES = (
    *("numpy", "PIL.Image", "jinja2", "pyopencl", "pyopencl.cltypes", "wgpu.backends.wgpu_native"),
    *("cuda.bindings.driver", "cuda.bindings.nvrtc", "ai_edge_litert.interpreter"),
)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a folder: `-c CODE`, `-m MODULE` or a file, each with arguments.

    Raises TimeoutError.
    """
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env=dict(environment),
            timeout=timeout,
            check=False,
        )
    with tempfile.TemporaryDirectory() as written:
        files = [os.path.join(written, name) for name in ("stdout", "stderr")]
        request = {
            **{"arguments": list(arguments), "folder": str(folder), "files": files},
            **{"environment": dict(environment), "timeout": timeout},
        }
        process = _server()
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(request), file=process.stdin, flush=True)
        code = json.loads(process.stdout.readline())
        texts = [Path(file).read_text(encoding="utf-8") for file in files]
    if code is None:
        raise TimeoutError(f"{arguments} took more than {timeout:g} s: {texts[1]}")
    return subprocess.CompletedProcess([*arguments], code, *texts)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that others are forked from; it ends with this one."""
    code = "import forked; forked.serve()"
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def serve() -> None:
    """Fork a process for each request of standard input, and answer with its exit code."""
    own = frozenset(os.environ)
    for package in _PACKAGES:
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "litegpu"]
    assert not loaded, loaded
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _become(request, own)
            return
        print(json.dumps(_ended(child, request["timeout"])), flush=True)


def _ended(child: int, timeout: float) -> int | None:
    """Return how a process ended, as subprocess says it, or None if it had to be killed."""
    late = []

    def kill(*_: object) -> None:
        late.append(child)
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return None if late else os.waitstatus_to_exitcode(status)


def _become(request: Mapping[str, Any], own: Set[str]) -> None:
    """Run a program in this process, to its end; `own` are the variables that it began with."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, file in enumerate([os.devnull, *request["files"]]):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["folder"])
    for name in own:
        os.environ.pop(name, None)
    os.environ.update(request["environment"])
    kind, *sys.argv = request["arguments"]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *paths, *(path for path in sys.path[1:] if path != str(SUPPORT))]
    if kind == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, sys.argv[0] = sys.argv[0], kind
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv.insert(0, kind)
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")
