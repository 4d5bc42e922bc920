"""Runs a partition that is a whole model on buffers, without its interpreter."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind
from litegpu.backends.execution import Event, Submission
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.engine.compiled import CompiledPartition
from litegpu.errors import DeviceLostError, LitegpuError


class KernelContext:
    """One execution context of a kernel; all contexts of a kernel share one executable.

    One run at a time may use a context. The interpreter's invokes use the context with number 0.
    """

    def __init__(self, kernel: PartitionKernel, number: int) -> None:
        """Refer to a kernel's context by number; the first use creates the context."""
        self.kernel, self._number = kernel, number
        self._source: CompiledPartition | None = None
        self._compiled: CompiledPartition | None = None

    def compiled(self) -> CompiledPartition:
        """Return the kernel's latest compiled partition, in this context.

        Raises DeviceMemoryError if memory is insufficient for another context.
        """
        latest = self.kernel.compiled
        if self._compiled is None or latest is not self._source:
            self.close()
            self._compiled = latest.in_other_context() if self._number else latest
            self._source = latest
        return self._compiled

    def promote_to_fp32(self, lost: Mapping[int, str], again: bool) -> None:
        """Recompile with these values in float32, unless another context already did."""
        if self._source is not None:
            self.kernel.promote_once(self._source, lost, again)

    def close(self) -> None:
        """Release the context, unless it is the kernel's current one."""
        if self._compiled is not None and self._compiled is not self.kernel.compiled:
            with contextlib.suppress(LitegpuError):  # the driver of a lost device may reject this
                self._compiled.context.close()
        self._compiled = self._source = None


@dataclass(frozen=True, slots=True)
class IoBuffers:
    """The buffers of a run; a tensor that is an output twice has two buffers."""

    inputs: Mapping[int, Buffer]
    outputs: Mapping[int, Sequence[Buffer]]


class DirectRun:
    """A prepared run of a kernel with fixed buffers, which can run repeatedly.

    Only one thread at a time may call the run, and not while the interpreter invokes.
    """

    def __init__(
        self,
        context: KernelContext,
        io: IoBuffers,
        stream: int | None = None,
        repeated: bool = False,
    ) -> None:
        """Bind a buffer to each tensor; see `can_run`. Runs start after the work on `stream`.

        With `repeated`, preparation may take longer so that each run takes less time. Raises
        BindingError for a buffer that is too small, or on another device.
        """
        self._on, self._io, self._stream, self._repeated = context, io, stream, repeated
        self._source: CompiledPartition | None = None
        """The partition that the kernel had compiled when the run was bound."""
        self._event: Event | None = None
        self._on_device(_nothing)

    @staticmethod
    def can_run(kernel: PartitionKernel, inputs: set[int], outputs: set[int]) -> bool:
        """Whether a kernel has no state, and computes all `outputs` from only these `inputs`."""
        compiled = kernel.compiled
        results = {*compiled.outputs, *compiled.constants}
        return (
            kernel.alone
            and not compiled.states
            and inputs.issuperset(compiled.inputs)
            and results == outputs
        )

    def _bind(self) -> None:
        source = self._on.kernel.compiled
        compiled = self._compiled = self._on.compiled()
        bindings = compiled.watched(
            [self._io.inputs[v] for v in compiled.inputs],
            [self._io.outputs[v][0] for v in compiled.outputs],
        )
        context = compiled.context
        self._submission: Submission
        if self._repeated:
            self._submission = context.bind_cached(bindings, self._stream)
        elif self._stream is not None:
            self._submission = context.bind_after(bindings, self._stream)
        else:
            self._submission = context.bind(bindings)
        self._run: Callable[[], None] = self._submission.run
        self._again = [
            (target, first) for first, *others in self._io.outputs.values() for target in others
        ]
        self._source = source

    def _on_device(self, work: Callable[[], None]) -> None:
        """Call `work` on the kernel's device; repeat the call after each loss of a device.

        Raises DeviceLostError if no other device works, or if buffers were lost with the device.
        """
        kernel = self._on.kernel
        while True:
            ran, was_lost = kernel.compiled, kernel.device.lost
            try:
                if ran is not self._source:
                    self._bind()
                return work()
            except DeviceLostError as error:
                self._recover(ran, error, blame=not was_lost)

    def _recover(
        self, ran: CompiledPartition | None, error: DeviceLostError, *, blame: bool
    ) -> None:
        """Move the kernel to a working device. See PartitionKernel.move_together.

        Raises DeviceLostError if the device loss invalidated bound buffers.
        """
        self._on.kernel.move_together(ran, error, blame=blame)
        targets = (each for several in self._io.outputs.values() for each in several)
        buffers = (*self._io.inputs.values(), *targets)
        if self._stream is not None or any(b.kind is not MemoryKind.HOST for b in buffers):
            raise DeviceLostError(
                f"{error.reason} The buffers of the run were lost with the device.",
                "Create the buffers again: the next run is on "
                f"{self._on.kernel.device.info.title}.",
            ) from error

    def __call__(self) -> None:
        """Run once; repeat the run after a float16 overflow, and after a loss of the device.

        Raises the errors of Submission.run.
        """
        self._on_device(self._run_once)

    def _run_once(self) -> None:
        self._run()
        self._complete()

    def submit(self) -> None:
        """Start a run, which `finish` completes. Raises the errors of Submission.submit."""
        self._on_device(self._begin)

    def _begin(self) -> None:
        self._event = self._submission.submit()

    def is_done(self) -> bool:
        """Whether the submitted run is done."""
        return self._event is None or self._event.done()

    def finish(self) -> None:
        """Wait for the submitted run; repeat the run, and raise errors, as `__call__` does."""
        if self._event is None:
            return
        try:
            try:
                self._event.wait()
                self._complete()
            except DeviceLostError as error:
                self._recover(self._source, error, blame=True)
                self._on_device(self._run_once)
        except Exception:
            self._event = None
            raise
        self._event = None  # last, because an interrupt may call this again

    def _complete(self) -> None:
        """Repeat the run in float32 if values overflowed float16, and copy constant outputs."""
        again = False
        while (watch := self._compiled.watch) is not None and (lost := watch.lost()):
            self._on.promote_to_fp32(lost, again)
            self._bind()
            self._run()
            again = True
        for v, array in self._compiled.constants.items():
            _fill(self._io.outputs[v][0], array)
        for target, first in self._again:
            if isinstance(target, HostBuffer) and isinstance(first, HostBuffer):
                ctypes.memmove(target.pointer, first.pointer, first.nbytes)
            else:
                target.write(first.read())


def _nothing() -> None:
    """Do nothing, as the work of a call that only binds buffers."""


def _fill(target: Buffer, array: npt.NDArray[Any]) -> None:
    if isinstance(target, HostBuffer):
        ctypes.memmove(target.pointer, array.ctypes.data, array.nbytes)
    else:
        target.write(array)
