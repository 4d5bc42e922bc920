"""Runs one partition in the runtime: tracks its shapes, binds its tensors, calls the engine."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from litegpu import backends, progress
from litegpu.backends.base import Device
from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind, check_device
from litegpu.backends.execution import without_streams
from litegpu.cache.improving import wait_for
from litegpu.cache.partitions import PartitionRequest, find_or_compile
from litegpu.cache.store import CacheFolder
from litegpu.delegation.cost_model import Estimate
from litegpu.delegation.cpu_fallback import CpuFallback
from litegpu.delegation.report import Partition
from litegpu.delegation.variables import Variables
from litegpu.engine.choices import Tuning
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.peaks import Peaks
from litegpu.engine.profile import PartitionProfile, profile_partition
from litegpu.engine.tuning import Tuner
from litegpu.errors import (
    BindingError,
    DeviceLostError,
    InterpreterError,
    LitegpuError,
    ModelError,
)
from litegpu.graph import DType, Graph
from litegpu.graph.partition import sources, with_shapes
from litegpu.host.thread_worker import WorkerEndedError
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.common.support import check_support
from litegpu.ops.variables import CALL_ONCE, Name, with_variables
from litegpu.progress import OnProgress
from litegpu.runtime_abi import bridge, structs
from litegpu.runtime_abi.cpu_nodes import CpuNodes
from litegpu.runtime_abi.enums import DTYPES
from litegpu.runtime_abi.reader import tensor_at
from litegpu.runtime_abi.zero_copy import ZeroCopyBinding
from litegpu.wording import shown_names

_log = logging.getLogger("litegpu")

_TENSORS = structs.TfLiteContext.tensors.offset  # type: ignore[union-attr]
_DATA = structs.TfLiteTensor.data.offset  # type: ignore[union-attr]
_TENSOR_SIZE = ctypes.sizeof(structs.TfLiteTensor)

Run = Callable[[], object]
"""A function that copies inputs in, runs the partition and copies outputs out."""


class PartitionKernel:
    """A compiled partition bound to the tensors of an interpreter."""

    def __init__(
        self,
        graph: Graph,
        device: Device,
        policy: NumericPolicy,
        cache: CacheFolder | None,
        alone: bool = False,
        tuning: Tuning = Tuning.ESTIMATED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        fast_compile: bool = False,
        cpu: CpuNodes | None = None,
        variables: Variables | None = None,
    ) -> None:
        """Compile for the current shapes of the graph, or load the result from `cache`.

        `alone` is true if the partition is the whole model. `tuning` selects kernel variants, for
        these shapes and for later ones. `timeout` is the maximum duration of a run in seconds, None
        for no limit. The kernel calls `on_progress` during this and all later compilations.
        `fast_compile` permits quickly compiled kernels until optimized kernels are ready. `cpu`
        runs the partition for shapes that the GPU does not support. `variables` contains the
        interpreter's variables, if the partition uses any. After a loss of the device, the kernel
        runs on the reopened device or on a device of another API. Raises CompilationError or
        DeviceMemoryError.
        """
        self._variables, self._names = variables, dict[int, Name]()
        self._once = [node for node in graph.nodes if node.op == CALL_ONCE]
        if variables is not None:
            graph, self._names = with_variables(graph, variables.values)
        self.graph = self._compiled_graph = graph
        self._device = device
        self._policy = policy
        self._cache = cache
        self._timeout = timeout
        self._on_progress = on_progress
        self._fast_compile = fast_compile
        self._tuning = tuning
        self._tuner = self._tuner_of(device)
        self._precise: frozenset[int] = frozenset()
        self.kept_float32: tuple[str, ...] = ()
        """Names of the tensors that are float32, despite the policy, because float16 overflowed."""
        self.changed: Callable[[], Callable[[PartitionKernel], None] | None] = _nobody
        """Returns the callback for changes of this kernel; None if the delegate was deleted."""
        self._buffers: dict[int, Buffer] = {}
        self._stream: int | None = None
        self.compiled = self._compile(graph)
        self._tensors = 0
        self._assigned: tuple[Name, ...] = ()
        self._run: Run = _skip
        """The function that copies inputs, runs, and copies outputs; set by the first invoke."""
        self.alone = alone
        """Whether the partition is the whole graph."""
        self.number: int | None = None
        """The number of the partition's graph in the model; None if unknown."""
        self.runners = frozenset[int]()
        """The numbers of the graphs whose runs may run the partition: its own and its callers."""
        self.home = 0
        """The context of the interpreter's main graph, 0 if there is none."""
        self.bindable: frozenset[int] = frozenset()
        """The model's inputs and outputs that only this partition reads or writes."""
        self._recompiling = threading.Lock()
        self._context = 0
        self._zero_copy = ZeroCopyBinding()
        self._constants: list[tuple[ctypes.c_void_p, int, int]] = []
        self._states: list[tuple[ctypes.c_void_p, int]] = []
        self._fallback = CpuFallback(cpu)

    def _tuner_of(self, device: Device) -> Tuner:
        return Tuner(device.info, self._cache.kernels if self._cache else None, self._tuning)

    def _compile(self, graph: Graph) -> CompiledPartition:
        """Return the partition after a first run; if the device is lost, on another device.

        Raises DeviceLostError if no other device works, and what `_compile_here` does.
        """
        while True:
            try:
                return self._compile_here(graph)
            except DeviceLostError as error:
                self._leave(error)

    def _leave(self, error: DeviceLostError) -> None:
        """Reopen the lost device, or change to another device. Raises `error` if no device works.

        Raises `error` also if the device loss invalidated buffers that are bound to tensors.
        """
        self._check_bound(error)
        lost = self._device
        # The thread of a device also ends when the program exits.
        if not lost.lost or isinstance(error.__cause__, WorkerEndedError):
            raise error
        device = backends.after_loss(lost)
        _log.warning("%s Continuing with %s.", error.reason, device.info.title)
        self._device, self._tuner = device, self._tuner_of(device)

    def _compile_here(self, graph: Graph) -> CompiledPartition:
        """Return the compiled partition after a first run, because drivers compile lazily.

        The partition is cached after its first run, so that the cache entry includes code compiled
        during the run.
        """
        tuned, precise = self._tuner.facts(), self._precise
        wanted = PartitionRequest(
            graph, self._device, self._policy, tuned, precise, self._fast_compile
        )
        with progress.watching(self._on_progress):
            progress.at("load")
            compiled = find_or_compile(wanted, self._cache, lambda: self._compile_graph(graph))
        compiled.context.timeout = self._timeout
        for line in compiled.facts.replaced:
            if self._device.failures.is_first(line):
                _log.warning("A kernel failed on %s; %s", self._device.info.title, line)
        return compiled

    def _compile_graph(self, graph: Graph) -> CompiledPartition:
        from litegpu.engine.partition import compile_partition  # imports all passes and kernels

        progress.at("choose")
        compiled = compile_partition(
            graph,
            self._device,
            self._policy,
            cache_dir=self._cache.kernels if self._cache else None,
            tuner=self._tuner,
            precise=self._precise,
            fast_compile=self._fast_compile,
        )
        progress.at("run")
        try:
            compiled.warm_up(self._device)
        except BaseException:
            compiled.close()
            raise
        return compiled

    def shape(self, context: int) -> None:
        """Set the shapes of the outputs, inferred from the shapes of the inputs.

        Raises ModelError if neither the GPU nor the CPU can run a node with the inputs' shapes.
        """
        tensors = structs.TfLiteContext.from_address(context).tensors or 0
        shapes = {v: bridge.tensor_shape(tensors, v) for v in self._sources()}
        self._fallback.reason = ""
        if any(self.graph.values[v].shape != shape for v, shape in shapes.items()):
            try:
                self.graph = _supported(with_shapes(self.graph, shapes.items()), self._policy)
            except ModelError as error:
                return self._fallback.shape(context, self.graph, error)
        for v in self.graph.outputs:
            self._fallback.resize(context, v, self.graph.values[v].shape)

    @property
    def on_cpu(self) -> str:
        """Why the CPU runs the partition for the current shapes; empty if the GPU runs it."""
        return self._fallback.reason

    def _sources(self) -> list[int]:
        """Return the tensors that are computed outside of the partition."""
        return [v for v in sources(self.graph) if v not in self._names]

    def _check_unbound(self) -> None:
        """Raise BindingError if buffers are bound, which the CPU neither reads nor writes."""
        if self._buffers:
            raise BindingError(
                "The CPU runs these nodes for the present shapes, and reads and writes no bound "
                f"buffers. {self.on_cpu} Bind None."
            )

    def prepare(self, context: int) -> None:
        """Recompile if shapes have changed, and set the shapes of the outputs.

        Raises ModelError if a node does not support the new shapes, or if an input's dtype differs
        from the file's.
        """
        self._zero_copy.unbind(context)
        self._context, self._tensors = context, 0
        self._check_types(structs.TfLiteContext.from_address(context).tensors or 0)
        self.shape(context)
        if self.graph is not self._compiled_graph and not self.on_cpu:
            compiled = self._compile(self.graph)
            self.compiled.close()
            self.compiled, self._compiled_graph = compiled, self.graph

    def invoke(self, context: int) -> None:
        """Run on the tensors' current data.

        If the device is lost, the method recompiles the partition and runs it on the reopened
        device or another device. Raises ExecutionError for any other failure of the device.
        """
        while True:
            device = self._device
            was_lost = device.lost
            try:
                return self._invoke(context)
            except DeviceLostError as error:
                if not was_lost:
                    self.compiled.blame(error, device)
                before = self.compiled
                self._move(context, error, CompiledPartition.close)
                self._check_states(before, error)

    def _check_bound(self, error: DeviceLostError) -> None:
        """Raise `error` if the device loss invalidated buffers that are bound to tensors."""
        buffers = self._buffers.values()
        if self._stream is not None or any(b.kind is not MemoryKind.HOST for b in buffers):
            raise error

    def _move(
        self, context: int, error: DeviceLostError, release: Callable[[CompiledPartition], None]
    ) -> None:
        """Recompile on a working device, after calling `release` on the old compiled partition.

        The next run repeats the failed run with the same inputs. Raises DeviceLostError if no
        device works, or if bound buffers were lost.
        """
        self._check_bound(error)
        self._zero_copy.unbind(context, keep=True)
        self._tensors, self._run = 0, _skip
        lost = self._device
        with contextlib.suppress(LitegpuError):  # the driver of a lost device may reject it
            release(self.compiled)
        try:
            self._leave(error)
            self.compiled = self._compile(self.graph)
        except BaseException:
            self._device = lost  # the next invoke tries again
            raise
        if (changed := self.changed()) is not None:
            changed(self)

    def _check_states(self, before: CompiledPartition, error: DeviceLostError) -> None:
        """Raise DeviceLostError if states were lost with the device."""
        if self._variables is not None:
            self._variables.forget()
            names = shown_names([name for _, name in self._names.values()])
            raise DeviceLostError(
                f"{error.reason} The variables {names} were lost with the device.",
                "Variables have their initial values again. The next invoke runs on "
                f"{self._device.info.title}.",
            ) from error
        if before.states:
            names = shown_names([self.graph.values[v].name for v in before.states])
            raise DeviceLostError(
                f"{error.reason} The states {names} were lost with the device.",
                f"Call reset_all_variables(). The next invoke runs on {self._device.info.title}.",
            ) from error

    def _invoke(self, context: int) -> None:
        if self.on_cpu:
            self._check_unbound()
            return self._fallback.invoke(context, self.graph)
        tensors = ctypes.c_size_t.from_address(context + _TENSORS).value
        if tensors != self._tensors:
            self._check_sizes(tensors)
            self._bind_zero_copy(context)
            self._bind(tensors)
        if self.compiled.watch is None:
            self._run()
        else:
            self._run_watched(context)
        if self._variables is not None:
            self._variables.turn(self._assigned)
        for target, address, size in self._constants:
            ctypes.memmove(target, address, size)

    def _run_watched(self, context: int) -> None:
        """Run; after a float16 overflow, run again from the same inputs and states."""
        states = [(p, ctypes.string_at(p.value or 0, size)) for p, size in self._states]
        self._run()
        again = False
        while self.compiled.watch is not None and (lost := self.compiled.watch.lost()):
            for pointer, data in states:
                ctypes.memmove(pointer.value or 0, data, len(data))
            self.promote_to_fp32(lost, again)
            self._bind_zero_copy(context)
            self._bind(ctypes.c_size_t.from_address(context + _TENSORS).value)
            self._run()
            again = True

    def promote_once(self, ran: CompiledPartition, lost: Mapping[int, str], again: bool) -> None:
        """Call `promote_to_fp32` after a run of `ran`, unless another thread already did.

        The method does not close the context of `ran`: another thread may be running in that
        context, and will close it.
        """
        with self._recompiling:
            if self.compiled is ran:
                self._promote_to_fp32(lost, again).disown()

    def move_together(
        self, ran: CompiledPartition | None, error: DeviceLostError, *, blame: bool
    ) -> None:
        """Recover from a device loss in a run of `ran` as `invoke` does; no-op if already done.

        `blame` is true if this run may have caused the loss. The method does not close the context
        of `ran`. Raises the errors of `invoke`.
        """
        with self._recompiling:
            if self.compiled is ran:
                if blame:
                    self.compiled.blame(error, self._device)
                self._move(self._context, error, CompiledPartition.disown)

    def promote_to_fp32(self, lost: Mapping[int, str], again: bool) -> None:
        """Recompile with the values in `lost` as float32; if `again`, also all dependent values.

        An overflow hides overflows in dependent values, so a second overflow in a run promotes
        these values, too.
        """
        self._promote_to_fp32(lost, again).close()

    def _promote_to_fp32(self, lost: Mapping[int, str], again: bool) -> CompiledPartition:
        """Promote as `promote_to_fp32` does; return the previous compiled partition."""
        before, facts = self._precise, self.compiled.facts
        wide = facts.written_after(lost) if again else lost
        self._precise = before.union(*map(facts.allocated_with, wide))
        try:
            compiled = self._compile(self.graph)
        except BaseException:
            self._precise = before
            raise
        self._zero_copy.unbind(self._context, keep=True)
        self._tensors, old, self.compiled = 0, self.compiled, compiled
        names = {v: facts.values[v].name for v in wide}
        self.kept_float32 = tuple(dict.fromkeys((*self.kept_float32, *names.values())))
        for why in sorted(set(lost.values())):
            names_of = list(dict.fromkeys(names[v] for v in lost if lost[v] == why))
            _log.warning(
                "float16 overflow in %s: %s. These values are stored as float32 from now on, and "
                "the invoke is repeated.",
                *(shown_names(names_of), why),
            )
        if (changed := self.changed()) is not None:
            changed(self)
        return old

    def _check_types(self, tensors: int) -> None:
        """Raise ModelError if a CPU kernel has changed a tensor's type from the file's."""
        for v in self._sources():
            stated = self.graph.values[v].dtype
            found = DTYPES.get(tensor_at(tensors, v).type, DType.OTHER)
            if found is not stated:
                raise ModelError(
                    f"Tensor {v} is {found.name} in the interpreter, and {stated.name} in the "
                    "model's file. Use the interpreter without the delegate."
                )

    def _check_sizes(self, tensors: int) -> None:
        """Raise InterpreterError if a tensor's size differs from the bytes to copy."""
        for v, size in self._sizes().items():
            if v in self._names:
                continue
            found = tensor_at(tensors, v).bytes
            if found != size:
                raise InterpreterError(
                    f"Tensor {v} has {found} bytes in the interpreter, and {size} in the compiled "
                    "partition. Call allocate_tensors() again, or use no delegate."
                )

    def _sizes(self) -> dict[int, int]:
        """Return the size in bytes of each tensor that is copied."""
        compiled = self.compiled
        return {v: a.nbytes for v, a in compiled.constants.items()} | dict(compiled.sizes())

    def _bind_zero_copy(self, context: int) -> None:
        """Move the tensors to memory that the device accesses directly, if it supports that."""
        compiled = self.compiled
        pinned = compiled.context.pinned()
        if pinned is not None and self.alone:
            sizes = compiled.sizes()
            # The last buffer of the inputs and of the outputs belongs to the range watch.
            ins = pinned.inputs[: len(compiled.inputs)]
            outs = pinned.outputs[: len(compiled.outputs)]
            free = [
                (v, buffer.address, size)
                for (v, size), buffer in zip(sizes, (*ins, *outs), strict=True)
                if isinstance(buffer, HostBuffer) and v not in {*self._buffers, *self._names}
            ]
            indices, memory, nbytes = ([each[place] for each in free] for place in range(3))
            self._zero_copy.bind(context, indices, memory, nbytes)

    def _bind(self, tensors: int) -> None:
        """Look up the fields with tensor addresses; the runtime may have moved its tensor table."""
        data = partial(data_field, tensors)
        compiled, sizes = self.compiled, dict(self.compiled.sizes())

        def end(v: int) -> Buffer:
            return self._bound_buffer(v, sizes[v]) or HostBuffer(data(v), sizes[v])

        def run(present: tuple[Buffer, ...] = (), following: tuple[Buffer, ...] = ()) -> Run:
            reads = dict(zip(read, present, strict=True))
            writes = dict(zip(written, following, strict=True))
            ins = [reads.get(v) or end(v) for v in compiled.inputs]
            outs = [writes.get(v) or end(v) for v in compiled.outputs]
            return compiled.context.bind_cached(compiled.watched(ins, outs), self._stream).run

        read = [v for v in compiled.inputs if v in self._names]
        written = [v for v in compiled.outputs if v in self._names]
        self._assigned = tuple(self._names[v] for v in written)
        if self._variables is None:
            self._run = run()
        else:
            self._run = self._with_variables(self._variables, [self._names[v] for v in read], run)
        states = set(compiled.states) - self._names.keys()
        self._states = [(data(v), size) for v, size in sizes.items() if v in states]
        for v, array in compiled.constants.items():
            if (buffer := self._bound_buffer(v, array.nbytes)) is not None:
                buffer.write(array)
        self._constants = [
            (data(v), array.ctypes.data, array.nbytes)
            for v, array in compiled.constants.items()
            if v not in self._buffers
        ]
        self._tensors = tensors

    def _with_variables(
        self, variables: Variables, read: Sequence[Name], run: Callable[..., Run]
    ) -> Run:
        """Return a run that, at each call, uses the current buffers of the variables."""
        runs: dict[tuple[Buffer, ...], Run] = {}
        assigned, device = self._assigned, self._device

        def run_present() -> None:
            variables.start(self._once, device)
            present = tuple(variables.present(name, device) for name in read)
            following = tuple(variables.following(name, device) for name in assigned)
            key = (*present, *following)
            if key not in runs:
                runs[key] = run(present, following)
            runs[key]()

        return run_present

    def bind_buffer(self, v: int, buffer: Buffer | None, stream: int | None) -> None:
        """Use a buffer instead of a tensor as of the next invoke; None restores the tensor.

        `v` is one of `bindable`. Each invoke starts after all work that is already in the CUDA
        `stream`. Raises BindingError for a buffer of another device, for a state, and for a stream
        on a device without streams.
        """
        if v in self.compiled.states:
            raise BindingError(
                f"Tensor {v} is a state, which the interpreter preserves between invokes. Only "
                "inputs and outputs can be bound."
            )
        if stream is not None and not self.compiled.context.has_streams:
            raise without_streams()
        if buffer is None:
            self._buffers.pop(v, None)
        else:
            check_device(buffer, self._device, f"tensor {v}")
            self._buffers[v] = buffer
        self._zero_copy.unbind(self._context, keep=True)
        self._stream, self._tensors = stream, 0

    def _bound_buffer(self, v: int, size: int) -> Buffer | None:
        """Return the buffer that is bound to a tensor. Raises BindingError for another size."""
        buffer = self._buffers.get(v)
        if buffer is not None and buffer.nbytes != size:
            raise BindingError(
                f"Tensor {v} has {size} bytes now, but its bound buffer has {buffer.nbytes}. Bind "
                "another buffer, or None."
            )
        return buffer

    def wait_for_best_code(self, seconds: float | None) -> bool:
        """Wait while optimized code is compiled; return whether the compilation has ended."""
        return wait_for(self.compiled.executable, seconds)

    def profile(self, repeats: int, peaks: Peaks | None) -> PartitionProfile:
        """Measure the partition alone. Raises ExecutionError if the device fails."""
        ops = {node.index: node.op for node in self.graph.nodes}
        found = profile_partition(self.compiled, ops, repeats, peaks, zero_copy=self.alone)
        return replace(found, graph=self.number or 0)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Skip the partition in invokes, within a `with` block, to time the rest of the invoke."""
        run, self._run = self._run, _skip
        try:
            yield
        finally:
            self._run = run

    def give_back(self, context: int) -> None:
        """Move the tensors and their contents back to the runtime's memory."""
        self._zero_copy.unbind(context, keep=True)

    @property
    def device(self) -> Device:
        """The device on which the partition runs."""
        return self._device

    def describe(self, nodes: tuple[int, ...], estimate: Estimate | None) -> Partition:
        """Return the report's entry for the partition of these nodes."""
        facts, program, values = self.compiled.facts, self.compiled.program, self.graph.values
        return Partition(
            nodes=nodes,
            kernels=len(facts.launches),
            arena_bytes=program.memory_bytes,
            lower_bound_bytes=facts.lower_bound,
            constant_bytes=program.constant_bytes,
            inputs=tuple(values[v].name for v in self.graph.inputs if v not in self._names),
            outputs=tuple(values[v].name for v in self.graph.outputs),
            estimate=estimate,
            kept_float32=self.kept_float32,
            replaced=facts.replaced,
            on_cpu=self.on_cpu,
        )

    def close(self, context: int = 0) -> None:
        """Release all device memory; `context` is the context of the bound tensors."""
        self.home = 0  # the interpreter may be deleted now
        self._zero_copy.unbind(context)
        self.compiled.close()
        self._fallback.close()


def data_field(tensors: int, v: int) -> ctypes.c_void_p:
    """Return the field that holds the address of a tensor's data, in the runtime's tensor table."""
    return ctypes.c_void_p.from_address(tensors + v * _TENSOR_SIZE + _DATA)


def _supported(graph: Graph, policy: NumericPolicy) -> Graph:
    """Return the graph with shapes inferred from the shapes of its inputs."""
    support = check_support(graph, policy.quantized)
    if support.reasons:
        index, reason = next(iter(support.reasons.items()))
        shapes = {graph.values[v].name: list(graph.values[v].shape) for v in graph.inputs}
        raise ModelError(
            f"Node {index} cannot run with the input shapes {shapes}: {reason} "
            "Use other shapes, or the interpreter without the delegate."
        )
    return support.graph


def _nobody() -> None:
    """Return None: the kernel has no callback."""


def _skip() -> None:
    """Run nothing."""
