"""One delegate and its decoding threads: the worker of every engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from litegpu import GpuDelegate
from litegpu.errors import ModelError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.delegation import quietly
from litegpu.tools.engines.ahead import ahead
from litegpu.tools.engines.decoders import Prepared, Shape, reason, slots
from litegpu.tools.engines.decoding import Inputs, Preparing
from litegpu.tools.engines.jobs import (
    Arrays,
    BatchPlan,
    Decoding,
    Item,
    Job,
    Opened,
    Place,
    Result,
    Value,
)

_BATCHES_AHEAD = 2
"""Maximum number of decoded batches that wait for the GPU."""


@dataclass(frozen=True)
class Done(Generic[Value]):
    """Results of a batch of the chunk with index `chunk`; `final` marks the chunk's last batch."""

    chunk: int
    results: list[Result[Value]]
    final: bool


@dataclass
class _Batch(Generic[Item]):
    """A batch in progress: samples, and the arrays for their inputs."""

    chunk: int
    items: list[Item]
    inputs: Inputs
    prepared: list[Future[list[Prepared]]]
    final: bool


class Worker(Generic[Item, Value]):
    """Runs chunks of samples in order; only one thread may use it."""

    def __init__(self, job: Job[Item, Value], place: Place, decoding: Decoding) -> None:
        """Open the job's interpreter. Raises ModelError and the exceptions of `job.open`."""
        self._job = job
        self._session = Session(job, place)
        self._depth = max(_BATCHES_AHEAD, -(-2 * decoding.threads // job.plan.batch))
        # plus one being prepared, and one in the model
        most, shapes = self._depth + 2, self._session.shapes
        self._preparing = Preparing(job.prepare, job.plan, shapes, decoding, most)

    def close(self) -> None:
        """End all threads and processes; samples that have not started are dropped."""
        self._preparing.close()

    def run(self, chunks: Iterable[tuple[int, Any]]) -> Iterator[Done[Value]]:
        """Yield the results of numbered chunks, in order, batch by batch."""
        with ahead(self._batches(chunks), self._depth) as batches:
            for batch in batches:
                yield Done(batch.chunk, self._infer(batch), batch.final)

    def _batches(self, chunks: Iterable[tuple[int, Any]]) -> Iterator[_Batch[Item]]:
        """Yield batches that are being decoded; the samples of a batch belong to one chunk."""
        for number, chunk in chunks:
            items = iter(self._job.read(chunk))
            batch = list(itertools.islice(items, self._job.plan.batch))
            while True:
                following = list(itertools.islice(items, self._job.plan.batch))
                yield _Batch(number, batch, *self._preparing.begin(batch), not following)
                if not following:
                    break
                batch = following

    def _infer(self, batch: _Batch[Item]) -> list[Result[Value]]:
        prepared = [each for future in batch.prepared for each in future.result()]
        good = [index for index, each in enumerate(prepared) if not each.error]
        start = time.perf_counter()
        outputs = self._outputs(batch.inputs.arrays, good)
        self._preparing.done(batch.inputs)
        share = (time.perf_counter() - start) / max(len(good), 1)
        return [
            self._finish(item, each, outputs.get(index, each.error), share)
            for index, (item, each) in enumerate(zip(batch.items, prepared, strict=True))
        ]

    def _outputs(self, inputs: Arrays, positions: list[int]) -> dict[int, Arrays | str]:
        """Return the outputs of the samples at these positions of a batch, or the errors."""
        if not positions:
            return {}
        batched = self._job.plan.batched
        try:
            outputs = self._session.run(inputs)
            return {position: slots(outputs, position, batched) for position in positions}
        except ModelError as error:  # caused by the inputs: find out by which sample
            if len(positions) == 1:
                return {positions[0]: reason(error)}
        found: dict[int, Arrays | str] = {}
        for position in positions:
            alone = self._preparing.empty()
            for slot, values in zip(
                slots(alone, position, batched), slots(inputs, position, batched), strict=True
            ):
                slot[...] = values
            found.update(self._outputs(alone, [position]))
        return found

    def _finish(
        self, item: Item, prepared: Prepared, found: Arrays | str, infer_s: float
    ) -> Result[Value]:
        start = time.perf_counter()
        value, error = None, ""
        if isinstance(found, str):
            error = found
        else:
            try:
                value = self._job.finish(item, found)
            except Exception as problem:  # as for preparing
                error = reason(problem)
        return Result(
            self._job.name(item),
            value,
            error,
            prepared.seconds,
            0.0 if prepared.error else infer_s,
            time.perf_counter() - start,
            self._session.place,
            prepared.begun,
        )


class Session:
    """An interpreter for a job's batches, which pads partial batches with zeros.

    Zeros also replace samples without inputs. The result of a sample does not depend on other
    samples.
    """

    def __init__(self, job: Job[Any, Any], place: Place) -> None:
        """Open the interpreter, and set the batch of the job's plan."""
        with quietly():
            opened = job.open(job.plan.model, place)
            if not isinstance(opened, Opened):
                opened = Opened(opened, None)
            self._interpreter = opened.interpreter
            allocate(self._interpreter, job.plan)
        self.place = _name(opened.delegate)
        details = self._interpreter.get_input_details()
        self._inputs = [each["index"] for each in details]
        self.shapes = tuple(
            Shape(tuple(map(int, each["shape"])), np.dtype(each["dtype"])) for each in details
        )
        self._outputs = [each["index"] for each in self._interpreter.get_output_details()]

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs of a batch.

        Raises:
            ModelError: the runtime cannot run the model on these inputs.
        """
        for index, values in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, values)
        self._interpreter.reset_all_variables()  # samples do not depend on each other
        runtime.invoke(self._interpreter)
        return [self._read(index) for index in self._outputs]

    def _read(self, index: int) -> NDArray[Any]:
        try:
            values: NDArray[Any] = self._interpreter.get_tensor(index)
            return values
        except ValueError:  # the runtime's error for tensors without elements
            for detail in self._interpreter.get_output_details():
                if detail["index"] == index and 0 in detail["shape"]:
                    return np.zeros(tuple(detail["shape"]), detail["dtype"])
            raise


def allocate(interpreter: Any, plan: BatchPlan) -> None:
    """Allocate an interpreter's tensors, for the batch of the plan."""
    if plan.batched and plan.batch != _own_batch(interpreter):
        runtime.set_batch(interpreter, plan.batch)
    else:
        interpreter.allocate_tensors()


def _name(delegate: GpuDelegate | None) -> str:
    """Return a description of where a model runs."""
    report = delegate.report if delegate else None
    if report is None or not report.delegated_nodes:
        return "CPU"
    share = f"{len(report.delegated_nodes)} of {report.total_nodes} operations"
    return f"{report.device} ({report.backend} {report.precision}, {share})"


def _own_batch(interpreter: Any) -> int:
    return int(interpreter.get_input_details()[0]["shape"][0])
