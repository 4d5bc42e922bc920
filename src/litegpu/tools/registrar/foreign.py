"""Loads delegates from shared libraries, after a trial in a separate process.

A process cannot recover from every failure of a library. Therefore a separate process first loads
the library with the same options, and runs the model once, if specified. This process loads only
libraries that have passed the trial.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.errors import DelegateLibraryError, OptionsError
from litegpu.host.children import run_module
from litegpu.runtime_abi import interpreter as runtime

PATIENCE_SECS = 120.0
"""Timeout in seconds for a trial: loading a library and running the model once."""
_REFUSED = 87
"""Exit status of the trial process if the library reports an error."""


def parse_options(flag: str, text: str) -> dict[str, str]:
    """Parse options of the form `key:value;key:value`, in order.

    Raises:
        OptionsError: a pair does not have exactly one colon, or a key is repeated.
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


@dataclass(frozen=True)
class Loaded:
    """A delegate of a shared library, and the duration of its trial in seconds."""

    delegate: Any
    trial_seconds: float


def load(
    spelling: str, path: str, options: Mapping[str, str], model: bytes | None = None
) -> Loaded:
    """Load the delegate of a shared library for the runtime's interpreter.

    Args:
        spelling: the flag with its value, for error messages.
        path: the library file, or a name that the system's loader finds.
        options: the options of the library.
        model: a .tflite file that the trial process runs once with this delegate. With None, the
            trial process only creates the delegate. Later invocations in this process may still
            crash.

    Raises:
        DelegateLibraryError: the library is missing or invalid, reports an error, hangs, or
            crashes.
    """
    known = os.path.abspath(path) if os.path.exists(path) else path
    start = time.perf_counter()
    tried = run_module(__name__, [known, json.dumps(dict(options))], PATIENCE_SECS, model or b"")
    said = [line for line in tried.errors.split("\n") if _tells(line)]
    if tried.status == _REFUSED and said:
        raise DelegateLibraryError(f"{spelling}: {said[-1]}")
    if tried.status != 0:
        words = f" Its last output: '{said[-1]}'." if said else ""
        limit = f" for {PATIENCE_SECS:g} s" if tried.status is None else ""
        raise DelegateLibraryError(
            f"{spelling}: The library {tried.how()}{limit}. It was tested in a separate "
            f"process.{words} Use another build of the library, or run without this delegate."
        )
    spent = time.perf_counter() - start
    try:
        return Loaded(_create(known, options), spent)
    except DelegateLibraryError as error:
        raise DelegateLibraryError(f"{spelling}: {error}") from error


def _tells(line: str) -> bool:
    """Whether a line is not part of the runtime's usual output."""
    return bool(line.strip()) and not line.startswith("INFO:")


def _create(path: str, options: Mapping[str, str]) -> Any:
    """Create the delegate of a library.

    Raises:
        DelegateLibraryError: the loader or the library reports an error.
    """
    try:
        return runtime.load().load_delegate(path, dict(options))
    except OSError as error:
        raise DelegateLibraryError(
            f"The library cannot be loaded ({_words(error)}). Give the path of a shared library "
            "that was built for this machine."
        ) from error
    except AttributeError as error:
        raise DelegateLibraryError(
            f"The library has no delegate ({_words(error)}). The library of a delegate exports "
            "tflite_plugin_create_delegate and tflite_plugin_destroy_delegate."
        ) from error
    except ValueError as error:
        raise DelegateLibraryError(
            f"The library returns no delegate ({_words(error)}). Check the options of the delegate."
        ) from error


def _run(delegate: Any, model: bytes) -> None:
    """Run a model once on zeros.

    Raises:
        DelegateLibraryError: the runtime rejects the model with this delegate.
    """
    try:
        runtime.interpreter(model, delegate).invoke()
    except (RuntimeError, ValueError) as error:
        raise DelegateLibraryError(
            "The library is loaded, but this model does not run with its delegate "
            f"({_words(error)}). Run the model without this delegate, or use another build of the "
            "library."
        ) from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def main(arguments: Sequence[str]) -> int:
    """Try a library: the arguments are its path and JSON options, the model is on stdin.

    A crash of the library ends only this trial process.
    """
    path, options = arguments
    try:
        delegate = _create(path, json.loads(options))
        if model := sys.stdin.buffer.read():
            _run(delegate, model)
    except DelegateLibraryError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(_REFUSED)  # the runtime would destroy the delegate although it has none
    return 0
