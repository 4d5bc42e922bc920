"""Engines distribute samples to the delegates of one machine or of a cluster.

    plan = engines.plan(model, args.batch)
    job = engines.Job(model, plan, open, prepare, finish)
    run = engines.start(job, engines.chunks(items, plan), engines.settings(args), backend, device)
    for result in run.meter.watch(run.results): ...

The results do not depend on the engine, because all engines divide samples into the same batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.engines import local
from litegpu.tools.engines.jobs import (
    AUTO,
    DECODE_IN,
    Arrays,
    BatchPlan,
    Decoding,
    Item,
    Job,
    Opened,
    Place,
    Result,
    Settings,
    Tensor,
    Value,
    chunk_size,
    chunks,
)
from litegpu.tools.engines.places import places
from litegpu.tools.engines.planning import plan
from litegpu.tools.engines.stages import Meter, Run, Stage, Steps
from litegpu.tools.flags import Flag, at_least, one_of, positive

__all__ = [
    "ENGINE_FLAGS",
    "Arrays",
    "BatchPlan",
    "Job",
    "Meter",
    "Opened",
    "Place",
    "Result",
    "Run",
    "Settings",
    "Stage",
    "Steps",
    "Tensor",
    "chunk_size",
    "chunks",
    "plan",
    "settings",
    "start",
]

ENGINES = ("local", "ray")

ENGINE_FLAGS = (
    Flag(
        *("engine", one_of(ENGINES), "local", "local: this machine; ray: a Ray cluster"),
        metavar="NAME",
    ),
    Flag(
        "batch",
        at_least(0),
        0,
        "samples per inference; 0: 16, or 1 if the model has a fixed batch size",
    ),
    Flag("workers", at_least(0), 0, "number of delegates that work in parallel; 0: one per GPU"),
    Flag(
        *("gpus_per_worker", positive, 1.0),
        "number of GPUs per worker; with 0.5 two workers share a GPU",
    ),
    Flag(
        "decode_threads",
        at_least(0),
        0,
        "number of samples that a worker decodes in parallel; 0: by the number of CPUs",
    ),
    Flag(
        *("decode_in", one_of(DECODE_IN), AUTO),
        "where samples are decoded: threads, processes, or auto (processes if threads block each "
        "other)",
        metavar="PLACE",
    ),
)


def settings(args: argparse.Namespace) -> Settings:
    """Return the settings from the values of ENGINE_FLAGS."""
    return Settings(
        *(args.engine, args.workers, args.decode_threads, args.gpus_per_worker, args.decode_in)
    )


def start(
    job: Job[Item, Value],
    pieces: Sequence[Any],
    wanted: Settings,
    backend: str | None = None,
    device: int | str | None = None,
) -> Run[Value]:
    """Start a job; return the results of all samples of `pieces` (see `chunks`), in order.

    Args:
        job: the functions that process each sample.
        pieces: the chunks of samples that workers process.
        wanted: the settings: the engine, and its numbers of workers and threads.
        backend: the GPU API in the delegate's options, if any.
        device: the device in the delegate's options, if any, which all workers share.

    Raises:
        OptionsError: the settings request unavailable resources.
        MissingDependencyError: the engine's package is not installed.
    """
    if wanted.engine == "ray":
        from litegpu.tools.engines import ray_data

        return ray_data.start(job, pieces, wanted, backend)
    where = places(wanted, backend, device)
    threads = wanted.decode_threads or max(runtime.default_threads() // len(where), 1)
    decoding = Decoding(threads, wanted.decode_in)
    return Run(local.run(job, pieces, where, decoding), Meter(len(where), threads))
