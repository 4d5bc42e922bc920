"""Every environment variable that litegpu reads, in one place."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

_log = logging.getLogger("litegpu")

VARIABLES: Mapping[str, str] = {
    "LITEGPU_DEBUG": "1 logs decisions, 2 also kernel sources",
    "LITEGPU_BACKEND": "default of the option backend",
    "LITEGPU_DEVICE": "default of the option device (number, part of its name, cuda:0)",
    "LITEGPU_MODELS": "folder with trained models",
    "LITEGPU_CACHE": "0 disables the cache of partitions, a path sets its folder",
    "LITEGPU_CACHE_PATH": "folders of cached partitions; the first writable one takes new files",
    "LITEGPU_CACHE_UNSAFE": "1 uses a cache folder even if other users can write to it",
    "LITEGPU_CACHE_LIMIT": "maximum size of a cache folder in MiB (default 1024)",
    "LITEGPU_COMPILE_PROCESSES": "0 compiles CUDA in one process, OpenCL as one program",
}
"""Name and meaning of each variable."""


def text(name: str) -> str:
    """Return a declared variable's value, empty when unset. Raises KeyError for others."""
    if name not in VARIABLES:
        raise KeyError(f"undeclared environment variable {name}; declare it in config.VARIABLES")
    return os.environ.get(name, "").strip()


def environment() -> Mapping[str, str]:
    """Return all variables of the environment, for reports or for child processes."""
    return os.environ


def debug_level() -> int:
    """Return LITEGPU_DEBUG as a number; anything that is not a number counts as 1."""
    value = text("LITEGPU_DEBUG")
    return int(value) if value.isdecimal() else int(bool(value))


_CACHE_MIB = 1024
_NO, _YES = ("", "0", "false", "no", "off"), ("true", "yes", "on")


def cache_setting() -> bool | None:
    """Return whether the cache is enabled or disabled; None if neither variable of it is set."""
    value = text("LITEGPU_CACHE").lower()
    return value not in _NO if value else bool(text("LITEGPU_CACHE_PATH")) or None


def is_unsafe_cache_allowed() -> bool:
    """Return whether LITEGPU_CACHE_UNSAFE permits folders that other users may write to."""
    return text("LITEGPU_CACHE_UNSAFE").lower() not in _NO


def cache_folders() -> list[str]:
    """Return the folder in LITEGPU_CACHE, if it is a path, and those in LITEGPU_CACHE_PATH.

    The separator is that of PATH: a colon, on Windows a semicolon.
    """
    folder = text("LITEGPU_CACHE")
    named = [folder] if is_folder_name(folder) else []
    return [*named, *filter(None, map(str.strip, text("LITEGPU_CACHE_PATH").split(os.pathsep)))]


def is_folder_name(value: str) -> bool:
    """Return whether a text is a path, not a number or a word for yes or no."""
    return not (value.isdecimal() or value.lower() in (*_NO, *_YES))


def cache_limit() -> int:
    """Return the maximum bytes of a cache folder; the default if it is not a number."""
    return _mib(text("LITEGPU_CACHE_LIMIT")) << 20


@cache
def _mib(value: str) -> int:
    """Return a number of MiB; log a warning once if it is not a number."""
    if value.isdecimal():
        return int(value)
    if value:
        _log.warning(
            "LITEGPU_CACHE_LIMIT is '%s', which is no whole number of MiB; it counts as %d.",
            *(value, _CACHE_MIB),
        )
    return _CACHE_MIB


def are_compilers_wanted() -> bool:
    """Return whether other threads and processes may compile (LITEGPU_COMPILE_PROCESSES)."""
    return text("LITEGPU_COMPILE_PROCESSES").lower() not in _NO[1:]


def columns() -> int | None:
    """Return COLUMNS, the line width of the terminal, None if it is not a number."""
    value = os.environ.get("COLUMNS", "").strip()
    return int(value) if value.isdecimal() and int(value) else None


def names_ray_cluster() -> bool:
    """Return whether RAY_ADDRESS, which Ray reads itself, names a cluster."""
    return bool(os.environ.get("RAY_ADDRESS", "").strip())


@contextmanager
def placeholder(name: str, value: str) -> Iterator[None]:
    """Set another library's variable temporarily, unless it has a value."""
    missing = name not in os.environ
    if missing:
        os.environ[name] = value
    try:
        yield
    finally:
        if missing:
            os.environ.pop(name, None)


class _DebugHandler(logging.Handler):
    """Prints on the current stderr, unless the program has configured logging."""

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
