"""Kernel slots: the C callbacks and kernels of the nodes that replace partitions.

A slot owns the C functions of one node. An interpreter may call these functions at any time, even
after the release of its kernel, so slots are never freed, only reused. The kernel of a slot is a
partition's kernel or, after its release, a `Gone`, which raises an error.
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
"""Seconds that Python's exit waits for a thread that is running a kernel."""


class SlotKernel(Protocol):
    """A kernel that runs in place of a partition."""

    def shape(self, context: int) -> None:
        """Set the outputs' shapes from the inputs' current shapes, without compiling."""

    def prepare(self, context: int) -> None:
        """Set the outputs' shapes as `shape` does, and prepare to run."""

    def invoke(self, context: int) -> None:
        """Run on the tensors' current data."""

    def give_back(self, context: int) -> None:
        """Move the tensors and their contents back to the runtime's memory."""

    def close(self, context: int = 0) -> None:
        """Release all resources; `context` is the context of the kernel's interpreter, or 0."""


class Owner(Protocol):
    """The receiver of a kernel's events."""

    def failed(self, error: BaseException) -> None:
        """Record an error."""

    def prepared(self, kernel: SlotKernel, error: BaseException | None) -> None:
        """Record new shapes; `error` is the kernel's previous error, if any."""


class Gone:
    """Replaces a released kernel: each call except `close` raises an error."""

    def __init__(self, error: Callable[[], LitegpuError]) -> None:
        """Make calls raise the error that `error` returns."""
        self._error = error

    def invoke(self, context: int) -> None:
        raise self._error()

    shape = prepare = invoke

    def give_back(self, context: int) -> None: ...

    def close(self, context: int = 0) -> None: ...


class _Ended(Gone):
    """Replaces a kernel while Python exits: raises in the main thread, blocks other threads."""

    def invoke(self, context: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            _stay()
        super().invoke(context)

    shape = prepare = invoke


def stay_if_ending() -> None:
    """Block a daemon thread forever while Python exits, because the exit causes its errors."""
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        _stay()


def _stay() -> None:
    """Block forever."""
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()


_NOBODY = Gone(partial(InterpreterError, "delegate is not initialized"))
_AT_EXIT = _Ended(
    partial(
        InterpreterError,
        "Python is exiting, and has released the GPU. Invoke interpreters before the exit.",
    )
)
_AFTER_FORK = Gone(
    partial(
        ForkedProcessError,
        "This interpreter was created before the process was forked, and a GPU cannot be used "
        "across a fork. Create the interpreter in the child process; start child processes with "
        'multiprocessing.get_context("spawn").',
    )
)


def report(context: int, moment: str, error: BaseException) -> None:
    """Pass the text of an error to the runtime, which includes it in its RuntimeError."""
    with contextlib.suppress(Exception):  # a second error must not cross into C
        text = str(error) or type(error).__name__
        structs.report_error(context, f"TfLiteGpuDelegate {moment}: {text}")


def warn(text: str, error: BaseException, log: logging.Logger = _log) -> None:
    """Log an error; errors of log handlers are ignored.

    The function replaces text that cannot be encoded, such as half of a surrogate pair.
    """
    with contextlib.suppress(Exception):
        shown = str(error) or type(error).__name__
        log.warning(text, shown.encode("utf-8", "replace").decode("utf-8"))


class KernelSlot:
    """The callbacks of a node, and the kernel that they call."""

    def __init__(self) -> None:
        """Create callbacks that are never freed."""
        self.number = next(_numbers)
        self.kernel: SlotKernel = _NOBODY
        self.owner: Owner | None = None
        self._context = 0
        self._error: BaseException | None = None
        self._prepare = Callback(self._do_prepare, self._prepare_failed)
        self._invoke = Callback(_NOBODY.invoke, self._invoke_failed)
        self._free = Callback(self._do_free, self._free_failed)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def register(self, registration: structs.TfLiteRegistration) -> None:
        """Set the callbacks of a node's registration to the callbacks of this slot."""
        for name, callback, prototype in (
            ("prepare", self._prepare, structs.NODE),
            ("invoke", self._invoke, structs.NODE),
            ("free", self._free, structs.FREE),
        ):
            setattr(registration, name, prototype(callback.address))

    def assign(self, kernel: SlotKernel, owner: Owner, context: int) -> None:
        """Assign a kernel to the node."""
        self.owner, self._context = owner, context
        self._set(kernel)

    def _set(self, kernel: SlotKernel) -> None:
        self.kernel = kernel
        self._invoke.work = kernel.invoke

    def _do_prepare(self, context: int) -> None:
        self.kernel.prepare(context)
        self._works()

    def _works(self) -> None:
        """Record that the kernel was prepared or has run, so any earlier error is resolved."""
        self._invoke.work = self.kernel.invoke
        error, self._error = self._error, None
        if self.owner is not None:
            self.owner.prepared(self.kernel, error)

    def _prepare_failed(self, context: int, error: BaseException) -> int:
        # After an interrupt the runtime continues with the current shapes, and does not call
        # Prepare again.
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
        self._set(_NOBODY)
        self.owner = self._error = None
        if _occupied.pop(self.number, None) is not None:
            _idle.append(self)

    @property
    def running(self) -> bool:
        """Whether a thread runs one of the callbacks."""
        return self._prepare.running or self._invoke.running or self._free.running

    @property
    def running_here(self) -> bool:
        """Whether this thread runs one of the callbacks."""
        return self._prepare.running_here or self._invoke.running_here

    def retire(self, instead: SlotKernel, seconds: float) -> None:
        """Replace the kernel by `instead`, and release the old kernel.

        The old kernel is not released if a thread still runs the kernel after `seconds`.
        """
        kernel = self.kernel
        self._set(instead)
        until = time.monotonic() + seconds
        while self._prepare.running or self._invoke.running:
            if time.monotonic() > until:
                return
            time.sleep(0.001)
        kernel.give_back(self._context)
        kernel.close(self._context)

    def abandon(self, instead: SlotKernel) -> None:
        """Replace the kernel without releasing it, because it belongs to the parent process."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.kernel))
        self._set(instead)
        for callback in (self._prepare, self._invoke, self._free):
            if callback.running and not callback.running_here:
                callback.renew()  # its thread is in the parent process


_numbers = itertools.count(1)
_idle: list[KernelSlot] = []
_occupied: dict[int, KernelSlot] = {}
_apis: set[str] = set()


def take_slot() -> KernelSlot:
    """Return a free slot; its index becomes the node's `user_data`."""
    slot = _idle.pop() if _idle else KernelSlot()
    if slot.running:  # a thread has not yet returned from it
        _idle.insert(0, slot)
        slot = KernelSlot()
    _occupied[slot.number] = slot
    return slot


def kernels() -> list[SlotKernel]:
    """Return the kernels of all interpreters."""
    # After an interrupt a slot may be taken without a kernel.
    return [slot.kernel for slot in list(_occupied.values()) if slot.kernel is not _NOBODY]


def retire_all(owner: Owner, instead: SlotKernel) -> None:
    """Release all kernels of an owner once no thread runs any of the kernels.

    Raises InterpreterError if this thread runs one of the kernels, because it would wait for
    itself.
    """
    slots = [slot for slot in list(_occupied.values()) if slot.owner is owner]
    if any(slot.running_here for slot in slots):
        raise InterpreterError(
            "The delegate cannot be closed during one of its own calls, such as by a signal "
            "handler. Close it after the interpreter's call."
        )
    for slot in slots:
        slot.retire(instead, float("inf"))


def close_at_exit(api: str) -> None:
    """Release all kernels when Python exits, before the packages of a GPU API shut down.

    Exit handlers that the program registers after its first use of the API run before this handler.
    """
    if api not in _apis:
        _apis.add(api)
        atexit.unregister(_close_all)
        atexit.register(_close_all)


def _close_all() -> None:
    for slot in list(_occupied.values()):
        try:
            slot.retire(_AT_EXIT, _EXIT_SECONDS)
        except Exception as error:
            warn("A partition could not be released cleanly: %s", error)


def _abandon_all() -> None:
    for slot in list(_occupied.values()):
        slot.abandon(_AFTER_FORK)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
