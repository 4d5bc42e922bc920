"""GpuDelegate: the delegate that a user passes to the interpreter."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from litegpu import backends, config, progress
from litegpu.errors import (
    ForkedProcessError,
    InterpreterError,
    LitegpuError,
    ModelError,
    causes,
    lacks_threads,
    without_threads,
)
from litegpu.host.fork_safety import Living
from litegpu.options import GpuDelegateKeywords, GpuDelegateOptions, make_options
from litegpu.progress import OnProgress
from litegpu.runtime_abi.bridge import NativeDelegate
from litegpu.runtime_abi.file import ModelSource
from litegpu.runtime_abi.kernel_slots import stay_if_ending
from litegpu.wording import counted, printable

if TYPE_CHECKING:
    # Ops, kernels, passes and the engine are imported when the delegate meets a graph.
    from litegpu.delegation.called_shapes import GraphChecks
    from litegpu.delegation.partition_kernel import PartitionKernel
    from litegpu.delegation.partitioner import Selection
    from litegpu.delegation.profile import Profile
    from litegpu.delegation.report import DelegationReport, Partition
    from litegpu.graph import Graph
    from litegpu.graph.partition import PartitionChoice, Preview, Subset
    from litegpu.runtime_abi.kernel_slots import SlotKernel
    from litegpu.runtime_abi.subgraphs import Subgraphs

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger("litegpu")
_EARLY_IMPORTS = (
    *("delegation.called_shapes", "delegation.exactness_notes", "delegation.partition_kernel"),
    *("delegation.partitioner", "runtime_abi.cpu_nodes", "runtime_abi.reader"),
    *("runtime_abi.subgraphs", "ops.conv_2d", "ops.elementwise", "ops.reshape", "ops.softmax"),
)
"""Modules that most models need; a thread imports them while the driver starts."""


class GpuDelegate:
    """A delegate that runs the supported parts of a model on a GPU.

    Pass it to an interpreter:

        Interpreter("model.tflite", experimental_delegates=[GpuDelegate(precision="fp16")])

    `options` is a GpuDelegateOptions or a dict; keyword arguments set fields of these options.
    Several interpreters may use one delegate; `report` describes the interpreter that applied the
    delegate last. `model` is the path or the bytes of the interpreter's model file. Some runtimes
    do not expose the file in memory; with these, loops run on the GPU only if `model` is passed. If
    compilation takes longer than half a second, a separate thread calls `on_progress` with a
    litegpu.Progress ten times a second.

    `close()`, or the end of a `with` block, releases the delegate's device memory.

    Raises OptionsError for invalid options, UnsupportedDeviceError if no device matches them, and
    MissingDependencyError if the backend's package is not installed. An error after construction
    never stops the model: the affected nodes run on the CPU, and the delegate logs a warning.
    `error` is the cause until the failed step succeeds.
    """

    def __init__(
        self,
        options: GpuDelegateOptions | GpuDelegateKeywords | None = None,
        /,
        *,
        model: ModelSource | None = None,
        on_progress: OnProgress | None = None,
        **kwargs: Unpack[GpuDelegateKeywords],
    ) -> None:
        """Open the device."""
        config.show_debug_messages()
        self.options = make_options(options, kwargs)
        self.model = model
        """The file of the interpreter to which the delegate is applied next."""
        if unused := self.options.unused():
            _log.warning("%s", unused)
        self._cache = self.options.usable_cache_folder()
        self.precision = self.options.resolved_precision()
        wanted = (self.options.resolved_backend(), self.options.device)
        if backends.start_ahead(*wanted):
            # The driver takes longer than these imports, which are needed when a graph is met.
            for name in _EARLY_IMPORTS:
                import_module(f"litegpu.{name}")
        try:
            self._device = backends.select(*wanted)
        except Exception:
            stay_if_ending()
            raise
        if self.options.quick_start and not self._device.can_compile_fast():
            _log.info("quick_start has no effect: %s has no fast compiler.", self.device.title)
        self._may_fall_back = backends.is_free(*wanted)
        self.report: DelegationReport | None = None
        self.error: BaseException | None = None
        self._primary: int | None = None
        self._pending: dict[int, dict[tuple[int, ...], PartitionKernel]] = {}
        self._kernels: Living[PartitionKernel] = Living()
        """The kernels of all interpreters."""
        self._described: weakref.WeakKeyDictionary[PartitionKernel, Partition]
        self._described = weakref.WeakKeyDictionary()
        self._on_progress = progress.checked(on_progress)
        self._closed = False
        self._pid = os.getpid()
        self._applied = _Applied()
        self._native = NativeDelegate(self, self.device.backend)

    def __reduce__(
        self,
    ) -> tuple[type[GpuDelegate], tuple[GpuDelegateOptions], dict[str, ModelSource | None]]:
        """Pickle and copy as a new delegate with the same options."""
        return type(self), (self.options,), {"model": self.model}

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self.report is None:
            state = "not applied"
        else:
            state = f"{len(self.report.delegated_nodes)} of {self.report.total_nodes} nodes"
        return f"<GpuDelegate on {self.device.title}, {self.precision}: {state}>"

    def __enter__(self) -> GpuDelegate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all partitions. Interpreters keep their tensors, but can no longer invoke.

        The method waits for threads that are in an invoke. Repeated calls do nothing. Raises
        InterpreterError if this thread itself is in an invoke, for example in a signal handler.
        """
        self._native.close(_closed)
        self._closed = True

    @property
    def device(self) -> backends.DeviceInfo:
        """The device on which the delegate runs."""
        return self._device.info

    def _get_native_delegate_pointer(self) -> int:
        """Return the address of the C struct; an interpreter reads it once, before applying it.

        Raises InterpreterError if the delegate is closed, and ForkedProcessError if another process
        created the delegate.
        """
        if self._closed:
            raise _closed()
        if self._pid != os.getpid():
            raise ForkedProcessError(
                f"This delegate was created for {self.device.title} before the process was "
                "forked, and works only in the parent process. Start workers with "
                "multiprocessing.get_context('spawn'), and create the delegate in the worker."
            )
        self._applied.primary = None
        return self._native.address

    def _address_for(self, context: int) -> int:
        """Return the address of the C struct for this thread to apply the delegate to a graph.

        Callers other than Python's interpreter use this method. The delegate assumes a new model,
        unless the last model has this graph and the delegate is not yet applied to the graph.
        Raises the errors of `_get_native_delegate_pointer`.
        """
        primary = self._applied.primary
        if primary not in (None, context) and self._applied.subgraphs.awaits(context):
            return self._native.address
        return self._get_native_delegate_pointer()

    def _apply(self, context: int, preview: Preview) -> list[list[int]]:
        """Choose and compile the partitions of an interpreter's graph."""
        try:
            return self._apply_to(context, preview)
        except BaseException as error:
            stay_if_ending()
            self.report = self._applied.report
            if lacks_threads(error):
                raise without_threads(error) from error
            raise

    def _apply_to(self, context: int, preview: Preview) -> list[list[int]]:
        from litegpu.delegation.exactness_notes import exactness_notes
        from litegpu.delegation.partitioner import Selection
        from litegpu.graph.partition import exclusive_io
        from litegpu.runtime_abi.reader import thread_count
        from litegpu.runtime_abi.subgraphs import Runs

        applied = self._applied
        if applied.primary is None:
            self._primary = applied.primary = context
            self.error = applied.report = None
            self._read(context)
        if applied.subgraphs.is_unrolled(context):
            applied.checks.done(context)
            return []
        support = applied.checks.of(context)
        runs = applied.subgraphs.runs(context)
        selection = Selection(
            *(support, self.options, self.device, thread_count(context), preview, runs),
            requested=not self._may_fall_back,
        )
        with progress.watching(self._on_progress):
            choice, kernels, notes = self._compile_chosen(context, selection)
        if self.options.quantized_mode() == "exact":
            notes += exactness_notes(support.graph, choice)
        self._pending[context] = {subset.nodes: kernel for subset, kernel in kernels}
        estimate = selection.costs.estimate
        parts = [kernel.describe(subset.nodes, estimate(subset)) for subset, kernel in kernels]
        if context == applied.primary:
            for subset, kernel in kernels:
                if selection.batched.isdisjoint(subset.nodes):
                    kernel.bindable = exclusive_io(support.graph, subset)
        self._described.update(zip((kernel for _, kernel in kernels), parts, strict=True))
        report = self._make_report(selection, choice, kernels, parts, notes)
        report = replace(report, graph=applied.subgraphs.numbers.get(context, 0))
        self._announce(report, runs is Runs.INVOKED)
        self._publish(report, primary=context == applied.primary)
        applied.checks.done(context)
        nodes = [n for subset, _ in kernels for n in subset.nodes]
        applied.subgraphs.unroll(context, nodes)
        loops = [[n] for n in nodes if n in selection.batched]
        return [*loops, [n for n in nodes if n not in selection.batched]]

    def _read(self, context: int) -> None:
        """Read all graphs of a model, before any of them is changed."""
        from litegpu.delegation.called_shapes import GraphChecks
        from litegpu.delegation.partitioner import slow_loops
        from litegpu.runtime_abi.reader import thread_count
        from litegpu.runtime_abi.subgraphs import Subgraphs

        self._applied.subgraphs = Subgraphs(context)
        self._applied.checks = GraphChecks(
            *(self._applied.subgraphs, self.options.quantized_mode()),
            lambda c, found: slow_loops(found, self.options, self.device, thread_count(c)),
            self.options.takes_all_nodes(),
        )
        try:
            self._applied.subgraphs.read(self.model)
        except ModelError as error:
            self._fail(error)
            _log.warning("No loop will run on the GPU: %s", error)

    def _compile_chosen(
        self, context: int, selection: Selection
    ) -> tuple[PartitionChoice, list[tuple[Subset, PartitionKernel]], list[str]]:
        """Compile the partitions; if the device rejects some, partition without their nodes."""
        from litegpu.graph.partition import extract
        from litegpu.ops.variables import VARIABLES

        graph = selection.support.graph
        notes: list[str] = []
        while True:
            choice = selection.choose()
            kernels: list[tuple[Subset, PartitionKernel]] = []
            for number, subset in enumerate(choice.delegated, 1):
                progress.at_partition(number, len(choice.delegated))
                try:
                    loops = selection.batched.intersection(subset.nodes)
                    passes = sum(map(selection.costs.passes, loops))  # there is one at most
                    alone = len(subset.nodes) == len(graph.nodes) and not loops
                    part = extract(selection.support.graph_for(subset.nodes), subset)
                    kernels.append((subset, self._compile(part, alone, context, passes)))
                except LitegpuError as error:
                    if any(node.op in VARIABLES for node in part.nodes):
                        self._applied.checks.leave_variables(error)
                        raise
                    self._fail(error)
                    notes.append(f"{counted(len(subset.nodes), 'node')} left to the CPU: {error}")
                    _log.warning("%s", notes[-1])
                    selection.give_up(subset.nodes)
                    break
            else:
                return choice, kernels, notes
            for _, kernel in kernels:
                kernel.close()

    def _compile(self, graph: Graph, alone: bool, context: int, passes: int) -> PartitionKernel:
        """Compile a partition; if an unrequested device fails, compile on another API's device."""
        while True:
            try:
                return self._compile_here(graph, alone, context, passes)
            except LitegpuError as error:
                if not self._may_fall_back:
                    raise
                self._device = backends.fall_back(self.device, error)

    def _compile_here(
        self, graph: Graph, alone: bool, context: int, passes: int
    ) -> PartitionKernel:
        """Compile a partition, or batches of `passes` iterations of a loop."""
        from litegpu.delegation.loop_kernel import LoopKernel
        from litegpu.delegation.partition_kernel import PartitionKernel
        from litegpu.ops.variables import VARIABLES
        from litegpu.runtime_abi.cpu_nodes import CpuNodes

        shared = any(node.op in VARIABLES for node in graph.nodes)
        options = self.options
        kernel = (partial(LoopKernel, passes) if passes else PartitionKernel)(
            *(graph, self._device, options.numeric_policy(), self._cache, alone),
            tuning=options.tuning(),
            timeout=options.timeout_seconds(),
            on_progress=self._on_progress,
            fast_compile=options.compiles_fast_first(),
            # The CPU's kernels would look up the variables in the runtime.
            cpu=None if shared else CpuNodes(context, graph.nodes),
            variables=self._applied.checks.variables() if shared else None,
        )
        self._device = kernel.device
        return kernel

    def wait_for_best_code(self, timeout: float | None = None) -> bool:
        """Wait until background compilation has finished, for at most `timeout` seconds.

        With `quick_start`, the delegate compiles optimized kernels in the background. Returns
        whether the next invoke of every interpreter runs optimized kernels. The result is also
        False if their compilation failed.
        """
        ends = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if ends is None else max(ends - time.monotonic(), 0.0)

        return all([kernel.wait_for_best_code(left()) for kernel in self._kernels])

    def profile(
        self,
        interpreter: Any = None,
        *,
        signature: str | None = None,
        repeats: int = 20,
        peaks: bool = True,
    ) -> Profile:
        """Measure the time of each kernel of an interpreter (default: the last interpreter).

        The method measures the kernels that a run of the main graph may run, or those of the graph
        of a `signature`. With an `interpreter`, the method also times complete runs on the
        graph's current inputs. Single partitions run on random data if possible. All times are
        medians of `repeats` runs. With `peaks`, the method also measures the device's peak rates,
        from which it computes each kernel's minimum time. No other thread may invoke during the
        measurement.

        Raises InterpreterError if the delegate is not applied yet, or not to this interpreter, and
        for a `signature` without its interpreter. Raises ModelError, with the reasons, if no node
        runs on the GPU, for an unknown signature, and for inputs that the model cannot run on.
        Raises OptionsError for `repeats` below 1, and ExecutionError if the device fails.
        """
        from litegpu.delegation.interpreter_lookup import kernels_of
        from litegpu.delegation.profile import (
            nothing_to_profile,
            of_graph,
            signature_target,
            take_profile,
        )

        if interpreter is None:
            kernels = self._living()
        else:
            kernels = kernels_of(interpreter, self, self._kernels, "profile()")
        self.wait_for_best_code()
        if not kernels:
            raise nothing_to_profile(self.report, self.error) from self.error
        target, graph = interpreter, 0
        if signature is not None:
            target = signature_target(interpreter, signature)
            graph = target.subgraph
        return take_profile(
            *(self._device, self.precision, of_graph(kernels, graph), target),
            repeats=repeats,
            peaks=peaks,
        )

    def bind_buffer(
        self, interpreter: Any, tensor_index: int, buffer: Any, stream: Any = None
    ) -> None:
        """Bind a buffer to an input or output of the model, starting with the next invoke.

        Invokes then neither read nor write the interpreter's tensor. `buffer` is a TensorBuffer, or
        an array that TensorBuffer.of accepts; None unbinds the tensor. `stream` is a CUDA stream:
        each invoke starts after all work that is already in the stream.

        Raises InterpreterError if the interpreter does not use this delegate. Raises BindingError
        for a tensor that is not an input or output of the model, or that the CPU reads or writes.
        Raises BindingError also for a buffer of another size or device, and for a `stream` on a
        device without streams.
        """
        from litegpu.delegation.interpreter_lookup import kernels_of
        from litegpu.delegation.tensor_binding import bind_tensor

        kernels = kernels_of(interpreter, self, self._kernels, "bind_buffer()")
        bind_tensor(interpreter, kernels, tensor_index, buffer, stream)

    def _living(self) -> list[PartitionKernel]:
        """Return the kernels of the interpreter that applied the delegate last."""
        return [kernel for kernel in self._kernels if kernel.home == self._primary]

    def _whole(self, number: int = 0) -> PartitionKernel | None:
        """Return the kernel that runs all of graph `number` of the last model; None without one."""
        kernels = [kernel for kernel in self._living() if kernel.number == number]
        return kernels[0] if len(kernels) == 1 and kernels[0].alone else None

    def _take_kernel(self, context: int, subset: Subset) -> PartitionKernel:
        """Return the kernel compiled for a subset, and transfer its ownership to the caller."""
        kernel = self._pending[context].pop(subset.nodes)
        kernel.number = self._applied.subgraphs.numbers.get(context)
        kernel.runners = self._applied.subgraphs.runners(context)
        kernel.home = self._applied.primary or context
        self._kernels.add(kernel)
        kernel.changed = weakref.WeakMethod(self._changed)
        return kernel

    def _release_untaken(self, context: int) -> None:
        """Release the compiled kernels that an interpreter did not use."""
        for kernel in self._pending.pop(context, {}).values():
            kernel.close()

    def _fail(self, error: BaseException) -> None:
        """Store an error that could not be raised through C."""
        self.error = error
        # The frames of its traceback reference weights and device memory.
        for each in causes(error):
            traceback.clear_frames(each.__traceback__)

    def _prepared(self, kernel: SlotKernel, error: BaseException | None) -> None:
        """Clear an error from which a kernel has recovered, and update its part of the report."""
        from litegpu.delegation.partition_kernel import PartitionKernel

        if error is not None and error is self.error:
            self.error = None
        if isinstance(kernel, PartitionKernel):
            self._changed(kernel)

    def _changed(self, kernel: PartitionKernel) -> None:
        """Update a kernel's part of the report; if the current device is lost, use the kernel's."""
        own = self._applied.report is self.report
        if self._device.lost:
            self._device = kernel.device
            if self.report is not None:
                info = self.device
                self.report = replace(self.report, backend=info.backend, device=info.name)
        if kernel in self._described:
            before = self._described[kernel]
            now = kernel.describe(before.nodes, before.estimate)
            if self.report is not None and now != before:
                self._described[kernel] = now
                self.report = self.report.with_partition(before, now)
        if own:
            self._applied.report = self.report

    def _make_report(
        self,
        selection: Selection,
        choice: PartitionChoice,
        kernels: Sequence[tuple[Subset, PartitionKernel]],
        partitions: Sequence[Partition],
        notes: Sequence[str],
    ) -> DelegationReport:
        from litegpu.delegation.advice import advise
        from litegpu.delegation.partitioner import quantized_support
        from litegpu.delegation.report import DelegationReport, composites, rejected_nodes

        graph, reasons = selection.support.graph, selection.support.reasons
        mode = self.options.quantized_mode()
        quantized = quantized_support(graph, selection.support, mode)
        return DelegationReport(
            backend=self.device.backend,
            device=self.device.name,
            precision=self.precision,
            total_nodes=len(graph.nodes),
            ops={n.index: n.op for n in graph.nodes},
            rejected=rejected_nodes(graph, reasons),
            partitions=tuple(partitions),
            left_out=selection.left_out(choice),
            split=selection.costs.split(choice.delegated),
            advice=advise(
                *(selection, choice, [kernel.compiled for _, kernel in kernels]),
                *(self.options.numeric_policy(), quantized[1:] if mode else ()),
            ),
            notes=tuple(notes),
            quantized=quantized,
            composites=composites(graph),
        )

    def _publish(self, report: DelegationReport, primary: bool) -> None:
        """Set the delegate's `report`, or add a report on a subgraph to it."""
        before = self._applied.report
        if before is not None and not primary:
            report = replace(before, subgraphs=(*before.subgraphs, report))
        self.report = self._applied.report = report

    def _announce(self, report: DelegationReport, invoked: bool = True) -> None:
        """Log which nodes the CPU runs; unless `invoked`, only those the GPU cannot run."""
        from litegpu.runtime_abi.opcodes import code_of, known_name

        if config.debug_level() >= 1:
            _log.info("%s", report)
        if report.rejected:
            for code in sorted({code_of(node.op) for node in report.rejected}):
                _log.warning("WARNING: op code #%d cannot be handled by this delegate.", code)
            reasons = {f"{known_name(node.op)}: {node.reason}" for node in report.rejected}
            _log.warning(
                "Following operations are not supported by GPU delegate:\n%s\n%s",
                *("\n".join(sorted(map(printable, reasons))), report.summary()),
            )
        if not report.partitions and (invoked or report.rejected):
            for line in report.left_lines():
                _log.warning("Left to the CPU: %s", line)


class _Applied(threading.local):
    """The interpreter to which a thread is applying a delegate."""

    primary: int | None = None
    report: DelegationReport | None = None
    subgraphs: Subgraphs
    checks: GraphChecks


def _closed() -> InterpreterError:
    return InterpreterError(
        "The delegate was closed. Create a new GpuDelegate and a new interpreter."
    )
