"""The nodes that replace partitions: what their callbacks call, for as long as it lives.

A seat has the C functions of one node. Interpreters come and go, and may call them at any time,
so seats are never released, but used again; who sits in them changes: a kernel, or one that is
gone and says why.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from litegpu.errors import ForkedProcessError, InterpreterError, LitegpuError
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.callbacks import Callback
from litegpu.runtime_abi.enums import TfLiteStatus

_log = logging.getLogger("litegpu")
_EXIT_SECONDS = 0.5
"""How long the end of Python waits for a thread that is in a kernel."""


class SeatedKernel(Protocol):
    """What runs in place of a partition."""

    def shape(self, context: int) -> None:
        """Give the outputs the shapes that follow from the tensors' present ones; cheap."""

    def prepare(self, context: int) -> None:
        """Do what `shape` does, and get ready to run."""

    def invoke(self, context: int) -> None:
        """Run on the tensors' present data."""

    def give_back(self, context: int) -> None:
        """Let the tensors lie in the runtime's memory, with what they hold."""

    def close(self, context: int = 0) -> None:
        """Release everything; `context` is the interpreter's that it served, 0 for none."""


class Owner(Protocol):
    """Who is told what happens to a kernel."""

    def failed(self, error: BaseException) -> None:
        """Remember an error."""

    def prepared(self, kernel: SeatedKernel, error: BaseException | None) -> None:
        """Take note of new shapes; `error` is what went wrong with the kernel before, if any."""


class Gone:
    """Sits where a kernel was: all that is asked of it is an error, but to be released."""

    def __init__(self, error: Callable[[], LitegpuError]) -> None:
        """Raise what `error` makes."""
        self._error = error

    def invoke(self, context: int) -> None:
        raise self._error()

    shape = prepare = invoke

    def give_back(self, context: int) -> None: ...

    def close(self, context: int = 0) -> None: ...


class _Ended(Gone):
    """Sits there while Python ends: the main thread hears it, others never come back."""

    def invoke(self, context: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            _stay()
        super().invoke(context)

    shape = prepare = invoke


def stay_if_ending() -> None:
    """Never return to a daemon thread while Python ends: what has failed there, fails for that."""
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        _stay()


def _stay() -> None:
    """Never return."""
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()


_NOBODY = Gone(partial(InterpreterError, "delegate is not initialized"))
_AT_THE_END = _Ended(
    partial(InterpreterError, "Python is ending, and has released the GPU. Invoke before that.")
)
_IN_A_CHILD = Gone(
    partial(
        ForkedProcessError,
        "This interpreter was made before the process was forked, and a GPU cannot be used "
        "through a fork. Make it in the child; start children with "
        'multiprocessing.get_context("spawn").',
    )
)


def report(context: int, moment: str, error: BaseException) -> None:
    """Hand the text of an error to the runtime, whose RuntimeError will have it."""
    with contextlib.suppress(Exception):  # not even an error while this one is shown may cross
        text = str(error) or type(error).__name__
        structs.report_error(context, f"TfLiteGpuDelegate {moment}: {text}")


def warn(text: str, error: BaseException, log: logging.Logger = _log) -> None:
    """Log an error; a log handler that raises one is of no interest.

    What no file could hold, such as half of a surrogate pair, is replaced.
    """
    with contextlib.suppress(Exception):
        shown = str(error) or type(error).__name__
        log.warning(text, shown.encode("utf-8", "replace").decode("utf-8"))


class Seat:
    """The callbacks of a node, and the kernel that sits there."""

    def __init__(self) -> None:
        """Make callbacks that outlive everything else of litegpu."""
        self.number = next(_numbers)
        self.kernel: SeatedKernel = _NOBODY
        self.owner: Owner | None = None
        self._context = 0
        self._error: BaseException | None = None
        self._prepare = Callback(self._do_prepare, self._prepare_failed)
        self._invoke = Callback(_NOBODY.invoke, self._invoke_failed)
        self._free = Callback(self._do_free, self._free_failed)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def register(self, registration: structs.TfLiteRegistration) -> None:
        """Make a node's callbacks those of this seat."""
        for name, callback, prototype in (
            ("prepare", self._prepare, structs.NODE),
            ("invoke", self._invoke, structs.NODE),
            ("free", self._free, structs.FREE),
        ):
            setattr(registration, name, prototype(callback.address))

    def seat(self, kernel: SeatedKernel, owner: Owner, context: int) -> None:
        """Let a kernel serve the node from now on."""
        self.owner, self._context = owner, context
        self._hold(kernel)

    def _hold(self, kernel: SeatedKernel) -> None:
        self.kernel = kernel
        self._invoke.work = kernel.invoke

    def _do_prepare(self, context: int) -> None:
        self.kernel.prepare(context)
        self._works()

    def _works(self) -> None:
        """Take note that the kernel is ready, or has run, whatever was before."""
        self._invoke.work = self.kernel.invoke
        error, self._error = self._error, None
        if self.owner is not None:
            self.owner.prepared(self.kernel, error)

    def _prepare_failed(self, context: int, error: BaseException) -> int:
        # Where it was interrupted the runtime goes on with the shapes that it has, and does not
        # ask again.
        self._invoke.work = self._prepare_and_invoke
        if not isinstance(error, Exception):
            with contextlib.suppress(Exception):
                self.kernel.shape(context)
        return self._failed(context, "Prepare", error)

    def _prepare_and_invoke(self, context: int) -> None:
        self._do_prepare(context)
        self.kernel.invoke(context)

    def _invoke_failed(self, context: int, error: BaseException) -> int:
        if self._invoke.work == self.kernel.invoke:
            self._invoke.work = self._invoke_again
        return self._failed(context, "Invoke", error)

    def _invoke_again(self, context: int) -> None:
        self.kernel.invoke(context)
        self._works()

    def _failed(self, context: int, moment: str, error: BaseException) -> int:
        if isinstance(error, Exception):
            self._error = error
            report(context, moment, error)
            with contextlib.suppress(Exception):
                if self.owner is not None:
                    self.owner.failed(error)
        return TfLiteStatus.ERROR

    def _do_free(self, context: int) -> None:
        self.kernel.close(context)
        self._leave()

    def _free_failed(self, context: int, error: BaseException) -> int:
        if isinstance(error, Exception):
            warn("A partition could not be released cleanly: %s", error)
        else:
            with contextlib.suppress(Exception):
                self.kernel.close(context)
        self._leave()
        return TfLiteStatus.OK

    def _leave(self) -> None:
        self._hold(_NOBODY)
        self.owner = self._error = None
        if _occupied.pop(self.number, None) is not None:
            _idle.append(self)

    @property
    def running(self) -> bool:
        """Whether a thread is in one of the callbacks."""
        return self._prepare.running or self._invoke.running or self._free.running

    @property
    def running_here(self) -> bool:
        """Whether it is this thread."""
        return self._prepare.running_here or self._invoke.running_here

    def retire(self, instead: SeatedKernel, seconds: float) -> None:
        """Release the kernel and seat another one.

        It is kept for a thread that is still in it after so many seconds.
        """
        kernel = self.kernel
        self._hold(instead)
        until = time.monotonic() + seconds
        while self._prepare.running or self._invoke.running:
            if time.monotonic() > until:
                return
            time.sleep(0.001)
        kernel.give_back(self._context)
        kernel.close(self._context)

    def abandon(self, instead: SeatedKernel) -> None:
        """Seat another kernel, and never release the one that was there: another process did."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.kernel))
        self._hold(instead)
        for callback in (self._prepare, self._invoke, self._free):
            if callback.running and not callback.running_here:
                callback.renew()  # its thread is not in this process


_numbers = itertools.count(1)
_idle: list[Seat] = []
_occupied: dict[int, Seat] = {}
_apis: set[str] = set()


def take_seat() -> Seat:
    """Return a seat that is free; its number is to become the node's `user_data`."""
    seat = _idle.pop() if _idle else Seat()
    if seat.running:  # the thread that left it is still on its way out
        _idle.insert(0, seat)
        seat = Seat()
    _occupied[seat.number] = seat
    return seat


def kernels() -> list[SeatedKernel]:
    """Return the kernels that interpreters hold at present."""
    # An interrupt may come between a seat and the kernel that was to sit there.
    return [seat.kernel for seat in list(_occupied.values()) if seat.kernel is not _NOBODY]


def retire_all(owner: Owner, instead: SeatedKernel) -> None:
    """Release the kernels of an owner, once nobody is in them.

    Raises InterpreterError when this thread itself is: it would wait for itself.
    """
    seats = [seat for seat in list(_occupied.values()) if seat.owner is owner]
    if any(seat.running_here for seat in seats):
        raise InterpreterError(
            "The delegate cannot be closed by what it is running, such as a signal handler. "
            "Close it after the interpreter's call."
        )
    for seat in seats:
        seat.retire(instead, float("inf"))


def close_at_exit(api: str) -> None:
    """Have all kernels released when Python ends, before the packages of an API end.

    Handlers that the program registers after it has first used the API are called before.
    """
    if api not in _apis:
        _apis.add(api)
        atexit.unregister(_close_all)
        atexit.register(_close_all)


def _close_all() -> None:
    for seat in list(_occupied.values()):
        try:
            seat.retire(_AT_THE_END, _EXIT_SECONDS)
        except Exception as error:
            warn("A partition could not be released cleanly: %s", error)


def _abandon_all() -> None:
    for seat in list(_occupied.values()):
        seat.abandon(_IN_A_CHILD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
