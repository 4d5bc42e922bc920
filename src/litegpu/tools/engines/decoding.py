"""Prepares samples in advance of the model, in threads or in processes."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.runtime_abi.interpreter import default_threads
from litegpu.tools.console import note
from litegpu.tools.engines.decoders import (
    Decoder,
    LostError,
    Prepare,
    Prepared,
    Shape,
    SharedBatches,
    cannot,
    clear,
    prepared,
    reason,
    slots,
)
from litegpu.tools.engines.jobs import AUTO, PROCESSES, Arrays, BatchPlan, Decoding

_TRIAL = 128
"""Number of samples that threads prepare before processes may be started."""
_FEW = 4
"""Minimum number of threads for starting processes; fewer threads rarely block each other."""
_BLOCKED_RATIO = 2.0
"""Minimum ratio of elapsed time to CPU time in threads for starting processes."""
_PIECE = 8
"""Maximum number of samples that are sent to a process at once."""
_TRIES = 3
"""Number of processes that may crash on a sample before the sample fails."""


@dataclass
class Inputs:
    """The inputs of a batch: arrays, and the index of their shared memory, if any."""

    arrays: Arrays
    shared: int | None = None


class Preparing:
    """Prepares samples of several batches in parallel.

    Only one thread may use an instance, except for the method `done`.

    Threads prepare the first samples. If the threads block each other, the same number of processes
    start in the background. The processes replace the threads when they are ready, so that a short
    run does not wait for them.
    """

    def __init__(
        self,
        prepare: Prepare,
        plan: BatchPlan,
        shapes: tuple[Shape, ...],
        decoding: Decoding,
        most: int,
    ) -> None:
        """Set up the preparation; at most `most` batches of these shapes are in progress."""
        self._prepare, self._plan, self._shapes = prepare, plan, shapes
        self._decoding, self._most = decoding, most
        self._pool = ThreadPoolExecutor(decoding.threads, "litegpu-decode")
        self._lock = threading.Lock()
        self._trial, self._wall_s, self._cpu_s = 0, 0.0, 0.0
        self._decoders: list[Decoder] = []
        self._idle: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        self._memory: list[Arrays] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._starter: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._ready = self._closed = False

    def close(self) -> None:
        """End all threads and processes; samples that have not started are dropped."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)
        if self._starter is not None:
            self._starter.join()
        for decoder in self._decoders:
            decoder.leave()
        for decoder in self._decoders:
            decoder.end()

    def begin(self, items: list[Any]) -> tuple[Inputs, list[Future[list[Prepared]]]]:
        """Start to prepare a batch. Raises WorkerError if required processes cannot start."""
        self._consider()
        inputs = self._inputs(len(items))
        if inputs.shared is None:
            return inputs, [
                self._pool.submit(self._here, item, slots(inputs.arrays, index, self._plan.batched))
                for index, item in enumerate(items)
            ]
        size = min(max(2 * len(items) // self._decoding.threads, 1), _PIECE)  # of two batches
        return inputs, [
            self._pool.submit(self._elsewhere, items[first : first + size], inputs, first)
            for first in range(0, len(items), size)
        ]

    def done(self, inputs: Inputs) -> None:
        """Release the memory of a batch for reuse."""
        if inputs.shared is not None:
            self._free.put(inputs.shared)

    def empty(self) -> Arrays:
        """Return zero-filled inputs of a batch."""
        return [np.zeros(each.sizes, each.dtype) for each in self._shapes]

    def _inputs(self, count: int) -> Inputs:
        if not self._ready:
            return Inputs(self.empty())
        try:
            number = self._free.get_nowait()
        except queue.Empty:  # one per batch in progress, except after an abandoned run
            return Inputs(self.empty())
        if count < self._plan.batch:
            clear(self._memory[number])
        return Inputs(self._memory[number], number)

    def _here(self, item: Any, into: Arrays) -> list[Prepared]:
        found = prepared(self._prepare, self._plan, item, into)
        with self._lock:
            self._trial += 1
            self._wall_s += found.seconds
            self._cpu_s += found.cpu_s
        return [found]

    def _elsewhere(self, items: list[Any], inputs: Inputs, first: int) -> list[Prepared]:
        """Prepare samples in a process; after a crash, retry each sample separately.

        Only a sample that crashes several processes fails.
        """
        assert inputs.shared is not None
        begun, how = time.time(), ""
        for _ in range(_TRIES):
            decoder = self._idle.get()
            try:
                return decoder.prepare(items, inputs.shared, first)
            except LostError as lost:
                how = str(lost)
                if len(items) > 1:
                    break
            finally:
                self._idle.put(decoder)
        if len(items) > 1:
            alone = [self._elsewhere([item], inputs, first + at) for at, item in enumerate(items)]
            return [found for each in alone for found in each]
        clear(slots(inputs.arrays, first, self._plan.batched))
        error = (
            f"{_TRIES} processes were lost ({how}) while they decoded this sample. Look for a "
            "damaged sample, or for a lack of memory; fewer --decode_threads need less."
        )
        return [Prepared(error, begun, time.time() - begun, 0.0)]

    def _consider(self) -> None:
        """Start processes if the flag or the measured times of threads request them."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            ended = f"a process ended before it was ready, with {failed}"
            error = cannot(ended if isinstance(failed, LostError) else reason(failed))
            # A RuntimeError means that this process should not run all of this in the first place.
            if self._decoding.where == PROCESSES or isinstance(failed, RuntimeError):
                raise error from failed
            note(f"Samples are decoded in threads. {error}")
        if self._starter is None and (self._decoding.where == PROCESSES or self._pays()):
            self._starter = threading.Thread(target=self._start, daemon=True)
            self._starter.start()
            if self._decoding.where == PROCESSES:
                self._starter.join()
                self._consider()

    def _pays(self) -> bool:
        # More threads than CPUs wait for the CPUs, and so would processes.
        if self._decoding.where != AUTO or not _FEW <= self._decoding.threads <= default_threads():
            return False
        with self._lock:
            return self._trial >= _TRIAL and self._wall_s > _BLOCKED_RATIO * self._cpu_s

    def _start(self) -> None:
        try:
            memory = SharedBatches(self._shapes, self._most)
            self._memory = memory.views()
            self._decoders = [
                Decoder(self._prepare, self._plan, memory) for _ in range(self._decoding.threads)
            ]
            for decoder in self._decoders:
                if not self._closed:
                    decoder.start()
            for decoder in self._decoders:
                decoder.wait(lambda: not self._closed)
                self._idle.put(decoder)
            for number in range(self._most):
                self._free.put(number)
            self._ready = not self._closed
        except Exception as error:  # what is sent may raise anything
            for decoder in self._decoders:
                decoder.leave()
            self._failed = error
