"""Processes that prepare samples, and write them directly to the memory of the batches.

Threads of one process block each other: Python runs one thread at a time, and only one thread at a
time allocates or frees memory. The processes of this module have neither a delegate nor a runtime.
A process receives samples, usually as file names, writes arrays to shared memory, and returns a few
numbers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu import config
from litegpu.errors import LitegpuError, ModelError, WorkerError
from litegpu.tools.engines.jobs import Arrays, BatchPlan, Tensor

_ALIGNMENT = 64
_LOOK_S = 0.2
_PATIENCE_S = 60.0
"""Timeout in seconds for the start of a process, which imports packages while others start."""

Prepare = Callable[[Any, BatchPlan], Arrays]


@dataclass(frozen=True)
class Prepared:
    """The outcome and the time of preparing one sample.

    `error` is the error message, or empty after a success. `cpu_s` is the CPU time of the thread
    during the preparation.
    """

    error: str
    begun: float
    seconds: float
    cpu_s: float


class Shape(NamedTuple):
    """The shape and type of an input of a batch."""

    sizes: tuple[int, ...]
    dtype: np.dtype[Any]


class LostError(Exception):
    """A process ended while it prepared samples; the message has the reason."""


def prepared(prepare: Prepare, plan: BatchPlan, item: Any, slots: Arrays) -> Prepared:
    """Write the inputs of a sample to their position in the batch.

    For a failed sample, the function writes zeros.
    """
    begun, start, cpu = time.time(), time.perf_counter(), time.thread_time()
    error = ""
    try:
        arrays = list(map(_checked, prepare(item, plan), plan.inputs))
        for slot, array in zip(slots, arrays, strict=True):
            slot[...] = array
    except Exception as problem:  # a sample may raise anything
        error = reason(problem)
        clear(slots)
    return Prepared(error, begun, time.perf_counter() - start, time.thread_time() - cpu)


def clear(slots: Arrays) -> None:
    """Fill arrays with zeros."""
    for slot in slots:
        slot[...] = 0


def slots(arrays: Arrays, position: int, batched: bool) -> Arrays:
    """Return views of the elements that belong to the sample at a position of a batch."""
    # An item of a vector would not be a view.
    return [array[position, ...] if batched else array for array in arrays]


class SharedBatches:
    """Inputs of several batches, in memory shared between processes.

    The memory is anonymous, so that the system frees it when the processes end.
    """

    def __init__(self, shapes: tuple[Shape, ...], count: int) -> None:
        """Allocate the memory. Raises OSError if there is too little memory."""
        sizes = [int(np.prod(each.sizes)) * each.dtype.itemsize for each in shapes]
        self._shapes = shapes
        self._starts = [0, *np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])]
        context = multiprocessing.get_context("spawn")
        self._memory = [
            context.RawArray("B", max(int(self._starts[-1]), 1))  # it writes to all of it
            for _ in range(count)
        ]

    def views(self) -> list[Arrays]:
        """Return the inputs of each batch."""
        return [
            [
                np.frombuffer(memory, each.dtype, int(np.prod(each.sizes)), int(start)).reshape(
                    each.sizes
                )
                for each, start in zip(self._shapes, self._starts, strict=False)
            ]
            for memory in self._memory
        ]


class Decoder:
    """A process that prepares samples, one call at a time, and is restarted after a crash."""

    def __init__(self, prepare: Prepare, plan: BatchPlan, memory: SharedBatches) -> None:
        """Store the arguments of the process; `start` starts the process."""
        self._given = (prepare, replace(plan, model=b""), memory)
        self._process: Any = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the process without waiting until it is ready.

        Raises the pickling error of an object that cannot be sent to a process. Raises RuntimeError
        in a child process that is still importing the main script.
        """
        context = multiprocessing.get_context("spawn")  # no GPU API works after a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._given), daemon=True)
        # There are already as many processes as CPUs.
        with _without_interrupts(), config.placeholder("OPENBLAS_NUM_THREADS", "1"):
            self._process.start()
        theirs.close()

    def wait(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until the process is ready or no longer needed. Raises LostError if it ended."""
        end = time.monotonic() + _PATIENCE_S
        try:
            while wanted() and self._connection is not None:
                if self._connection.poll(_LOOK_S):
                    self._connection.recv()
                    return
                if time.monotonic() > end:
                    raise EOFError
        except (EOFError, OSError):
            raise LostError(self.end()) from None

    def prepare(self, items: list[Any], batch: int, first: int) -> list[Prepared]:
        """Prepare samples for consecutive positions in a batch, starting with `first`.

        Raises:
            LostError: the process ended; the next call starts another one.
        """
        if self._connection is None:
            self.start()
            self.wait()
        assert self._connection is not None
        try:
            self._connection.send((items, batch, first))
            found: list[Prepared] = self._connection.recv()
            return found
        except (EOFError, OSError):
            raise LostError(self.end()) from None

    def leave(self) -> None:
        """Tell the process to end after its current call."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def end(self) -> str:
        """Wait for the end of the process, or kill it; return how the process ended."""
        self.leave()
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return "it never started"
        process.join(_LOOK_S * 10)
        for stop in (process.terminate, process.kill):
            if process.is_alive():
                stop()
                process.join(_LOOK_S * 10)
        code = process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def _serve(
    connection: Connection, prepare: Prepare, plan: BatchPlan, memory: SharedBatches
) -> None:
    """Run the main loop of the process: prepare samples until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
    batches = memory.views()
    with contextlib.suppress(EOFError, OSError):
        connection.send(None)
        while True:
            items, batch, first = connection.recv()
            connection.send(
                [
                    prepared(prepare, plan, item, slots(batches[batch], index, plan.batched))
                    for index, item in enumerate(items, first)
                ]
            )


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Make processes that start inside the context ignore Ctrl-C from the beginning."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _checked(array: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    if array.shape == (1, *tensor.shape):
        array = array[0]
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        raise ModelError(
            f"The input '{tensor.name}' takes {tensor.dtype} of shape {list(tensor.shape)}, "
            f"not {array.dtype} of shape {list(array.shape)}. Give an array like that."
        )
    return array


def reason(error: BaseException) -> str:
    """Return an error as a readable text."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, LitegpuError) else f"{type(error).__name__}: {text}"


def cannot(why: str) -> WorkerError:
    """Return the error for decoding processes that cannot be started."""
    return WorkerError(
        f"Processes that decode cannot be started: {why}. Decode with --decode_in=threads. A "
        "script of your own must start them below `if __name__ == '__main__':`."
    )
