"""C callbacks that never raise exceptions through C code, and lose no exception.

Python can run a signal handler at the start of a function, before the function's first `try`.
ctypes prints and discards an exception that is raised at that point, and returns an arbitrary
status. A generator that is suspended inside a `try` has no such point, so each callback is a
generator that each call resumes.

A callback converts an error to a status code, for which the runtime raises RuntimeError. An
exception that is not an error, such as KeyboardInterrupt, bypasses the runtime, as does any
exception of a signal handler. For an exception that bypasses the runtime, the callback returns
success, and the thread raises the exception as soon as it runs Python code again.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from inspect import CO_VARARGS
from types import FrameType, GeneratorType, TracebackType
from typing import Any, cast

from litegpu.errors import causes
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import TfLiteStatus

_raise_in_thread = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_add_pending_call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_MARK = "_raised_by_a_signal_handler"
"""Attribute that marks exceptions that bypass the runtime."""
_ATTEMPTS = 3
"""Number of times that interrupted error handling restarts."""


class HandlerError(BaseException):
    """An error raised by a signal handler, which must reach the program, not the runtime."""


class Callback:
    """A C function with a context as its argument, implemented by the replaceable `work`.

    If `work` raises an exception, the callback calls `failed` with the context and the exception;
    `failed` returns a status. If another exception interrupts `failed`, the callback may call
    `failed` again. An Exception raised by a signal handler is passed as HandlerError.
    """

    def __init__(
        self, work: Callable[[int], None], failed: Callable[[int, BaseException], int]
    ) -> None:
        """Create a callback for calls from one thread at a time."""
        self.work = work
        self._failed = failed
        self._answers = _begun(self, failed)
        self._entry: Any = partial(self._answers.send)
        # The runtime passes a second argument, which the C function ignores.
        self.function = structs.CONTEXT_CALLBACK(self._entry)

    @property
    def address(self) -> int:
        """Address of the C function."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    @property
    def running(self) -> bool:
        """Whether a thread is inside the callback."""
        return self._answers.gi_running

    @property
    def running_here(self) -> bool:
        """Whether this thread is inside the callback, for example in a log or signal handler."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self._answers.gi_frame:
            frame = frame.f_back
        return frame is not None

    def renew(self) -> None:
        """Discard a call that never returns, because only the parent process has its thread."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._answers))
        self._answers = _begun(self, self._failed)
        self._entry.__setstate__((self._answers.send, (), {}, None))


def _begun(
    callback: Callback, failed: Callable[[int, BaseException], int]
) -> GeneratorType[int, int, None]:
    """Return a callback's generator, started and waiting for the first call."""
    answers = cast("GeneratorType[int, int, None]", _answers(callback, failed))
    next(answers)
    return answers


def _answers(
    callback: Callback, failed: Callable[[int, BaseException], int]
) -> Generator[int, int, None]:
    """Yield the status of each call, and receive the context of the next.

    The generator makes no call outside the inner `try`, so no exception can occur there. The only
    exceptions are the jumps between the two loops, which the outer `try` covers.
    """
    ok = status = int(TfLiteStatus.OK)
    context = attempts = 0
    caught: BaseException | None = None
    delivery: object = None
    while True:
        try:
            while True:
                try:
                    if caught is not None:
                        error, caught = caught, None
                        attempts += 1
                        interrupt = _interrupt_in(error, sys.exc_info()[1])
                        # Clearing the frames of a traceback would end this generator.
                        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                        if isinstance(interrupt, Exception):
                            error = HandlerError()
                        try:
                            if attempts <= _ATTEMPTS:
                                status = failed(context, error)
                        except Exception as raised:
                            status = TfLiteStatus.ERROR
                            interrupt = interrupt or _interrupt_in(raised, error)
                        if interrupt is not None:
                            status, delivery = ok, delivery_of(interrupt)
                        del error, interrupt
                    # Its end takes effect here: no later bytecode could raise the exception.
                    delivery = None  # noqa: F841
                    attempts = 0
                    context = yield status
                    status = ok
                    callback.work(context)
                except GeneratorExit as raised:
                    if raised.__traceback__ is None or raised.__traceback__.tb_next is None:
                        return  # the callback's owner was deleted
                    caught = raised
                except BaseException as raised:
                    caught = raised
        except BaseException as raised:
            caught = raised


def _interrupt_in(error: BaseException, outside: BaseException | None) -> BaseException | None:
    """Return the exception that must reach the program unchanged; None for other errors.

    The returned exception is not an Exception, or was raised by a signal handler. The result is
    `error`, or an exception that caused `error`. `outside` is the exception that the program was
    handling when it called the runtime; Python sets `outside` as the context of errors, too.
    """
    if not isinstance(error, Exception):
        return error
    for each in causes(error):
        if each is outside:
            break
        if hasattr(each, _MARK) or _is_of_handler(each.__traceback__):
            return each
    return None


def _is_of_handler(trace: TracebackType | None) -> bool:
    """Whether a traceback shows that a signal handler raised the exception, or passed it on.

    The function recognizes a signal handler by its argument, the interrupted frame.
    """
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        # Accessing the locals of a frame keeps them alive; those of litegpu hold device memory.
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("litegpu."):
            continue
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        # Arguments only: some functions inspect their caller.
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
        for value in map(values.get, code.co_varnames[:count]):
            if value is interrupted:
                return True
            if type(value) is tuple and any(each is interrupted for each in value):
                return True
    return False


def delivery_of(error: BaseException) -> object:
    """Return an object whose deletion makes this thread raise `error` at its next bytecode.

    A C function must delete the object, because a deletion by bytecode would interrupt the deleting
    code.
    """
    error.__traceback__ = None  # frames of litegpu that hold device memory
    setattr(error, _MARK, True)
    in_main = threading.current_thread() is threading.main_thread()
    end: Callable[[], Any]
    if sys.version_info < (3, 12) and in_main:
        # Python would instantiate a class too late, and exit with another code.
        _raiser.error = error
        end = partial(_add_pending_call, _IS_TRUE, _raiser)
    else:
        end = partial(_raise_in_thread, threading.get_ident(), _type_of(error))
    return type("Delivery", (), {"__del__": staticmethod(end)})()


def _type_of(error: BaseException) -> type[BaseException]:
    """Return a class that represents an exception, because Python injects only classes."""
    original = type(error)
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (original,), {**names, "__new__": lambda *_: error})


class _Raiser:
    """Raises the exception `error` when Python evaluates this object as a bool."""

    error: BaseException | None = None

    def __bool__(self) -> bool:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return False


_raiser = _Raiser()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_raiser))  # Python gets its address
