"""A partition with its storage layout, before and after compilation for a device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, Buffer, HostBuffer
from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.program import Program
from litegpu.engine.facts import PartitionFacts
from litegpu.engine.lethal import lethal_kernel
from litegpu.engine.ranges import RangeWatch
from litegpu.errors import DeviceLostError, DeviceMemoryError
from litegpu.graph import DType, Graph, Value
from litegpu.ops.base import as_float32

_log = logging.getLogger("litegpu")
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CompiledPartition:
    """A partition compiled for a device; `inputs` and `outputs` are the runtime's tensor indices.

    A state that a node updates is both an input and an output of the partition; each run replaces
    the state. `constants` are outputs that do not depend on any input: unpadded arrays by tensor
    index. `watch` reports values of the last run that overflowed or underflowed half; `watch` is
    None if kernels round nothing to half.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    executable: Executable
    context: ExecutionContext
    facts: PartitionFacts
    constants: Mapping[int, npt.NDArray[Any]]
    watch: RangeWatch | None

    @classmethod
    def create(
        cls,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        executable: Executable,
        facts: PartitionFacts,
        constants: Mapping[int, npt.NDArray[Any]],
    ) -> CompiledPartition:
        """Create an execution context of an executable, which the partition then owns.

        Other partitions may own the same executable. Raises DeviceMemoryError or ExecutionError; on
        an error, the method releases the executable, unless it has other owners.
        """
        claim = object()
        executable.own(claim)
        try:
            context = executable.context()
            executable.own(context)
        finally:
            executable.close(claim)
        watch = RangeWatch(facts.words) if facts.words else None
        return cls(inputs, outputs, executable, context, facts, constants, watch)

    def in_other_context(self) -> CompiledPartition:
        """Return the same partition in another execution context, with separate memory and queue.

        Raises DeviceMemoryError if the device lacks memory, or ExecutionError if the device fails.
        """
        context = self.executable.context()
        context.timeout = self.context.timeout
        watch = RangeWatch(self.facts.words) if self.facts.words else None
        return replace(self, context=context, watch=watch)

    @property
    def program(self) -> Program:
        """The device program that the partition runs."""
        return self.executable.program

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on host addresses of unpadded tensors, in the order of `inputs` and `outputs`."""
        self.context.run(self.bindings([*map(c_void_p, inputs)], [*map(c_void_p, outputs)]))

    def bindings(self, inputs: Sequence[c_void_p], outputs: Sequence[c_void_p]) -> Bindings:
        """Return the bindings of a run: host memory at these pointers, and the range words.

        Each run reads the pointers again.
        """
        ends = (inputs, self.program.inputs), (outputs, self.program.outputs)
        sides = (
            [HostBuffer(p, part.size) for p, part in zip(pointers, parts, strict=False)]
            for pointers, parts in ends
        )
        return self.watched(*sides)

    def watched(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Bindings:
        """Return the bindings of a run: buffers for `inputs` and `outputs`, and the range words."""
        if (watch := self.watch) is not None:
            parts = self.program.inputs[-1], self.program.outputs[-1]
            addresses = c_void_p(watch.source), c_void_p(watch.target)
            words = [HostBuffer(p, part.size) for p, part in zip(addresses, parts, strict=True)]
            inputs, outputs = (*inputs, words[0]), (*outputs, words[1])
        return Bindings(tuple(inputs), tuple(outputs))

    def sizes(self) -> list[tuple[int, int]]:
        """Return the size in bytes of each input, followed by the size of each output."""
        program = self.program
        ins = zip(self.inputs, program.inputs, strict=False)
        outs = zip(self.outputs, program.outputs, strict=False)
        return [(v, part.size) for v, part in (*ins, *outs)]

    @property
    def states(self) -> tuple[int, ...]:
        """The inputs that each run replaces."""
        return tuple(v for v in self.inputs if v in self.outputs)

    def buffers(self) -> dict[int, npt.NDArray[Any]]:
        """Return a zero-filled buffer for each input and output."""
        values = self.facts.values
        boundary = (*self.inputs, *self.outputs)
        return {v: np.zeros(values[v].shape, values[v].dtype.value) for v in boundary}

    def warm_up(self, device: Device) -> None:
        """Run the partition once on zeros, since drivers defer part of their work to the first run.

        Raises ExecutionError when the device fails.
        """
        sizes, count = [nbytes for _, nbytes in self.sizes()], len(self.inputs)
        inputs = [_zeros(nbytes, device) for nbytes in sizes[:count]]
        updated = {number: inputs[each.input] for number, each in self.program.updates.items()}
        outputs = [
            updated.get(number) or _zeros(nbytes, device)
            for number, nbytes in enumerate(sizes[count:])
        ]
        try:
            self.context.first_run(self.watched(inputs, outputs))
        except DeviceLostError as error:
            self.blame(error, device)
            raise

    def blame(self, error: DeviceLostError, device: Device) -> None:
        """Exclude the implementation whose kernel causes the loss of the device.

        If the search finds no single kernel that causes the loss, exclude all special
        implementations that ran.
        """
        from litegpu.engine.fallback import exclude, replaceable  # imports all kernels

        launches = self.facts.launches
        suspects = replaceable(launch.template for launch in launches)
        kernels = {each.kernel: each.template for each in launches if each.template in suspects}
        found = ""
        if len(suspects) > 1:
            found = lethal_kernel(self.program, device.info, tuple(kernels))
        if found:
            suspects = frozenset([kernels[found]])
        exclude(suspects, error, device.failures, certain=bool(found))

    def close(self) -> None:
        """Release all device resources of the partition."""
        self.context.close()
        self.disown()

    def disown(self) -> None:
        """Drop the reference to the executable; the context remains usable."""
        self.executable.close(self.context)


def _zeros(nbytes: int, device: Device) -> Buffer:
    """Return memory filled with zeros: on the device if it is large, and the device has room.

    The context then needs no host memory for copies, which later runs may not need either.
    """
    zeros = np.zeros(nbytes, np.uint8)
    if nbytes > _LARGE_BYTES:
        with contextlib.suppress(DeviceMemoryError):
            buffer = device.allocate(nbytes)
            buffer.write(zeros)
            return buffer
    return HostBuffer.of(zeros)


def constant_outputs(graph: Graph) -> dict[int, npt.NDArray[Any]]:
    """Return the outputs that do not depend on any input, by number."""
    return {v: _as_runtime(graph.values[v]) for v in graph.outputs if graph.values[v].is_constant}


def _as_runtime(value: Value) -> npt.NDArray[Any]:
    """Return a constant in the runtime's type for computed tensors: float16 becomes float32."""
    found = as_float32(value) if value.dtype is DType.FLOAT16 else value.data
    return np.ascontiguousarray(found)
