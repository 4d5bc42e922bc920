"""The engine of a cluster: Ray Data sends chunks to actors, each with a separate delegate.

Ray replaces a lost actor or machine, and repeats its chunks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from litegpu import config
from litegpu.errors import LitegpuError, OptionsError, WorkerError, missing_dependency
from litegpu.tools.engines.decoders import reason
from litegpu.tools.engines.jobs import Decoding, Item, Job, Place, Result, Settings, Value
from litegpu.tools.engines.places import gpus_of, refuse_several_gpus
from litegpu.tools.engines.stages import Meter, Run
from litegpu.tools.engines.worker import Worker

_TASK_CHUNKS = 8
"""Maximum number of chunks per task; an actor does not overlap consecutive tasks."""
_TASKS = 4
"""Minimum number of tasks per actor, if possible, so that all actors end at similar times."""
_THREADS = 4
"""Default maximum number of decoding threads of a worker."""


def start(
    job: Job[Item, Value], pieces: Sequence[Any], wanted: Settings, backend: str | None
) -> Run[Value]:
    """Return the results of the cluster at RAY_ADDRESS, or of this machine, in order.

    Raises:
        MissingDependencyError: Ray is not installed.
        OptionsError: no machine of the cluster has the resources of a worker.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise missing_dependency("ray", "ray", "The engine 'ray'") from error
    refuse_several_gpus(wanted)
    ours = not ray.is_initialized()
    if ours:
        _connect(ray)
    try:
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        workers, threads, gpus = _sizes(nodes, wanted)
    except BaseException:
        _leave(ray, ours)
        raise
    decoding = Decoding(threads, wanted.decode_in)
    results = _results(ray, job, pieces, (workers, decoding, gpus), backend, ours)
    return Run(results, Meter(workers, threads))


def _connect(ray: Any) -> None:
    try:
        # A cluster started automatically sends no usage statistics, and logs nothing about itself.
        with (
            config.placeholder("RAY_USAGE_STATS_ENABLED", "0"),
            config.placeholder("RAY_BACKEND_LOG_LEVEL", "fatal"),
        ):
            # Ignore a cluster that happens to run here, or its remains, unless it was named.
            address = None if config.names_ray_cluster() else "local"
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise WorkerError(
            f"There is no Ray cluster to work on: {' '.join(str(error).split())} Start one with "
            "`ray start --head`, name a cluster in RAY_ADDRESS, or unset that variable."
        ) from error


def _leave(ray: Any, ours: bool) -> None:
    if ours:
        ray.shutdown()


def _sizes(nodes: list[dict[str, float]], wanted: Settings) -> tuple[int, int, float]:
    """Return the number of workers, and the numbers of decoding threads and GPUs per worker."""
    has_gpus = any(node.get("GPU") for node in nodes)
    gpus = wanted.gpus_per_worker if has_gpus else 0.0
    most = int(max((node.get("CPU", 0) for node in nodes), default=0))
    room = [int(node.get("GPU", 0) / gpus) if gpus else 1 for node in nodes]
    workers = wanted.workers or max(sum(room), 1)
    per_node = -(-workers // max(sum(1 for each in room if each), 1))
    threads = wanted.decode_threads or min(max(most // per_node, 1), _THREADS)
    if threads > most:
        raise OptionsError(
            f"--decode_threads={threads}: a worker needs as many CPUs, but no machine of this Ray "
            f"cluster has more than {most}. Use fewer threads, or `ray start` one with more "
            "--num-cpus."
        )
    return workers, threads, gpus


def _results(
    ray: Any,
    job: Job[Item, Value],
    pieces: Sequence[Any],
    sizes: tuple[int, Decoding, float],
    backend: str | None,
    ours: bool,
) -> Generator[Result[Value], None, None]:
    workers, decoding, gpus = sizes
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        done = ray.data.from_items(tasks := _tasks(pieces, workers), override_num_blocks=len(tasks))
        done = done.map_batches(
            _Actor,
            fn_constructor_args=(ray.put(job), decoding, backend, os.getcwd()),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(tasks))),
            num_cpus=decoding.threads,
            num_gpus=gpus or None,
        )
        expected = iter(range(len(pieces)))
        for row in done.iter_rows():
            yield from _opened(row, expected)
    except LitegpuError:
        raise
    except ray.exceptions.RayError as error:
        raise WorkerError(f"Ray gave up: {reason(error)}") from error
    finally:
        _leave(ray, ours)


def _tasks(pieces: Sequence[Any], workers: int) -> list[dict[str, Any]]:
    """Group consecutive chunks to tasks, whose length grows with the number of chunks."""
    length = min(max(len(pieces) // (workers * _TASKS), 1), _TASK_CHUNKS)
    numbered = list(enumerate(pieces))
    return [
        {"task": pickle.dumps(numbered[start : start + length])}
        for start in range(0, len(numbered), length)
    ]


def _opened(row: dict[str, Any], expected: Iterator[int]) -> list[Result[Any]]:
    """Unpickle the results of a chunk, which must be the next chunk."""
    number, found = pickle.loads(row["done"])
    if isinstance(found, LitegpuError):
        raise found
    if number != next(expected, None):
        raise WorkerError(f"Ray returned chunk {number} out of order. Report this error as a bug.")
    results: list[Result[Any]] = found
    return results


class _Actor:
    """A worker in a process of Ray, which returns exceptions as results.

    After an exception in an actor, Ray would restart the actor, and hide the type of the exception.
    """

    def __init__(self, job: Any, decoding: Decoding, backend: str | None, folder: str) -> None:
        import ray

        with contextlib.suppress(OSError):  # paths may be relative to the folder of the run
            os.chdir(folder)
        self._error: LitegpuError | None = None
        job = ray.get(job) if isinstance(job, ray.ObjectRef) else job
        try:
            self._worker = Worker(job, _place(ray, backend), decoding)
        except LitegpuError as error:
            self._error = error

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for task in batch["task"]:
            for done in self._run(pickle.loads(task)):
                yield {"done": np.array([pickle.dumps(done)], dtype=object)}

    def _run(self, task: list[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        try:
            if self._error:
                raise self._error
            results: list[Result[Any]] = []
            for done in self._worker.run(task):
                results.extend(done.results)
                if done.final:
                    yield done.chunk, results
                    results = []
        except LitegpuError as error:
            yield task[0][0], error
        except Exception as error:
            yield task[0][0], WorkerError(f"A worker failed: {reason(error)}")


def _place(ray: Any, backend: str | None) -> Place:
    """Return the GPU that Ray assigned to this actor, unless only one GPU is visible."""
    gpus = gpus_of(backend)
    with contextlib.suppress(ValueError):  # names of GPU partitions are not numbers
        given = [int(each) for each in ray.get_gpu_ids()]
        if len(gpus) > 1 and given:
            mine = gpus[given[0] % len(gpus)]
            return Place(mine.backend, mine.index)
    return Place()
