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

from litegpu.errors import DelegateLibraryError, LitegpuError, OptionsError
from litegpu.tools import runtime

_FAILED = 3
"""Exit status of the process that tries a library, where the library only said no."""


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


def load(flag: str, path: str, options: Mapping[str, str], model: bytes | None = None) -> Any:
    """Return the delegate of a shared library, for the runtime's interpreter.

    Args:
        flag: the name of the flag that asked for it, for errors.
        path: the file, or a name that the system's loader finds.
        options: keys and values that the library understands.
        model: a .tflite file that another process runs once with this delegate, to begin with.
            None: it only creates the delegate. Later invokes are this process's own risk.

    Raises:
        DelegateLibraryError: the library is missing, is none, refuses, or ends its process.
    """
    command = [sys.executable, "-m", __name__, path, json.dumps(dict(options))]
    tried = subprocess.run(command, input=model or b"", capture_output=True, check=False)
    said = tried.stderr.decode(errors="replace").strip()
    if tried.returncode == _FAILED:
        raise DelegateLibraryError(
            f"--{flag}={path}: {said.splitlines()[-1]} Give the path of a shared library for this "
            "machine that exports tflite_plugin_create_delegate and "
            "tflite_plugin_destroy_delegate, and the options that it knows."
        )
    if tried.returncode:
        raise DelegateLibraryError(
            f"--{flag}={path}: the library {_ending(tried.returncode)}, as a process of its own "
            f"that tried it showed.{_last(said)} Use another build of it, or run without it."
        )
    return runtime.load().load_delegate(path, dict(options))


def _ending(status: int) -> str:
    """Say how a process ended: POSIX tells a signal by a negative number."""
    if status < 0:
        return f"crashes ({signal.strsignal(-status)})"
    return f"ends the process (status {status:#x})"


def _last(said: str) -> str:
    return f" Its last words: {said.splitlines()[-1]}" if said else ""


def _try(path: str, options: dict[str, str], model: bytes) -> None:
    """Load the library and run the model with it, where there is one.

    Raises:
        DelegateLibraryError: the runtime or the library says what is wrong.
    """
    try:
        delegate = runtime.load().load_delegate(path, options)
        if model:
            runtime.interpreter(model, delegate).invoke()
    except AttributeError as error:
        raise DelegateLibraryError(f"it is a library, but not a delegate ({error}).") from error
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, LitegpuError):
            raise
        raise DelegateLibraryError(f"{' '.join(str(error).split()).rstrip('.')}.") from error


def main(path: str, options: str) -> int:
    """Try a library in this process, which the library may end; the model comes from stdin."""
    try:
        _try(path, json.loads(options), sys.stdin.buffer.read())
    except LitegpuError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(_FAILED)  # the runtime's half-made delegate would be destroyed, noisily
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
