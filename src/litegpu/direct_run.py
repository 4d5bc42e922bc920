"""Runs a partition that is a whole model on buffers, without its interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

from litegpu.backends.buffers import HostBuffer
from litegpu.partition_kernel import PartitionKernel


class DirectRun:
    """A prepared run of a kernel with given buffers, as often as wanted.

    Call it in one thread at a time, and in none in which the interpreter invokes.
    """

    def __init__(
        self,
        kernel: PartitionKernel,
        inputs: Mapping[int, HostBuffer],
        outputs: Mapping[int, HostBuffer],
    ) -> None:
        """Take a buffer for each tensor; see `can_run`. Raises BindingError when one is small."""
        self._kernel = kernel
        self._inputs, self._outputs = inputs, outputs
        self._bind()

    @staticmethod
    def can_run(kernel: PartitionKernel, inputs: set[int], outputs: set[int]) -> bool:
        """Whether a kernel makes all outputs of these inputs, and keeps nothing between runs."""
        compiled = kernel.compiled
        results = {*compiled.outputs, *compiled.constants}
        return (
            kernel.alone
            and not compiled.states
            and inputs.issuperset(compiled.inputs)
            and results == outputs
        )

    def _bind(self) -> None:
        compiled = self._compiled = self._kernel.compiled
        bindings = compiled.watched(
            [self._inputs[v] for v in compiled.inputs],
            [self._outputs[v] for v in compiled.outputs],
        )
        self._run: Callable[[], None] = compiled.context.bind(bindings).run
        self._constants = [
            (self._outputs[v].pointer, array.ctypes.data, array.nbytes)
            for v, array in compiled.constants.items()
        ]

    def __call__(self) -> None:
        """Run once; again if values turn out not to fit half. Raises what Submission.run does."""
        kernel = self._kernel
        if kernel.compiled is not self._compiled:
            self._bind()
        self._run()
        again = False
        while (watch := self._compiled.watch) is not None and (lost := watch.lost()):
            kernel.widen(lost, again)
            self._bind()
            self._run()
            again = True
        for target, address, size in self._constants:
            ctypes.memmove(target, address, size)
