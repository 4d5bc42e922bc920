"""The engine of one machine: one worker in this process, or several workers in processes."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Generic

from litegpu.errors import LitegpuError, WorkerError
from litegpu.tools.console import note
from litegpu.tools.engines.ahead import ahead
from litegpu.tools.engines.decoders import reason
from litegpu.tools.engines.jobs import Decoding, Item, Job, Place, Result, Value
from litegpu.tools.engines.worker import Done, Worker

_WORKER_CHUNKS = 2
"""Number of chunks assigned to a worker, which overlaps the end of one with the next one."""
_WINDOW = 4
"""Maximum number of chunks per worker that are in progress or waiting."""
_TRIES = 3
"""Number of workers that may crash on a chunk before the run fails."""
_LOOK_S = 0.2


def run(
    job: Job[Item, Value], chunks: Sequence[Any], places: Sequence[Place], decoding: Decoding
) -> Generator[Result[Value], None, None]:
    """Run a job on this machine; yield the results of all samples in order.

    Raises:
        WorkerError: several workers ended while they processed the same samples.
    """
    if len(places) == 1:
        done = _in_this_process(job, chunks, places[0], decoding)
        with ahead(done, _WINDOW) as results:
            for each in results:
                yield from each.results
    else:
        with contextlib.closing(_Crew(job, chunks, places, decoding)) as crew:
            yield from crew.results()


def _in_this_process(
    job: Job[Item, Value], chunks: Sequence[Any], place: Place, decoding: Decoding
) -> Iterator[Done[Value]]:
    with contextlib.closing(Worker(job, place, decoding)) as worker:
        yield from worker.run(enumerate(chunks))


def _serve(connection: Connection, job: Job[Any, Any], place: Place, decoding: Decoding) -> None:
    """Run a worker: process numbered chunks until None arrives, send Done objects or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    with ahead(iter(connection.recv, None), depth=_WORKER_CHUNKS + 1) as chunks:
        try:
            with contextlib.closing(Worker(job, place, decoding)) as worker:
                for done in worker.run(chunks):
                    connection.send(done)
        except (EOFError, OSError):  # the parent has ended
            return
        except LitegpuError as error:
            connection.send(error)
        except Exception as error:
            connection.send(WorkerError(f"A worker failed: {reason(error)}"))


class _Process(Generic[Value]):
    """A worker's process, and the chunks assigned to it."""

    def __init__(self, job: Job[Any, Value], place: Place, decoding: Decoding) -> None:
        context = multiprocessing.get_context("spawn")  # no GPU API works after a fork
        self.connection, theirs = context.Pipe()
        # Not a daemon: daemons may not have child processes.
        self._process = context.Process(target=_serve, args=(theirs, job, place, decoding))
        self._process.start()
        atexit.register(self._process.terminate)
        theirs.close()
        self.place = place
        self.chunks: list[int] = []

    def give(self, number: int, chunk: Any) -> None:
        """Send a chunk; a crash of the worker is detected when its connection is read."""
        self.chunks.append(number)
        with contextlib.suppress(OSError):
            self.connection.send((number, chunk))

    def end(self) -> str:
        """Terminate the process; return how it ended."""
        self._process.terminate()
        self._process.join(_LOOK_S * 10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.terminate)
        self.connection.close()
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def exit_reason(self) -> str:
        """Return how a process that closed its connection ended."""
        self._process.join(_LOOK_S * 10)
        return self.end()


class _Crew(Generic[Value]):
    """Several worker processes, whose results are put in order."""

    def __init__(
        self,
        job: Job[Any, Value],
        chunks: Sequence[Any],
        places: Sequence[Place],
        decoding: Decoding,
    ) -> None:
        self._job, self._chunks, self._decoding = job, chunks, decoding
        self._todo = deque(range(len(chunks)))
        self._finished: dict[int, list[Result[Value]]] = {}
        self._partial: dict[int, list[Result[Value]]] = {}
        self._lost = [0] * len(chunks)
        self._next = 0
        self._workers = [self._hire(place) for place in places[: len(chunks)]]

    def _hire(self, place: Place) -> _Process[Value]:
        return _Process(self._job, place, self._decoding)

    def results(self) -> Generator[Result[Value], None, None]:
        """Yield the results of all chunks in order."""
        while self._next < len(self._chunks):
            self._give_work()
            self._listen()
            while self._next in self._finished:
                yield from self._finished.pop(self._next)
                self._next += 1

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _give_work(self) -> None:
        window = self._next + _WINDOW * len(self._workers)
        for worker in sorted(self._workers, key=lambda each: len(each.chunks)):
            while self._todo and len(worker.chunks) < _WORKER_CHUNKS and self._todo[0] < window:
                number = self._todo.popleft()
                worker.give(number, self._chunks[number])

    def _listen(self) -> None:
        by_connection = {each.connection: each for each in self._workers}
        for ready in wait(list(by_connection), _LOOK_S):
            worker = by_connection[ready]  # type: ignore[index]
            try:
                self._take(worker, worker.connection.recv())
            except (EOFError, OSError):
                self._replace(worker)

    def _take(self, worker: _Process[Value], found: Done[Value] | LitegpuError) -> None:
        if isinstance(found, LitegpuError):
            raise found
        self._partial.setdefault(found.chunk, []).extend(found.results)
        if found.final:
            worker.chunks.remove(found.chunk)
            self._finished[found.chunk] = self._partial.pop(found.chunk)

    def _replace(self, worker: _Process[Value]) -> None:
        """Assign the chunks of a crashed worker to other workers, and start a new worker."""
        how = worker.exit_reason()
        for number in worker.chunks:
            self._partial.pop(number, None)
            self._lost[number] += 1
        if worker.chunks and self._lost[worker.chunks[0]] >= _TRIES:
            suspect = self._chunks[worker.chunks[0]]
            names = [self._job.name(item) for item in self._job.read(suspect)]
            raise WorkerError(
                f"{_TRIES} workers were lost ({how}) while they processed the samples from "
                f"{names[0]} to {names[-1]}. Look for a crash in a decoder or driver, or for a "
                "lack of memory; fewer --workers or --decode_threads need less. A script of your "
                "own must start them below `if __name__ == '__main__':`."
            )
        note(f"A worker process was lost ({how}); another worker continues with its samples.")
        self._todo.extendleft(reversed(worker.chunks))
        self._todo = deque(sorted(self._todo))
        self._workers[self._workers.index(worker)] = self._hire(worker.place)
