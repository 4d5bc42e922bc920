"""The inputs and results of engines; all of them can be sent to other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from litegpu import GpuDelegate

Item = TypeVar("Item")
Value = TypeVar("Value")
AUTO, THREADS, PROCESSES = "auto", "threads", "processes"
DECODE_IN = (AUTO, THREADS, PROCESSES)
"""Where samples are prepared: in threads of the worker, or each in a separate process."""
Arrays = list[NDArray[Any]]
"""One array for each input or output of a model, in order."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model for one sample.

    `shape` excludes the batch, if the model has one. `dynamic`: the shape is known only after a
    run. `quantization` is (scale, zero point); a scale of 0 means none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    quantization: tuple[float, int] = (0.0, 0)
    dynamic: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class BatchPlan:
    """How a model takes samples: `batch` of them at once.

    `model` is its file, modified if its shapes would not permit that batch. `batched`: the first
    dimension of its inputs and outputs counts samples; otherwise a sample is the whole of each
    tensor. `why_single` is the reason why no more than the model's own number is possible.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: int
    batched: bool
    model: bytes = field(repr=False)
    why_single: str = ""


@dataclass(frozen=True)
class Place:
    """The GPU of a worker; None leaves the choice to the delegate's options."""

    backend: str | None = None
    device: int | str | None = None


class Opened(NamedTuple):
    """An interpreter before the allocation of its tensors, and its delegate."""

    interpreter: Any
    delegate: GpuDelegate | None


@dataclass(frozen=True)
class Job(Generic[Item, Value]):
    """The functions that process each sample, and the model.

    A worker calls `open` once, in the thread that runs the model; `prepare` before a sample's run,
    in several threads or processes, which have the plan without the model's file; `finish` after
    the run. If `prepare` or `finish` raises an error, only that sample fails.

    Args:
        plan: the model and how it takes samples, see `planning.plan`.
        open: returns an interpreter of the model whose tensors have no memory yet, or Opened.
        prepare: returns a sample's inputs, with the shapes and types of `plan.inputs`, optionally
            with a leading dimension of size 1.
        finish: returns the result of a sample from the outputs of the model.
        name: returns the name of a sample for errors.
        read: returns the samples of a chunk; by default a chunk is a sequence of them.
    """

    plan: BatchPlan
    open: Callable[[bytes, Place], Any]
    prepare: Callable[[Item, BatchPlan], Arrays]
    finish: Callable[[Item, Arrays], Value]
    name: Callable[[Item], str] = str
    read: Callable[[Any], Iterable[Item]] = iter


@dataclass(frozen=True)
class Result(Generic[Value]):
    """The result of a sample: its value, or None and an error; times in seconds.

    `infer_s` is the sample's share of the time of its batch, `place` is where it ran. `begun` is
    the start of its preparation, in seconds since the epoch.
    """

    name: str
    value: Value | None
    error: str = ""
    prepare_s: float = 0.0
    infer_s: float = 0.0
    finish_s: float = 0.0
    place: str = ""
    begun: float = 0.0


@dataclass(frozen=True)
class Settings:
    """How an engine distributes work; 0 lets it choose a number.

    With `gpus_per_worker` below 1, several workers share a GPU.
    """

    engine: str = "local"
    workers: int = 0
    decode_threads: int = 0
    gpus_per_worker: float = 1.0
    decode_in: str = AUTO


@dataclass(frozen=True)
class Decoding:
    """The number of samples that a worker prepares at once, and where: one of DECODE_IN."""

    threads: int
    where: str = AUTO


def chunks(items: Sequence[Item], plan: BatchPlan) -> list[Sequence[Item]]:
    """Divide samples into chunks of whole batches for workers."""
    size = chunk_size(plan)
    return [items[start : start + size] for start in range(0, len(items), size)]


def chunk_size(plan: BatchPlan) -> int:
    """Return the number of samples per chunk: whole batches, with results of limited size.

    The number depends only on the model, so every engine computes the same batches.
    """
    sample = sum(each.nbytes for each in (*plan.inputs, *plan.outputs)) or 1
    batches = min(_CHUNK_BYTES // (sample * plan.batch), -(-_CHUNK_SAMPLES // plan.batch))
    return plan.batch * max(batches, 1)


_CHUNK_BYTES = 64 << 20
_CHUNK_SAMPLES = 64
