"""Delegates in shared libraries of others: tried in a process of its own, then loaded here.

What a library does to a process cannot be caught in it. So another process loads it first, with
the same options, and runs the model once where there is one. Only what ends well there is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from litegpu.errors import DelegateLibraryError, OptionsError
from litegpu.tools import runtime

_PROGRAM = """
import sys
sys.path[:] = {}
from litegpu.tools.foreign import main
sys.exit(main(*sys.argv[1:]))
"""
"""What tries a library: with this process's path, or modules of the current folder would hide its.
"""
_REFUSED = 87
"""Exit status of the process that tries a library where nothing worse happens than a refusal."""


def parse_options(flag: str, text: str) -> dict[str, str]:
    """Return the options in `key:value;key:value`, in their order.

    Raises:
        OptionsError: a pair has not exactly one colon, or a key comes twice.
    """
    found: dict[str, str] = {}
    for pair in filter(None, text.split(";")):
        key, *values = pair.split(":")
        if len(values) != 1 or not key or key in found:
            why = "comes twice" if key in found else "is not one key, one ':' and one value"
            raise OptionsError(
                f"--{flag}={text}: '{pair}' {why}. Write key:value, with ';' between two of them."
            )
        found[key] = values[0]
    return found


def load(asked: str, path: str, options: Mapping[str, str], model: bytes | None = None) -> Any:
    """Return the delegate of a shared library, for the runtime's interpreter.

    Args:
        asked: the flag with its value that asked for it, for errors.
        path: the file, or a name that the system's loader finds.
        options: keys and values that the library understands.
        model: a .tflite file that another process runs once with this delegate, to begin with.
            None: it only creates the delegate. Later invokes are this process's own risk.

    Raises:
        DelegateLibraryError: the library is missing, is none, refuses, or ends its process.
    """
    known = os.path.abspath(path) if os.path.exists(path) else path
    command = [sys.executable, "-c", _PROGRAM.format(sys.path), known, json.dumps(dict(options))]
    tried = subprocess.run(command, input=model or b"", capture_output=True, check=False)
    said = [line for line in tried.stderr.decode(errors="replace").split("\n") if _tells(line)]
    if tried.returncode == _REFUSED and said:
        raise DelegateLibraryError(f"{asked}: {said[-1]}")
    if tried.returncode:
        words = f" Its last words: '{said[-1]}'." if said else ""
        raise DelegateLibraryError(
            f"{asked}: {_ending(tried.returncode)} It was tried in a process of its own."
            f"{words} Use another build of it, or run without it."
        )
    try:
        return _create(known, options)
    except DelegateLibraryError as error:
        raise DelegateLibraryError(f"{asked}: {error}") from error


def _tells(line: str) -> bool:
    """Whether a line is more than the runtime's news."""
    return bool(line.strip()) and not line.startswith("INFO:")


def _ending(status: int) -> str:
    """Say how a process ended: POSIX tells a signal by a negative number."""
    if status < 0:
        return f"The library crashes: {signal.strsignal(-status)}."
    return f"The library ends the process with status {status:#x}."


def _create(path: str, options: Mapping[str, str]) -> Any:
    """Return the delegate of a library.

    Raises:
        DelegateLibraryError: the loader or the library says what is wrong.
    """
    try:
        return runtime.load().load_delegate(path, dict(options))
    except OSError as error:
        raise DelegateLibraryError(
            f"It cannot be loaded ({_words(error)}). Give the path of a shared library that was "
            "built for this machine."
        ) from error
    except AttributeError as error:
        raise DelegateLibraryError(
            f"It is a library without a delegate ({_words(error)}). A delegate's exports "
            "tflite_plugin_create_delegate and tflite_plugin_destroy_delegate."
        ) from error
    except ValueError as error:
        raise DelegateLibraryError(
            f"It makes no delegate ({_words(error)}). Check the options that it is given."
        ) from error


def _run(delegate: Any, model: bytes) -> None:
    """Run a model once on zeros.

    Raises:
        DelegateLibraryError: the runtime refuses it with this delegate.
    """
    try:
        runtime.interpreter(model, delegate).invoke()
    except (RuntimeError, ValueError) as error:
        raise DelegateLibraryError(
            f"It is loaded, but this model does not run with it ({_words(error)}). Run it without "
            "this delegate, or use another build of it."
        ) from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def main(path: str, options: str) -> int:
    """Try a library in this process, which the library may end; the model comes from stdin."""
    try:
        delegate = _create(path, json.loads(options))
        if model := sys.stdin.buffer.read():
            _run(delegate, model)
    except DelegateLibraryError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(_REFUSED)  # the runtime would destroy the delegate that it did not get
    return 0
