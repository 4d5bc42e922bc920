"""Reports the progress of a model's compilation to a callback.

The code that compiles reports its progress by `at` and `steps`, without access to the callback;
without a callback, a report costs nothing. A separate thread runs the callback: a driver call of
several seconds does not delay the callback, and the callback does not delay the driver.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

from litegpu.errors import OptionsError

_log = logging.getLogger("litegpu")

Item = TypeVar("Item")
Result = TypeVar("Result")

Stage = Literal["choose", "measure", "compile", "load", "run", "end"]

_QUIET_S = 0.5
"""Seconds before the first call of the callback; shorter compilations are not reported."""
_BETWEEN_S = 0.1
"""Seconds between two calls of the progress callback."""
_PATIENCE_S = 1.0
"""Maximum seconds for which the end of the compilation waits for a running callback."""


@dataclass(frozen=True)
class Progress:
    """Progress of the compilation of a model.

    `stage` is the current work: "choose" kernels and pack weights, "measure" candidates, "compile"
    kernels, "load" a cached partition, or "run" the partition once. The stage "end" comes last,
    after success or failure. `done` is the number of finished steps of the stage; `total` is the
    number of all its steps, 0 if unknown. `partition` is the number of the current partition, from
    1 to `partitions`; nodes that stay on the CPU separate partitions. `seconds` is the time since
    the start of the compilation.
    """

    stage: Stage
    done: int = 0
    total: int = 0
    partition: int = 1
    partitions: int = 1
    seconds: float = 0.0


OnProgress = Callable[[Progress], object]
"""A callback that receives each Progress object."""


def checked(on_progress: OnProgress | None) -> OnProgress | None:
    """Return the progress callback, or None.

    Raises OptionsError if the callback is not callable.
    """
    if not (on_progress is None or callable(on_progress)):
        raise OptionsError(f"on_progress must be a function or None, not {on_progress!r}.")
    return on_progress


class _Watch:
    """A progress callback, and the Progress object for its next call."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress: OnProgress | None = on_progress
        self._began = time.monotonic()
        self._over = threading.Event()
        self.now = Progress("choose")
        self._thread = threading.Thread(target=self._tell, name="litegpu-progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Call the callback with the stage "end", if it was called before."""
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def _tell(self) -> None:
        if self._over.wait(_QUIET_S):
            return
        self._call(self.now)
        while not self._over.wait(_BETWEEN_S):
            self._call(self.now)
        self._call(replace(self.now, stage="end"))

    def _call(self, now: Progress) -> None:
        """Call the callback, until it raises an error; errors do not stop the compilation."""
        if self._on_progress is None:
            return
        try:
            self._on_progress(replace(now, seconds=time.monotonic() - self._began))
        except Exception as error:
            self._on_progress = None
            _log.warning(
                "on_progress raised %s: %s. The function is not called again; the start continues.",
                *(type(error).__name__, error),
            )


_current: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar("watch", default=None)


@contextmanager
def watching(on_progress: OnProgress | None) -> Iterator[None]:
    """Call `on_progress` ten times a second while the code in this context compiles.

    The calls of the callback begin after half a second; the last call has the stage "end". A
    separate thread makes all calls; after an exception of the callback, that thread logs a warning
    and makes no more calls. A nested `watching` context has no effect.
    """
    if on_progress is None or _current.get() is not None:
        yield
        return
    watch = _Watch(on_progress)
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)
        watch.end()


def carried(work: Callable[[], Result]) -> Callable[[], Result]:
    """Return `work` for another thread; its progress reports go to the callback of this thread."""
    return partial(contextvars.copy_context().run, work)


def at(stage: Stage, total: int = 0) -> None:
    """Report the start of a stage and the number of its steps."""
    if (watch := _current.get()) is not None:
        watch.now = replace(watch.now, stage=stage, done=0, total=total)


def at_partition(number: int, count: int) -> None:
    """Report the start of partition `number` of `count`, counted from 1."""
    if (watch := _current.get()) is not None:
        watch.now = Progress("choose", partition=number, partitions=count)


def steps(stage: Stage, items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield items; each item is a step of a stage, done when the caller requests the next item."""
    at(stage, total)
    for done, item in enumerate(items, 1):
        yield item
        if (watch := _current.get()) is not None:  # a step may have reported other stages
            watch.now = replace(watch.now, stage=stage, done=done, total=total)
