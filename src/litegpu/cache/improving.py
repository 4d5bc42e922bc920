"""Optimizes quickly compiled partitions in the background."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from litegpu.backends.base import Device
from litegpu.backends.execution import Executable
from litegpu.backends.program import Program
from litegpu.host.private_files import Folder

_log = logging.getLogger("litegpu")
Keep = Callable[[Mapping[str, bytes]], object]


class _Shutdown:
    """Delays the process's exit until the current step of a background thread ends.

    At exit, a daemon thread must not be inside a driver call or in the middle of a file write.
    """

    def __init__(self) -> None:
        self.step = threading.Lock()
        """The lock that is held during a step."""
        self.begun = False


_shutdown = _Shutdown()
_compiling = threading.Lock()
"""The lock of the compiling thread, because concurrent compilations slow each other down."""
_in_progress: weakref.WeakKeyDictionary[Executable, threading.Event]
_in_progress = weakref.WeakKeyDictionary()


def improve(
    executable: Executable, device: Device, kernels: Folder | None, keep: Keep | None
) -> None:
    """Start recompiling a quickly compiled partition in the background; return immediately.

    Contexts use the optimized code as of their next run. The thread calls `keep` with the code,
    even if the executable was released in the meantime. `kernels` is the cache folder of the
    device's kernels. After a failure, the partition remains unchanged.
    """
    over = threading.Event()
    _in_progress[executable] = over
    # Weak reference: compiling must not keep the executable and its device memory alive.
    work = (weakref.ref(executable), executable.program, device, kernels, keep, over)
    threading.Thread(target=_improve, args=work, name="litegpu-improve", daemon=True).start()


def wait_for(executable: Executable, seconds: float | None = None) -> bool:
    """Wait at most `seconds` until an executable is no longer being recompiled.

    Returns whether the executable's code is optimized; False if the recompilation failed.
    """
    over = _in_progress.get(executable)
    if over is not None:
        over.wait(seconds)
    return not executable.fast_compiled


def _improve(
    found: weakref.ref[Executable],
    program: Program,
    device: Device,
    kernels: Folder | None,
    keep: Keep | None,
    over: threading.Event,
) -> None:
    try:
        began = time.perf_counter()
        with _compiling:
            binaries = device.recompile(program, kernels)
        with _shutdown.step:
            if _shutdown.begun:
                return
            executable = found()
            if executable is not None:
                executable.exchange(binaries)
            del executable  # a slow disk must not keep it and its device memory alive
            if keep is not None:
                keep(binaries)
        seconds = time.perf_counter() - began
        _log.info(
            "Optimized kernels are used from the next run on; compiling took %.1f s.", seconds
        )
    except Exception as error:  # no caller could handle it, and the model still runs
        _log.info(
            "Background recompilation failed; keeping the quickly compiled kernels: %s", error
        )
    finally:
        over.set()


@atexit.register
def _end() -> None:
    """Wait for the end of the current step and permit no further steps."""
    with _shutdown.step:
        _shutdown.begun = True


def _forget_all() -> None:
    """Forget the threads in a forked child, because they exist only in the parent."""
    global _shutdown, _compiling
    _shutdown, _compiling = _Shutdown(), threading.Lock()
    for over in [*_in_progress.values()]:
        over.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
