"""The inputs and results of engines; all classes can be pickled for other processes."""

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
"""The choices for the preparation of samples: automatic, in threads, or in processes."""
Arrays = list[NDArray[Any]]
"""One array for each input or output of a model, in order."""


@dataclass(frozen=True)
class Tensor:
    """A model input or output for one sample.

    `shape` excludes the batch axis. `dynamic` means that the shape is known only after a run.
    `quantization` is (scale, zero point); a scale of 0 means that the tensor is not quantized.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    quantization: tuple[float, int] = (0.0, 0)
    dynamic: bool = False

    @property
    def nbytes(self) -> int:
        """Size of one sample in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class BatchPlan:
    """The batching of a model: the number of samples per run, and the axes of samples.

    `model` is the content of the .tflite file, modified if its constant shapes did not permit the
    batch. `batched` means that the first axis of inputs and outputs is the batch; otherwise each
    tensor is one sample. `why_single` is the reason why the model's batch cannot be changed.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: int
    batched: bool
    model: bytes = field(repr=False)
    why_single: str = ""


@dataclass(frozen=True)
class Place:
    """The GPU of a worker; None means that the delegate's options select the GPU."""

    backend: str | None = None
    device: int | str | None = None


class Opened(NamedTuple):
    """An interpreter without allocated tensors, and its delegate."""

    interpreter: Any
    delegate: GpuDelegate | None


@dataclass(frozen=True)
class Job(Generic[Item, Value]):
    """The functions that process each sample, and the model.

    A worker calls `open` once, in the thread that runs the model. Several threads or processes call
    `prepare` before the run of a sample, with a plan that has no model file. The worker calls
    `finish` after the run. If `prepare` or `finish` raises an error, only that sample fails.

    Args:
        plan: the model and its batching, see `planning.plan`.
        open: returns an interpreter of the model without allocated tensors, or Opened.
        prepare: returns a sample's inputs, with the shapes and types of `plan.inputs`, optionally
            with a leading axis of size 1.
        finish: returns the result of a sample from the outputs of the model.
        name: returns the name of a sample for error messages.
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
    """The result of a sample: a value, or None and an error; times are in seconds.

    `infer_s` is the sample's share of the batch's inference time, and `place` is the device.
    `begun` is the start of the sample's preparation, in seconds since the epoch.
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
    """The settings of an engine; for a number, 0 means automatic.

    With `gpus_per_worker` below 1, several workers share a GPU.
    """

    engine: str = "local"
    workers: int = 0
    decode_threads: int = 0
    gpus_per_worker: float = 1.0
    decode_in: str = AUTO


@dataclass(frozen=True)
class Decoding:
    """The number of samples that a worker prepares in parallel, and one of DECODE_IN."""

    threads: int
    where: str = AUTO


def chunks(items: Sequence[Item], plan: BatchPlan) -> list[Sequence[Item]]:
    """Divide samples into chunks of whole batches for workers."""
    size = chunk_size(plan)
    return [items[start : start + size] for start in range(0, len(items), size)]


def chunk_size(plan: BatchPlan) -> int:
    """Return the number of samples per chunk: a multiple of the batch, with limited result size.

    The number depends only on the model, so that all engines compute the same batches.
    """
    sample = sum(each.nbytes for each in (*plan.inputs, *plan.outputs)) or 1
    batches = min(_CHUNK_BYTES // (sample * plan.batch), -(-_CHUNK_SAMPLES // plan.batch))
    return plan.batch * max(batches, 1)


_CHUNK_BYTES = 64 << 20
_CHUNK_SAMPLES = 64
