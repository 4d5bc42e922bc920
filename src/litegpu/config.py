"""All environment variables that litegpu reads, in one place."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

_log = logging.getLogger("litegpu")

VARIABLES: Mapping[str, str] = {
    "LITEGPU_DEBUG": "1: log the delegate's decisions; 2: also log kernel sources",
    "LITEGPU_BACKEND": "default value of the option `backend`",
    "LITEGPU_DEVICE": "default value of the option `device` (number, part of its name, cuda:0)",
    "LITEGPU_MODELS": "folder with trained models",
    "LITEGPU_CACHE": "0: disable the cache of compiled partitions; a path: the folder of the cache",
    "LITEGPU_CACHE_PATH": (
        "folders with cached partitions; new files go to the first writable folder"
    ),
    "LITEGPU_CACHE_UNSAFE": "1: use a cache folder even if other users can write to it",
    "LITEGPU_CACHE_LIMIT": "maximum size of a cache folder in MiB (default 8192)",
    "LITEGPU_EXEC": "set by `litegpu exec`: the options for processes that the program creates",
    "LITEGPU_COMPILE_PROCESSES": (
        "0: compile CUDA kernels in one process, and OpenCL kernels as one program"
    ),
}
"""Name and meaning of each environment variable that litegpu reads."""


def text(name: str) -> str:
    """Return a declared variable's value; empty if unset.

    Raises KeyError for the name of an undeclared variable.
    """
    if name not in VARIABLES:
        raise KeyError(f"undeclared environment variable {name}; declare it in config.VARIABLES")
    return os.environ.get(name, "").strip()


def environment() -> Mapping[str, str]:
    """Return all variables of the environment, for reports or for child processes."""
    return os.environ


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables temporarily, also for child processes."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def debug_level() -> int:
    """Return LITEGPU_DEBUG as a number; a value that is not a number counts as 1."""
    value = text("LITEGPU_DEBUG")
    return int(value) if value.isdecimal() else int(bool(value))


_CACHE_MIB = 8192
_NO, _YES = ("", "0", "false", "no", "off"), ("true", "yes", "on")


def cache_setting() -> bool | None:
    """Return whether the environment enables or disables the cache; None if no variable does."""
    value = text("LITEGPU_CACHE").lower()
    return value not in _NO if value else bool(text("LITEGPU_CACHE_PATH")) or None


def is_unsafe_cache_allowed() -> bool:
    """Return whether LITEGPU_CACHE_UNSAFE permits folders that other users may write to."""
    return text("LITEGPU_CACHE_UNSAFE").lower() not in _NO


def cache_folders() -> list[str]:
    """Return the folder in LITEGPU_CACHE, if its value is a path, and those in LITEGPU_CACHE_PATH.

    The folders in LITEGPU_CACHE_PATH are separated as in PATH: by a colon, on Windows by a
    semicolon.
    """
    folder = text("LITEGPU_CACHE")
    named = [folder] if is_folder_name(folder) else []
    return [*named, *filter(None, map(str.strip, text("LITEGPU_CACHE_PATH").split(os.pathsep)))]


def is_folder_name(value: str) -> bool:
    """Return whether a text is a path, rather than a number or a word for yes or no."""
    return not (value.isdecimal() or value.lower() in (*_NO, *_YES))


def cache_limit() -> int:
    """Return the maximum size of a cache folder in bytes; the default for an invalid value."""
    return _mib(text("LITEGPU_CACHE_LIMIT")) << 20


@cache
def _mib(value: str) -> int:
    """Convert a number of MiB to bytes; log a warning once if the value is not a number."""
    if value.isdecimal():
        return int(value)
    if value:
        _log.warning(
            "LITEGPU_CACHE_LIMIT is '%s', which is not a whole number of MiB; the limit is %d MiB.",
            *(value, _CACHE_MIB),
        )
    return _CACHE_MIB


def are_compilers_wanted() -> bool:
    """Return whether LITEGPU_COMPILE_PROCESSES permits other threads and processes to compile."""
    return text("LITEGPU_COMPILE_PROCESSES").lower() not in _NO[1:]


def columns() -> int | None:
    """Return COLUMNS, the line width of the terminal; None if its value is not a number."""
    value = os.environ.get("COLUMNS", "").strip()
    return int(value) if value.isdecimal() and int(value) else None


def names_ray_cluster() -> bool:
    """Return whether RAY_ADDRESS, a variable of Ray, names a cluster."""
    return bool(os.environ.get("RAY_ADDRESS", "").strip())


_placing = threading.Lock()
_placed: dict[str, int] = {}
"""Number of threads that need each environment variable that `placeholder` has set."""


@contextmanager
def placeholder(name: str, value: str) -> Iterator[None]:
    """Set another library's environment variable temporarily, unless the variable is already set.

    Several threads may set the variable at the same time: the last of them to finish removes it.
    """
    with _placing:
        ours = name in _placed or name not in os.environ
        if ours:
            os.environ[name] = value
            _placed[name] = _placed.get(name, 0) + 1
    try:
        yield
    finally:
        with _placing:
            if ours:
                _placed[name] -= 1
                if not _placed[name]:
                    del _placed[name]
                    os.environ.pop(name, None)


class _DebugHandler(logging.Handler):
    """A log handler that prints on the current stderr, unless the program configures logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is None or logging.getLogger().handlers:
            return
        try:
            print(f"litegpu: {self.format(record)}", file=sys.stderr)
        except (OSError, ValueError):  # stderr is closed, or a pipe without a reader
            self.handleError(record)


def show_debug_messages() -> None:
    """Print the log of litegpu if LITEGPU_DEBUG is set."""
    if not debug_level():
        return
    log = logging.getLogger("litegpu")
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    if not any(isinstance(handler, _DebugHandler) for handler in log.handlers):
        log.addHandler(_DebugHandler())
