"""Signals whose handler raises, like Ctrl-C, but only inside the code under test."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Iterator
from types import FrameType, ModuleType

import pytest

needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)


class Alarm(BaseException):
    """As KeyboardInterrupt: raised by a signal at any moment."""


@contextlib.contextmanager
def alarms(module: ModuleType, seconds: float) -> Iterator[list[int]]:
    """Raise Alarm in the main thread every `seconds`, while it is in a function of `module`.

    Gives a list with the number of those raised so far.
    """
    raised = [0]

    def ring(_number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != module.__file__:
            # What came out of a finalizer is told of by pytest, which is not the code under test.
            if frame.f_code.co_filename.endswith("unraisableexception.py"):
                return
            frame = frame.f_back
        if frame is not None:
            raised[0] += 1
            raise Alarm

    gc.collect()
    gc.disable()  # nothing can come out of what runs while objects are collected
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
