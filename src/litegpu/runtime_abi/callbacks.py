"""C callbacks that let no exception into C, and lose none.

Python runs signal handlers where a function begins, before the first `try` in it: an exception
raised there would be printed and dropped by ctypes, which then returns any status. A generator
that waits inside a `try` has no such place, so each callback here is one, resumed by each call.

An error becomes a status of the runtime, which raises RuntimeError. An exception that is no error,
such as KeyboardInterrupt, and whatever a signal handler raises, is none of the runtime's business:
the call ends as if all were well, and the thread raises it as soon as it is back in Python.
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
"""An attribute of exceptions that are on their way to the program."""
_ATTEMPTS = 3
"""How often the handling of an error is begun again when it is interrupted itself."""


class HandlerError(BaseException):
    """Stands for an error that a signal handler raised: not litegpu's, but the program's own."""


class Callback:
    """A C function of an interpreter's context; `work` is what it does, and may be replaced.

    `failed` is called with the context and what `work` raised, and returns the status of an error.
    It may be called again with what interrupted it. An Exception of a signal handler it is given
    as HandlerError.
    """

    def __init__(
        self, work: Callable[[int], None], failed: Callable[[int, BaseException], int]
    ) -> None:
        """Be ready to be called, by one thread at a time."""
        self.work = work
        self._failed = failed
        self._answers = _begun(self, failed)
        self._entry: Any = partial(self._answers.send)
        # The runtime passes a second argument, which a C function may ignore.
        self.function = structs.CONTEXT_CALLBACK(self._entry)

    @property
    def address(self) -> int:
        """Address of the C function."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    @property
    def running(self) -> bool:
        """Whether a thread is in it now."""
        return self._answers.gi_running

    @property
    def running_here(self) -> bool:
        """Whether it is this thread that is in it, in a log or signal handler say."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self._answers.gi_frame:
            frame = frame.f_back
        return frame is not None

    def renew(self) -> None:
        """Let go of a call that will never end, because its thread is not in this process."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._answers))
        self._answers = _begun(self, self._failed)
        self._entry.__setstate__((self._answers.send, (), {}, None))


def _begun(
    callback: Callback, failed: Callable[[int, BaseException], int]
) -> GeneratorType[int, int, None]:
    """Return the generator of a callback, where it waits for the first call."""
    answers = cast("GeneratorType[int, int, None]", _answers(callback, failed))
    next(answers)
    return answers


def _answers(
    callback: Callback, failed: Callable[[int, BaseException], int]
) -> Generator[int, int, None]:
    """Yield the status of each call, and be sent the context of the next.

    Nothing is called, and so nothing can interrupt, outside of the inner `try`, but for the jumps
    between the two loops: these the outer one guards.
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
                            status, delivery = ok, _delivery(interrupt)
                        del error, interrupt
                    # Where it ends it takes effect: no bytecode that could raise it follows here.
                    delivery = None  # noqa: F841
                    attempts = 0
                    context = yield status
                    status = ok
                    callback.work(context)
                except GeneratorExit as raised:
                    if raised.__traceback__ is None or raised.__traceback__.tb_next is None:
                        return  # the callback's owner is gone
                    caught = raised
                except BaseException as raised:
                    caught = raised
        except BaseException as raised:
            caught = raised


def _interrupt_in(error: BaseException, outside: BaseException | None) -> BaseException | None:
    """Return what is to reach the program as itself, if an error is or follows from such a thing.

    That is what is no Exception, and what a signal handler raised. `outside` is what the program
    was handling when it called: errors say that they follow from this, too.
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
    """Whether a function raised it, or let it pass, that was given the frame that it interrupted.

    Python calls signal handlers so, and them alone.
    """
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        # Asking a frame for its locals lets it keep them: litegpu's hold memory of the device.
        if str(trace.tb_frame.f_globals.get("__name__")).startswith("litegpu."):
            continue
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        # Arguments alone: some look who calls them.
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
        for value in map(values.get, code.co_varnames[:count]):
            if value is interrupted:
                return True
            if type(value) is tuple and any(each is interrupted for each in value):
                return True
    return False


def _delivery(error: BaseException) -> object:
    """Return an object whose end makes this thread raise `error` when it next runs bytecode.

    Its end is a call of C by C, for bytecode would be interrupted by what it arranges.
    """
    error.__traceback__ = None  # frames of litegpu that hold memory of the device
    setattr(error, _MARK, True)
    in_main = threading.current_thread() is threading.main_thread()
    end: Callable[[], Any]
    if sys.version_info < (3, 12) and in_main:
        # A class would become the exception too late: Python ends with another exit code.
        _raiser.error = error
        end = partial(_add_pending_call, _IS_TRUE, _raiser)
    else:
        end = partial(_raise_in_thread, threading.get_ident(), _type_of(error))
    return type("Delivery", (), {"__del__": staticmethod(end)})()


def _type_of(error: BaseException) -> type[BaseException]:
    """Return the class that stands for an exception: a thread can be told to raise classes."""
    original = type(error)
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (original,), {**names, "__new__": lambda *_: error})


class _Raiser:
    """Raises an exception of the main thread when Python asks whether it is true."""

    error: BaseException | None = None

    def __bool__(self) -> bool:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return False


_raiser = _Raiser()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_raiser))  # Python is told where it lies
