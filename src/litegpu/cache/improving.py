"""Optimizes the kernels of quickly compiled partitions in the background."""

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


class _Ending:
    """Lets a program end between two steps of a thread, never within one.

    Threads that keep no program from ending must be in no call of a driver then, and leave no
    half of a file behind.
    """

    def __init__(self) -> None:
        self.step = threading.Lock()
        """Held within a step."""
        self.begun = False


_ending = _Ending()
_turn = threading.Lock()
"""Held by the thread that compiles: several would only slow each other down."""
_under_way: weakref.WeakKeyDictionary[Executable, threading.Event]
_under_way = weakref.WeakKeyDictionary()


def improve(
    executable: Executable, device: Device, kernels: Folder | None, keep: Keep | None
) -> None:
    """Start to recompile a quickly compiled partition, and return immediately.

    Contexts have the better code from their next run on. `keep` is called with it, also where the
    executable was released meanwhile. `kernels` is where the device keeps kernels. What goes wrong
    leaves the partition as it is.
    """
    over = threading.Event()
    _under_way[executable] = over
    # What is compiled is not to keep alive what runs, nor what it has on the device.
    work = (weakref.ref(executable), executable.program, device, kernels, keep, over)
    threading.Thread(target=_improve, args=work, name="litegpu-improve", daemon=True).start()


def wait_for(executable: Executable, seconds: float | None = None) -> bool:
    """Wait until nothing is compiled again for an executable, for so long at most.

    Returns whether its code is the best there is: False, too, where that could not be compiled.
    """
    over = _under_way.get(executable)
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
        with _turn:
            binaries = device.recompile(program, kernels)
        with _ending.step:
            if _ending.begun:
                return
            executable = found()
            if executable is not None:
                executable.exchange(binaries)
            if keep is not None:
                keep(binaries)
        seconds = time.perf_counter() - began
        _log.info("Kernels are as fast as they get from the next run on, after %.1f s.", seconds)
    except Exception as error:  # nobody is there to handle it, and the model runs
        _log.info(
            "Background recompilation failed; keeping the quickly compiled kernels: %s", error
        )
    finally:
        over.set()


@atexit.register
def _end() -> None:
    """Wait for the end of a step, and let none begin any more."""
    with _ending.step:
        _ending.begun = True


def _forget_all() -> None:
    """In a forked child: the threads stayed in the parent, perhaps within a step."""
    global _ending, _turn
    _ending, _turn = _Ending(), threading.Lock()
    for over in [*_under_way.values()]:
        over.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
