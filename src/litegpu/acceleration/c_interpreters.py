"""Changes `ctypes.CDLL` for packages that load TensorFlow Lite's C library themselves."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from litegpu.acceleration.session import current
from litegpu.delegation.delegate import GpuDelegate

_log = logging.getLogger("litegpu")
_ORIGINAL = ctypes.CDLL.__getitem__
_Pointer = ctypes.c_void_p
_Function = Callable[..., Any]
_lock = threading.Lock()
_delegates: dict[int, GpuDelegate] = {}
"""The delegate of each C interpreter, by the interpreter's address."""
_files: dict[int, str] = {}
"""The path of each model that was read from a file, by the model's address."""


def install() -> None:
    """Let libraries that are loaded with ctypes create interpreters with a delegate."""
    _set(_function_of)


def uninstall() -> None:
    """Restore `ctypes.CDLL`, unless other code has changed it since."""
    if ctypes.CDLL.__getitem__ is _function_of:
        _set(_ORIGINAL)


def _set(lookup: _Function) -> None:
    setattr(ctypes.CDLL, "__getitem__", lookup)  # noqa: B010 (mypy forbids an assignment)


def _function_of(library: ctypes.CDLL, name: Any) -> Any:
    """Return a function of a library, or its replacement in `_REPLACEMENTS`."""
    function = _ORIGINAL(library, name)
    if name not in _REPLACEMENTS:
        return function
    prototype, replacement = _REPLACEMENTS[name]
    callback = prototype(replacement(library, _typed(prototype, function)))
    # The library's own type of functions lets the program set the types of arguments.
    replaced: Any = library._FuncPtr(ctypes.cast(callback, _Pointer).value or 0)
    replaced.callback = callback  # lives as long as the function
    return replaced


def _typed(prototype: Any, function: Any) -> Any:
    return prototype(ctypes.cast(function, _Pointer).value)


def _interpreter_creator(library: ctypes.CDLL, create: _Function) -> _Function:
    def create_accelerated(model: int | None, options: int | None) -> int | None:
        try:
            address = _create(library, create, model, options)
        except Exception:  # none may leave a callback of C
            _log.exception("An interpreter of TensorFlow Lite's C library runs on the CPU.")
            address = None
        return address or create(model, options)

    return create_accelerated


def _create(
    library: ctypes.CDLL, create: _Function, model: int | None, options: int | None
) -> int | None:
    """Return an interpreter with a delegate; None if it gets no delegate, or on failure."""
    with _lock:
        path = _files.get(model or 0)
    acceleration = current()
    delegate = acceleration.delegate(path) if acceleration else None
    if acceleration is None or delegate is None:
        return None
    pointer = delegate._get_native_delegate_pointer()
    if options:
        with_delegate = _call(library, "TfLiteInterpreterOptionsCopy", _Pointer, options)
    else:
        with_delegate = _call(library, "TfLiteInterpreterOptionsCreate", _Pointer)
    try:
        _call(library, "TfLiteInterpreterOptionsAddDelegate", None, with_delegate, pointer)
        address: int | None = create(model, with_delegate)
    finally:
        _call(library, "TfLiteInterpreterOptionsDelete", None, with_delegate)
    if address:
        with _lock:
            _delegates[address] = delegate
        acceleration.add(path, delegate)
    return address


def _call(library: ctypes.CDLL, name: str, result: Any, *arguments: int | None) -> Any:
    """Call a function whose arguments are pointers. Raises AttributeError if it does not exist."""
    prototype = ctypes.CFUNCTYPE(result, *[_Pointer] * len(arguments))
    return _typed(prototype, _ORIGINAL(library, name))(*arguments)


def _interpreter_deleter(_: ctypes.CDLL, delete: _Function) -> _Function:
    def delete_accelerated(interpreter: int | None) -> None:
        delete(interpreter)
        with _lock:
            delegate = _delegates.pop(interpreter or 0, None)
        del delegate  # without the lock, because other code may run when the delegate ends

    return delete_accelerated


def _file_reader(_: ctypes.CDLL, create: _Function) -> _Function:
    def create_from_file(path: bytes | None) -> int | None:
        model: int | None = create(path)
        if model and path:
            with _lock:
                _files[model] = os.fsdecode(path)
        return model

    return create_from_file


def _model_creator(_: ctypes.CDLL, create: _Function) -> _Function:
    def create_from_memory(content: int | None, size: int) -> int | None:
        model: int | None = create(content, size)
        with _lock:  # an earlier model may have had this address
            _files.pop(model or 0, None)
        return model

    return create_from_memory


def _model_deleter(_: ctypes.CDLL, delete: _Function) -> _Function:
    def delete_model(model: int | None) -> None:
        with _lock:
            _files.pop(model or 0, None)
        delete(model)

    return delete_model


_DELETE = ctypes.CFUNCTYPE(None, _Pointer)
_REPLACEMENTS: dict[Any, tuple[Any, Callable[[ctypes.CDLL, _Function], _Function]]] = {
    "TfLiteInterpreterCreate": (
        ctypes.CFUNCTYPE(_Pointer, _Pointer, _Pointer),
        _interpreter_creator,
    ),
    "TfLiteInterpreterDelete": (_DELETE, _interpreter_deleter),
    "TfLiteModelCreate": (
        ctypes.CFUNCTYPE(_Pointer, _Pointer, ctypes.c_size_t),
        _model_creator,
    ),
    "TfLiteModelCreateFromFile": (ctypes.CFUNCTYPE(_Pointer, ctypes.c_char_p), _file_reader),
    "TfLiteModelDelete": (_DELETE, _model_deleter),
}
"""The type of each function that is replaced, and what creates the replacement."""
