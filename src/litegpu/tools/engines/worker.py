"""One delegate and the threads that decode for it: what every engine has in each of its places."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from litegpu import GpuDelegate
from litegpu.errors import LitegpuError, ModelError
from litegpu.tools import runtime
from litegpu.tools.delegation import quietly
from litegpu.tools.engines.ahead import ahead
from litegpu.tools.engines.jobs import Arrays, Item, Job, Opened, Place, Plan, Result, Tensor, Value

_BATCHES_AHEAD = 2
"""Batches that wait for the GPU, decoded; those that are being decoded come on top."""


@dataclass(frozen=True)
class Done(Generic[Value]):
    """Results of a batch of chunk number `chunk`, the last of which is `final`."""

    chunk: int
    results: list[Result[Value]]
    final: bool


@dataclass(frozen=True)
class _Prepared:
    """Why a sample has no inputs, empty if it has; when that began, and the seconds it took."""

    error: str
    begun: float
    seconds: float


@dataclass
class _Batch(Generic[Item]):
    """A batch on its way: its samples, and the inputs that they are prepared into."""

    chunk: int
    items: list[Item]
    inputs: Arrays
    prepared: list[Future[_Prepared]]
    final: bool


class Worker(Generic[Item, Value]):
    """Runs chunks of samples in order; use it in one thread."""

    def __init__(self, job: Job[Item, Value], place: Place, decode_threads: int) -> None:
        """Open the job's interpreter. Raises what `job.open` does, and ModelError."""
        self._job = job
        self._session = Session(job, place)
        self._pool = ThreadPoolExecutor(decode_threads, "litegpu-decode")
        self._depth = max(_BATCHES_AHEAD, -(-2 * decode_threads // job.plan.batch))

    def close(self) -> None:
        """End the threads; what they have not begun they leave."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, chunks: Iterable[tuple[int, Any]]) -> Iterator[Done[Value]]:
        """Yield the results of numbered chunks, in order, batch by batch."""
        with ahead(self._batches(chunks), self._depth) as batches:
            for batch in batches:
                yield Done(batch.chunk, self._infer(batch), batch.final)

    def _batches(self, chunks: Iterable[tuple[int, Any]]) -> Iterator[_Batch[Item]]:
        """Yield batches that are being decoded; none has samples of two chunks."""
        for number, chunk in chunks:
            items = iter(self._job.read(chunk))
            batch = list(itertools.islice(items, self._job.plan.batch))
            while True:
                following = list(itertools.islice(items, self._job.plan.batch))
                inputs = self._session.inputs()
                prepared = [
                    self._pool.submit(self._prepare, item, self._session.slots(inputs, place))
                    for place, item in enumerate(batch)
                ]
                yield _Batch(number, batch, inputs, prepared, not following)
                if not following:
                    break
                batch = following

    def _prepare(self, item: Item, slots: Arrays) -> _Prepared:
        """Put the inputs of a sample where its batch has them: no other thread copies them."""
        begun, start = time.time(), time.perf_counter()
        error = ""
        try:
            found = self._job.prepare(item, self._job.plan)
            arrays = list(map(_checked, found, self._job.plan.inputs))
            for slot, array in zip(slots, arrays, strict=True):
                slot[...] = array
        except Exception as problem:  # a sample may hold anything
            error = reason(problem)
        return _Prepared(error, begun, time.perf_counter() - start)

    def _infer(self, batch: _Batch[Item]) -> list[Result[Value]]:
        prepared = [future.result() for future in batch.prepared]
        good = [place for place, each in enumerate(prepared) if not each.error]
        start = time.perf_counter()
        outputs = self._outputs(batch.inputs, good)
        share = (time.perf_counter() - start) / max(len(good), 1)
        return [
            self._finish(item, each, outputs.get(place, each.error), share)
            for place, (item, each) in enumerate(zip(batch.items, prepared, strict=True))
        ]

    def _outputs(self, inputs: Arrays, places: list[int]) -> dict[int, Arrays | str]:
        """Return the outputs of the samples at these places of a batch, or why one has none."""
        if not places:
            return {}
        try:
            outputs = self._session.run(inputs)
            return {place: self._session.slots(outputs, place) for place in places}
        except ModelError as error:  # of what the inputs hold: find out whose
            if len(places) == 1:
                return {places[0]: reason(error)}
        found: dict[int, Arrays | str] = {}
        for place in places:
            alone = self._session.inputs()
            for slot, values in zip(
                self._session.slots(alone, place), self._session.slots(inputs, place), strict=True
            ):
                slot[...] = values
            found.update(self._outputs(alone, [place]))
        return found

    def _finish(
        self, item: Item, prepared: _Prepared, found: Arrays | str, infer_s: float
    ) -> Result[Value]:
        start = time.perf_counter()
        value, error = None, ""
        if isinstance(found, str):
            error = found
        else:
            try:
                value = self._job.finish(item, found)
            except Exception as problem:  # as of preparing
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
    """An interpreter for a job's batches. A batch that is not full has zeros at its end.

    So has one of whose samples some have no inputs: what a sample gets does not depend on others.
    """

    def __init__(self, job: Job[Any, Any], place: Place) -> None:
        """Open the interpreter and give it the batch of the job's plan."""
        self._plan = job.plan
        with quietly():
            opened = job.open(job.plan.model, place)
            if not isinstance(opened, Opened):
                opened = Opened(opened, None)
            self._interpreter = opened.interpreter
            allocate(self._interpreter, job.plan)
        self.place = _name(opened.delegate)
        self._inputs = [
            (each["index"], tuple(each["shape"]), each["dtype"])
            for each in self._interpreter.get_input_details()
        ]
        self._outputs = [each["index"] for each in self._interpreter.get_output_details()]

    def inputs(self) -> Arrays:
        """Return inputs of a batch that hold zeros."""
        return [np.zeros(shape, dtype) for _, shape, dtype in self._inputs]

    def slots(self, arrays: Arrays, place: int) -> Arrays:
        """Return the part of inputs or outputs that belongs to the sample at a place, as views."""
        # An item of a vector would be no view.
        return [array[place, ...] if self._plan.batched else array for array in arrays]

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs of a batch.

        Raises:
            ModelError: the model refuses what it holds.
        """
        for (index, _, _), values in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, values)
        self._interpreter.reset_all_variables()  # samples do not follow from one another
        runtime.invoke(self._interpreter)
        return [self._read(index) for index in self._outputs]

    def _read(self, index: int) -> NDArray[Any]:
        try:
            values: NDArray[Any] = self._interpreter.get_tensor(index)
            return values
        except ValueError:  # what the runtime says of tensors without elements
            for detail in self._interpreter.get_output_details():
                if detail["index"] == index and 0 in detail["shape"]:
                    return np.zeros(tuple(detail["shape"]), detail["dtype"])
            raise


def allocate(interpreter: Any, plan: Plan) -> None:
    """Give an interpreter's tensors memory, for the batch of the plan."""
    if plan.batched and plan.batch != _own_batch(interpreter):
        runtime.set_batch(interpreter, plan.batch)
    else:
        interpreter.allocate_tensors()


def _name(delegate: GpuDelegate | None) -> str:
    """Return where a model runs."""
    report = delegate.report if delegate else None
    if report is None or not report.delegated_nodes:
        return "CPU"
    share = f"{len(report.delegated_nodes)} of {report.total_nodes} operations"
    return f"{report.device} ({report.backend} {report.precision}, {share})"


def _own_batch(interpreter: Any) -> int:
    return int(interpreter.get_input_details()[0]["shape"][0])


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
    """Return what people read of an error."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, LitegpuError) else f"{type(error).__name__}: {text}"
