"""Execution contexts of a model: a context executes one run at a time; runs may overlap."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_void_p
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.backends.buffers import Buffer, HostBuffer
from litegpu.compiled_model.cached_runs import Buffers, CachedRuns, key_of
from litegpu.compiled_model.fitting import check, grown
from litegpu.compiled_model.instance import Instance
from litegpu.compiled_model.signatures import Signature, Tensor
from litegpu.delegation.direct_run import DirectRun, IoBuffers, KernelContext
from litegpu.errors import BindingError, CompiledModelError
from litegpu.tensor_buffer import TensorBuffer

_numbers = itertools.count()
_Result = TypeVar("_Result")
Array = npt.NDArray[Any]


class Run(Protocol):
    """A prepared run on fixed buffers, which only one thread at a time uses."""

    def __call__(self) -> None:
        """Run once, and wait."""

    def submit(self) -> None:
        """Start the run."""

    def is_done(self) -> bool:
        """Whether the submitted run is done."""

    def finish(self) -> None:
        """Wait for the submitted run. Raises its error."""


class ModelContext:
    """The buffers and interpreter state that one run uses at a time.

    All contexts of an instance share the instance's kernel and weights.
    """

    def __init__(self, instance: Instance, number: int = 0) -> None:
        """Create the context with this number for an instance."""
        self.instance, self._number = instance, number
        self._on_kernels: dict[int | None, KernelContext] = {}
        """Kernel contexts by graph number."""
        self._runs = CachedRuns[DirectRun]()
        self._on_arrays: dict[int, _ArrayRun] = {}
        """Cached runs on arrays by signature number."""
        self._threads: ThreadPoolExecutor | None = None
        self._watcher: ThreadPoolExecutor | None = None
        self._lock = threading.RLock()
        self.busy = False
        """Whether the context seems to be in use; only the lock is reliable."""
        self.flight: Flight | None = None
        """The run that was submitted last, until it has ended."""

    def use(self, work: Callable[[ModelContext], _Result]) -> _Result:
        """Call `work` once this thread has the context and no run is in flight on the context."""
        with self._lock:
            self.busy = True
            try:
                if self.flight is not None:
                    self.flight.finish()
                    self.flight = None
                return work(self)
            finally:
                self.busy = False

    def check_entry(self) -> None:
        """Raise CompiledModelError if this thread has already acquired the context (deadlock)."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise CompiledModelError(
                "This thread is already running the model; a signal handler may have called it "
                "again. Compile the model with more `contexts`, or wait for the end of the run."
            )

    def submit(self, run: Run) -> Flight:
        """Start a run, within `use`."""
        run.submit()
        self.flight = flight = Flight(self, run)
        return flight

    def bound(self, index: int, inputs: Buffers, outputs: Buffers, stream: int | None) -> Run:
        """Return the run of a signature on buffers, cached until one of them is released."""
        key = key_of(index, inputs, outputs, stream)
        found = self._runs.find(key)
        if found is not None:
            return found
        run = self.prepared(index, inputs, outputs, stream, repeated=True)
        if isinstance(run, DirectRun):
            self._runs.add(key, run, (*inputs, *outputs))
        return run

    def on_arrays(self, index: int, inputs: Sequence[Array], outputs: list[Array]) -> Run:
        """Return the run of a signature on host arrays with the tensors' shapes and types.

        A run through an interpreter replaces the arrays in `outputs` with new ones.
        """
        signature, moving = self.instance.signatures[index], self._on_arrays.get(index)
        if moving is None:
            if not self.instance.runs_directly(signature):
                return self._interpreted(
                    signature, lambda: inputs, partial(_replace, signature, outputs)
                )
            moving = self._on_arrays[index] = _ArrayRun(signature)
        moving.take(inputs, outputs)
        if moving.run is None:
            moving.run = self._direct(signature, moving.inputs, moving.outputs)
        return moving.run

    def prepared(
        self,
        index: int,
        inputs: Buffers,
        outputs: Buffers,
        stream: int | None,
        repeated: bool = False,
    ) -> Run:
        """Return a run of a signature on buffers. Raises CompiledModelError or BindingError."""
        instance, signature = self.instance, self.instance.signatures[index]
        check("Input", signature.inputs, inputs)
        check("Output", signature.outputs, outputs)
        if instance.runs_directly(signature):
            ins, outs = ([each.memory for each in side] for side in (inputs, outputs))
            return self._direct(signature, ins, outs, stream, repeated)
        if stream is not None:
            raise BindingError(
                "`stream` requires that one partition on CUDA contains the whole model; the "
                "report lists the nodes on the CPU. Wait for the stream and run without `stream`, "
                "or compile a small model with min_nodes_per_partition=0."
            )
        read = partial(_contents, signature, inputs)
        return self._interpreted(signature, read, partial(_put, signature, outputs))

    def _interpreted(
        self,
        signature: Signature,
        read: Callable[[], Sequence[Array]],
        write: Callable[[list[Array]], None],
    ) -> Run:
        def work() -> None:
            with self.instance.lock:
                write(signature.run(read()))

        return _InterpreterRun(work, self._thread)

    def _direct(
        self,
        signature: Signature,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        stream: int | None = None,
        repeated: bool = False,
    ) -> DirectRun:
        kernel = self.instance.kernel(signature)
        assert kernel is not None
        on_kernel = self._on_kernels.get(signature.graph)
        if on_kernel is None or on_kernel.kernel is not kernel:
            on_kernel = self._on_kernels[signature.graph] = KernelContext(kernel, self._number)
        io = IoBuffers(
            {t.index: memory for t, memory in zip(signature.inputs, inputs, strict=True)},
            _by_index(signature.outputs, outputs),
        )
        return DirectRun(on_kernel, io, stream, repeated)

    def _thread(self, function: Callable[[], None]) -> Future[None]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "litegpu-model")
        return self._threads.submit(function)

    def watch(self, end: Callable[[], None]) -> None:
        """Call `end` of a flight in this context's thread, which processes one flight at a time."""
        if self._watcher is None:
            self._watcher = ThreadPoolExecutor(1, "litegpu-watch")
        try:
            self._watcher.submit(end)
        except RuntimeError:  # the context was closed, or the program is exiting
            end()

    def forget(self) -> None:
        """Remove all prepared runs, because shapes have changed."""
        self._runs.clear()
        self._on_arrays.clear()

    def close(self) -> None:
        """Release what belongs to this context only."""
        self.forget()
        for each in self._on_kernels.values():
            each.close()
        if self._threads is not None:
            self._threads.shutdown()
        if self._watcher is not None:
            self._watcher.shutdown(wait=False)  # its thread may be waiting for the closing thread


def _by_index(tensors: Sequence[Tensor], buffers: Sequence[Buffer]) -> dict[int, list[Buffer]]:
    found: dict[int, list[Buffer]] = {}
    for tensor, buffer in zip(tensors, buffers, strict=True):
        found.setdefault(tensor.index, []).append(buffer)
    return found


class _ArrayRun:
    """A run on host arrays, which may be other arrays each time."""

    def __init__(self, signature: Signature) -> None:
        self._sources, self.inputs = _moving(signature.inputs)
        self._targets, self.outputs = _moving(signature.outputs)
        self._arrays: object = None
        self.run: DirectRun | None = None

    def take(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Use these arrays in the next run, and reference them until the run after that."""
        self._arrays = inputs, outputs
        pointers = (*self._sources, *self._targets)
        for pointer, array in zip(pointers, (*inputs, *outputs), strict=True):
            pointer.value = array.__array_interface__["data"][0]


def _moving(tensors: Sequence[Tensor]) -> tuple[list[c_void_p], list[HostBuffer]]:
    pointers = [c_void_p() for _ in tensors]
    pairs = zip(pointers, tensors, strict=True)
    return pointers, [HostBuffer(pointer, tensor.nbytes) for pointer, tensor in pairs]


class _InterpreterRun:
    """A run through an interpreter, which copies inputs and outputs."""

    def __init__(
        self, work: Callable[[], None], thread: Callable[[Callable[[], None]], Future[None]]
    ) -> None:
        self._work, self._thread = work, thread
        self._future: Future[None] | None = None

    def __call__(self) -> None:
        self._work()

    def submit(self) -> None:
        self._future = self._thread(self._work)

    def is_done(self) -> bool:
        return self._future is None or self._future.done()

    def finish(self) -> None:
        if self._future is not None:
            self._future.result()


def content(buffer: TensorBuffer, tensor: Tensor) -> Array:
    """Return a buffer's contents in the shape of its tensor; the buffer itself may be flat."""
    array = buffer.read() if buffer.kind == "device" else buffer.array
    return array.reshape(tensor.shape)


def _contents(signature: Signature, buffers: Buffers) -> list[Array]:
    return [content(*pair) for pair in zip(buffers, signature.inputs, strict=True)]


def _put(signature: Signature, buffers: Buffers, results: Sequence[Array]) -> None:
    before = signature.outputs
    signature.learn(results)
    for tensor, buffer, result in zip(before, buffers, results, strict=True):
        if result.nbytes != buffer.nbytes:
            raise grown(tensor, result.shape)
        if buffer.kind == "device":
            buffer.write(result)
        else:
            np.copyto(buffer.array, result.reshape(buffer.shape))


def _replace(signature: Signature, outputs: list[Array], results: Sequence[Array]) -> None:
    signature.learn(results)
    outputs[:] = results


class ContextPool:
    """The contexts of a model; only one thread at a time uses a context.

    A KeyboardInterrupt can occur at any bytecode, so threads acquire contexts only by `with` and a
    lock implemented in C. A run in flight holds no lock; the next user of its context finishes the
    run.
    """

    def __init__(self, contexts: Iterable[ModelContext]) -> None:
        """Create a pool of these contexts."""
        self.all = [*contexts]
        self._turns = itertools.cycle(self.all)

    def use(self, work: Callable[[ModelContext], _Result]) -> _Result:
        """Call `work` with a free context; wait for one if necessary.

        If no context is free, the pool first finishes the oldest run in flight. Raises
        CompiledModelError if this thread would wait for itself.
        """
        context = self._choose()
        context.check_entry()
        return context.use(work)

    def _choose(self) -> ModelContext:
        for context in self.all:
            if context.flight is None and not context.busy:
                return context
        flights = [(each.flight, each) for each in self.all if not each.busy]
        ages = [(flight.number, each) for flight, each in flights if flight is not None]
        if ages:
            return min(ages, key=itemgetter(0))[1]
        return next(self._turns)

    def use_all(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` while no run is executing or in flight. Raises as `use` does."""
        for context in self.all:
            context.check_entry()
        return _nested(self.all, work)


def _nested(contexts: Sequence[ModelContext], work: Callable[[], _Result]) -> _Result:
    if not contexts:
        return work()
    return contexts[0].use(lambda _: _nested(contexts[1:], work))


class Flight:
    """A submitted run, until its end."""

    def __init__(self, context: ModelContext, run: Run) -> None:
        """Refer to a run that was submitted on a context."""
        self._context = context
        self._run: Run | None = run
        self.number = next(_numbers)
        """The submission's number; later submissions have higher numbers."""
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether the run is known to have ended."""
        return self._run is None

    def is_done(self) -> bool:
        """Whether `end` would return immediately."""
        run = self._run
        return run is None or run.is_done()

    def end(self) -> None:
        """Wait for the end of the run, and record its error.

        Raises CompiledModelError if this thread would wait for itself.
        """
        if not self.over:
            self._context.check_entry()
            self._context.use(lambda _: None)

    def watch(self, end: Callable[[], None]) -> None:
        """Make a thread wait for the run and then call `end`."""
        self._context.watch(end)

    def finish(self) -> None:
        """Finish the run; the caller has acquired its context."""
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:
            self.error = error
        self._run = None  # its buffers may be released now
