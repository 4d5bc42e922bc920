"""Python functions that the library of `litegpu build-delegate` calls.

The functions create and destroy delegates. No function may raise an exception, because the callers
are C functions.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import logging
import os
from collections.abc import Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from litegpu import GpuDelegate
from litegpu.errors import DelegateLibraryError, InterpreterError, OptionsError, did_you_mean
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.callbacks import delivery_of
from litegpu.runtime_abi.enums import DelegateFlags, TfLiteStatus
from litegpu.tools.delegation import DELEGATE_FLAGS
from litegpu.tools.flags import Flag

_log = logging.getLogger("litegpu")

OPTIONS = (
    *DELEGATE_FLAGS,
    Flag("model", str, None, "the model file, for runtimes that do not report its path"),
)
"""The options of the library, which are the options of GpuDelegate."""

_TEXTS = POINTER(c_char_p)
_REPORT = CFUNCTYPE(None, c_char_p)


class Plugin(ctypes.Structure):
    """The struct `plugin` of the C library."""

    _fields_ = (
        ("create", c_void_p),
        ("destroy", c_void_p),
        ("end", c_void_p),
        ("apis", c_int),
        ("forking", c_int),
        ("error", ctypes.c_char * 1024),
    )


_plugins: list[Plugin] = []
_structs: dict[int, structs.TfLiteDelegate] = {}
"""Structs of delegates by address; never freed, because interpreters may outlive delegates."""
_delegates: dict[int, GpuDelegate] = {}
"""Delegates that have not been destroyed, by the addresses of their structs."""
_apis: set[str] = set()


def connect(address: int, size: int) -> None:
    """Store the function pointers in the library's struct `plugin`.

    Raises DelegateLibraryError if the size of the struct differs from this version's.
    """
    if size != ctypes.sizeof(Plugin):
        raise DelegateLibraryError(
            "The library was built by another version of litegpu. Run `litegpu build-delegate` "
            "again."
        )
    found = Plugin.from_address(address)
    _plugins.append(found)
    _note_forks(False)
    found.apis = len(_apis)
    for name in ("destroy", "end", "create"):  # the last one signals that all are set
        setattr(found, name, _address(_FUNCTIONS[name]))


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def parsed(given: Mapping[str, str]) -> dict[str, Any]:
    """Parse the options of GpuDelegate.

    Raises OptionsError for unknown names and for invalid values.
    """
    known = {flag.name: flag for flag in OPTIONS}
    found = {}
    for name, text in given.items():
        if name not in known:
            raise OptionsError(f"Unknown option '{name}'.{did_you_mean(name, known)}")
        try:
            found[name] = known[name].parse(text)
        except argparse.ArgumentTypeError as error:
            raise OptionsError(f"{name}: {error}.") from error
    return found


def _create(keys: Any, values: Any, count: int, report: int | None) -> int | None:
    try:
        names, texts = ([os.fsdecode(each[i]) for i in range(count)] for each in (keys, values))
        delegate = GpuDelegate(**parsed(dict(zip(names, texts, strict=True))))
        struct = structs.TfLiteDelegate()
        struct.Prepare = structs.DELEGATE_PREPARE(_address(_FUNCTIONS["prepare"]))
        struct.flags = DelegateFlags.ALLOW_DYNAMIC_TENSORS
        address = ctypes.addressof(struct)
        _structs[address], _delegates[address] = struct, delegate
        _apis.add(delegate.device.backend)
    except BaseException as error:
        if report:
            _REPORT(report)((str(error) or type(error).__name__).encode("utf-8", "replace"))
        if not isinstance(error, Exception):
            interrupt = delivery_of(error)  # noqa: F841  (its deletion raises in the caller)
        return None
    finally:
        for each in _plugins:
            each.apis = len(_apis)
    return address


def _destroy(address: int) -> None:
    try:
        _delegates.pop(address).close()
    except KeyError:
        _log.warning(
            "The program destroyed a delegate that does not exist or was destroyed before."
        )
    except Exception as error:
        _log.warning("A delegate could not be destroyed cleanly: %s", error)


def _prepare(context: int, address: int) -> int:
    """Apply a delegate by the struct of this thread."""
    try:
        if address not in _delegates:
            raise InterpreterError("The delegate was destroyed. Create a new one.")
        inner = structs.TfLiteDelegate.from_address(_delegates[address]._address_for(context))
        return int(inner.Prepare(context, ctypes.addressof(inner)))
    except BaseException as error:
        if isinstance(error, Exception):
            structs.report_error(context, f"TfLiteGpuDelegate Prepare: {error}")
            return TfLiteStatus.ERROR
        interrupt = delivery_of(error)  # noqa: F841  (its deletion raises in the caller)
        return TfLiteStatus.OK


def _end() -> None:
    # Python would do this when it exits, but a program in C does not exit through Python.
    atexit._run_exitfuncs()


_FUNCTIONS = {
    "create": CFUNCTYPE(c_void_p, _TEXTS, _TEXTS, c_size_t, c_void_p)(_create),
    "destroy": CFUNCTYPE(None, c_void_p)(_destroy),
    "end": CFUNCTYPE(None)(_end),
    "prepare": structs.DELEGATE_PREPARE(_prepare),
}
"""The functions for C callers, by the field names of `Plugin`."""


def _note_forks(forking: bool) -> None:
    for each in _plugins:
        each.forking = forking


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _note_forks(True),
        after_in_parent=lambda: _note_forks(False),
        after_in_child=lambda: _note_forks(False),
    )
