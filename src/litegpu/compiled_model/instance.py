"""An interpreter with its delegate, and which signatures can run without the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from litegpu.backends.base import Device
from litegpu.compiled_model.signatures import Signature, signatures_of
from litegpu.delegation.delegate import GpuDelegate
from litegpu.delegation.direct_run import DirectRun
from litegpu.delegation.partition_kernel import PartitionKernel


class Instance:
    """An interpreter of a model, and the delegate that it uses."""

    def __init__(self, interpreter: Any, delegate: GpuDelegate | None) -> None:
        """Use an interpreter whose tensors are allocated."""
        self.interpreter, self.delegate = interpreter, delegate
        self.signatures = signatures_of(interpreter)
        self.lock = threading.Lock()
        """The lock that is held while the interpreter runs."""

    def kernel(self, signature: Signature) -> PartitionKernel | None:
        """Return the kernel that runs the whole graph of a signature; None if there is none."""
        if self.delegate is None or signature.graph is None:
            return None
        return self.delegate._whole(signature.graph)

    def device(self) -> Device | None:
        """Return the device that runs the whole graph of a signature; None if there is none.

        A lost device is reopened. Raises DeviceLostError if that fails.
        """
        kernels = map(self.kernel, self.signatures)
        kernel = next((each for each in kernels if each is not None), None)
        if kernel is None:
            return None
        if kernel.device.lost:
            kernel.move_together(kernel.compiled, kernel.device.loss(), blame=False)
        return kernel.device

    def runs_directly(self, signature: Signature) -> bool:
        """Whether one kernel runs a whole signature, and is compiled for its current shapes."""
        kernel = self.kernel(signature)
        if kernel is None:
            return False
        values, sides = kernel.graph.values, (signature.inputs, signature.outputs)
        return DirectRun.can_run(
            kernel, *({each.index for each in side} for side in sides)
        ) and all(
            values[each.index].shape == each.shape
            for each in signature.inputs
            if each.index in values
        )

    def resize(self, index: int, number: int, shape: Sequence[int], strict: bool) -> None:
        """Resize an input of a signature; all signatures of the same graph change."""
        resized = self.signatures[index]
        resized.resize(number, shape, strict)
        for each in self.signatures:
            if each.graph == resized.graph:
                each.refresh()

    def close(self) -> None:
        """Release the delegate's memory."""
        if self.delegate is not None:
            self.delegate.close()
        self.interpreter = None
