"""Dynamic batching: combines requests from many threads into batches for one model."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from litegpu.compiled_model.arrays import Array
from litegpu.compiled_model.call import ordered
from litegpu.compiled_model.fitting import count
from litegpu.compiled_model.future import AwaitedFuture
from litegpu.compiled_model.model import CompiledModel
from litegpu.compiled_model.rows import check_independent, check_outputs
from litegpu.errors import CompiledModelError
from litegpu.tensor_buffer import TensorBuffer

_SETS = 2
"""Sets of buffers per batch size: the host fills and reads one set while the other set runs."""
_WATCH = "litegpu-batcher-end"


@dataclass(frozen=True, slots=True)
class _Request:
    arrays: Sequence[Array]
    rows: int
    future: AwaitedFuture


@dataclass(frozen=True, slots=True)
class _Buffers:
    inputs: list[TensorBuffer]
    outputs: list[TensorBuffer]


class _Size:
    """The model compiled for one batch size, and the buffers for its runs."""

    def __init__(self, model: CompiledModel, rows: int) -> None:
        self.model, self.rows = model, rows
        self.buffers: SimpleQueue[_Buffers] = SimpleQueue()
        for _ in range(_SETS):
            self.buffers.put(_Buffers(model.create_input_buffers(), model.create_output_buffers()))
        check_outputs(model.signature, rows)


class Batcher:
    """Combines inference requests from many threads into batches for one model.

    Example:
        model = CompiledModel.from_file("model.tflite", precision="fp16")
        with Batcher(model, max_batch=16, max_delay_ms=2) as batcher:
            scores = batcher(picture)  # from any thread, with any others

    A request consists of one or a few rows (first dimension) for each input. All other dimensions
    of the inputs are fixed when the batcher is created. A request waits at most `max_delay_ms` for
    more requests; a full batch runs immediately. The batcher compiles the model for each of
    `batch_sizes` (default: powers of two up to `max_batch`). Each batch is padded with zeros to the
    smallest of these sizes that fits.

    Raises CompiledModelError for a model whose batch size is fixed, and for invalid arguments.
    """

    def __init__(
        self,
        model: CompiledModel,
        max_batch: int = 8,
        max_delay_ms: float = 1.0,
        batch_sizes: Iterable[int] | None = None,
    ) -> None:
        """Compile the model for each batch size; `model` itself does not change."""
        if not isinstance(model, CompiledModel):
            raise CompiledModelError(
                f"A {type(model).__name__} is no CompiledModel. Create one from a file: "
                "CompiledModel.from_file(path)."
            )
        self._max_batch = count("max_batch", max_batch)
        if not isinstance(max_delay_ms, (int, float, np.number)) or not 0 <= max_delay_ms < float(
            "inf"
        ):
            raise CompiledModelError(f"max_delay_ms is {max_delay_ms!r}. Use 0 or more.")
        self._delay = max_delay_ms / 1e3
        sizes = _sizes(self._max_batch, batch_sizes)
        self._model = model
        self._sizes = [_Size(model.at_batch(rows, contexts=_SETS), rows) for rows in sizes]
        largest = self._sizes[-1].model
        check_independent(largest.signature, largest)
        self._inputs = largest.signature.inputs
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._running: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = self._ended = False
        self._threads = [
            threading.Thread(target=work, name=f"litegpu-batcher-{name}", daemon=True)
            for name, work in (("gather", self._gather), ("deliver", self._deliver))
        ]
        for each in self._threads:
            each.start()
        _open.add(self)
        _watch_end()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer all requests, and release the compiled models. Repeated calls do nothing.

        Raises CompiledModelError if a request's callback calls `close`, which would deadlock.
        """
        if threading.current_thread() in self._threads:
            raise CompiledModelError(
                "A request's callback cannot close the batcher, because closing waits for the "
                "callback. Close it from another thread."
            )
        if not self._closed:
            self._closed = True
            self._requests.put(None)
        for each in self._threads:
            each.join()
        for size in self._sizes:
            size.model.close()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the model's results for these inputs. Raises as a call of CompiledModel does."""
        return self.submit(*inputs, **named).result()

    def submit(self, *inputs: Any, **named: Any) -> AwaitedFuture:
        """Submit a request, and return its future; the caller may then modify the arrays.

        Raises CompiledModelError for inputs that do not fit, and after `close`.
        """
        self._model.check_process()
        if self._closed:
            raise _closed()
        conversion, tensors = self._model._conversion, self._inputs
        given = [
            conversion.array(number, *pair)
            for number, pair in enumerate(
                zip(tensors, ordered(tensors, inputs, named), strict=True)
            )
        ]
        rows = _rows(self._max_batch, tensors, given)
        arrays = [conversion.fitting(*pair, keep=True) for pair in zip(tensors, given, strict=True)]
        future = AwaitedFuture()
        self._requests.put(_Request(arrays, rows, future))
        # `close` may have been called in the meantime: after the end of the thread, no request is
        # answered. The thread itself rejects requests that arrive before.
        if self._ended:
            self._refuse()
        return future

    def _gather(self) -> None:
        """Collect and run requests, in a thread; reject requests submitted after `close`."""
        left: _Request | None = None
        while (first := left or self._requests.get()) is not None:
            batch, left = self._collect(first)
            self._run(batch)
            if left is _END:
                break
        self._running.put(None)
        self._ended = True
        self._refuse()

    def _refuse(self) -> None:
        """Reject requests that were submitted after `close`."""
        with contextlib.suppress(Empty):
            while True:
                request = self._requests.get_nowait()
                if request is not None and request.future.set_running_or_notify_cancel():
                    request.future.set_exception(_closed())

    def _collect(self, first: _Request) -> tuple[list[_Request], _Request | None]:
        """Return a batch, and the next request if it did not fit the batch."""
        batch, rows, until = [first], first.rows, time.monotonic() + self._delay
        while rows < self._max_batch:
            try:
                request = self._requests.get(timeout=max(until - time.monotonic(), 0))
            except Empty:
                break
            if request is None:
                return batch, _END
            if rows + request.rows > self._max_batch:
                return batch, request
            batch.append(request)
            rows += request.rows
        return batch, None

    def _run(self, batch: Sequence[_Request]) -> None:
        """Copy a batch to buffers, and start its run."""
        requested = [each for each in batch if each.future.set_running_or_notify_cancel()]
        rows = sum(each.rows for each in requested)
        if not rows:
            return
        size = next(each for each in self._sizes if each.rows >= rows)
        buffers = size.buffers.get()
        try:
            for number, buffer in enumerate(buffers.inputs):
                parts = [each.arrays[number] for each in requested]
                np.concatenate(parts, out=buffer.array[:rows])
                buffer.array[rows:] = 0
            running = size.model.submit_by_index(0, buffers.inputs, buffers.outputs)
        except Exception as error:
            size.buffers.put(buffers)
            _fail(requested, error)
            return

        def deliver() -> None:
            try:
                running.result()
                _answer(requested, buffers.outputs, size.model)
            except Exception as error:
                _fail(requested, error)
            finally:
                size.buffers.put(buffers)

        self._running.put(deliver)

    def _deliver(self) -> None:
        """Wait for runs, and set the results of their requests, in a thread."""
        while (deliver := self._running.get()) is not None:
            deliver()


def _closed() -> CompiledModelError:
    return CompiledModelError("The batcher was closed. Create a new one.")


_END = _Request((), 0, AwaitedFuture())
"""The marker that `close` puts after the last request."""
_open: weakref.WeakSet[Batcher] = weakref.WeakSet()


_watching = threading.Lock()


def _close_at_end() -> None:
    """Answer all submitted requests when the main thread ends, before models are released."""
    threading.main_thread().join()
    for each in [*_open]:
        with contextlib.suppress(Exception):
            each.close()


def _watch_end() -> None:
    """Start a thread that waits for the main thread's end, and for which the process waits."""
    with _watching:
        if not any(each.name == _WATCH for each in threading.enumerate()):
            threading.Thread(target=_close_at_end, name=_WATCH, daemon=False).start()


def _sizes(max_batch: int, wanted: Iterable[int] | None) -> list[int]:
    """Return the batch sizes in ascending order.

    >>> _sizes(12, None), _sizes(12, (4,))
    ([1, 2, 4, 8, 12], [4, 12])
    """
    powers = [1 << bit for bit in range(max_batch.bit_length())]
    if not isinstance(wanted, Iterable | None):
        raise CompiledModelError(f"batch_sizes is {wanted!r}. Use several numbers, as in (1, 4).")
    sizes = powers if wanted is None else [count("a size of batch_sizes", each) for each in wanted]
    for size in sizes:
        if size > max_batch:
            raise CompiledModelError(
                f"batch_sizes has {size}. Use numbers from 1 to max_batch, {max_batch}."
            )
    return sorted({*sizes, max_batch})


def _rows(most: int, tensors: Sequence[Any], arrays: Sequence[Array]) -> int:
    """Return the number of rows of a request. Raises CompiledModelError for unsuitable arrays."""
    rows = {array.shape[0] if array.ndim else 0 for array in arrays}
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.shape[1:] != tensor.shape[1:] or not array.ndim:
            raise CompiledModelError(
                f"Input '{tensor.key}' has the shape {[-1, *tensor.shape[1:]]}, and was given "
                f"{[*array.shape]}. Use this shape, with the number of rows of the request in "
                "place of -1."
            )
    if len(rows) != 1 or not 1 <= min(rows) <= most:
        raise CompiledModelError(
            f"A request has {sorted(rows)} rows. Give all inputs the same number, 1 to {most}."
        )
    return rows.pop()


def _answer(
    batch: Sequence[_Request], outputs: Sequence[TensorBuffer], model: CompiledModel
) -> None:
    """Give each request copies of its rows of the outputs."""
    ends = [*accumulate(each.rows for each in batch)]
    keys = [tensor.key for tensor in model.signature.outputs]
    for request, end in zip(batch, ends, strict=True):
        found = [
            model._conversion.result(tensor, buffer.array[end - request.rows : end].copy())
            for tensor, buffer in zip(model.signature.outputs, outputs, strict=True)
        ]
        request.future.set_result(
            found[0] if len(found) == 1 else dict(zip(keys, found, strict=True))
        )


def _fail(batch: Sequence[_Request], error: Exception) -> None:
    for request in batch:
        if not request.future.done():
            request.future.set_exception(error)
