"""A partition with its storage layout, before and after compilation for a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu import config
from litegpu.backends.base import Compilation, Device
from litegpu.backends.buffers import Bindings, Buffer, HostBuffer
from litegpu.backends.execution import Executable, ExecutionContext
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.macros import TranslationError
from litegpu.engine.choices import Choices
from litegpu.engine.facts import PartitionFacts
from litegpu.engine.fallback import exclude, replaceable
from litegpu.engine.lethal import lethal_kernel
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.engine.ranges import RangeWatch
from litegpu.engine.selected import Selected
from litegpu.errors import DeviceLostError

_log = logging.getLogger("litegpu")


@dataclass(frozen=True, slots=True)
class CompiledPartition:
    """A partition on a device. `inputs` and `outputs` are the runtime's tensor numbers.

    A state that a node updates is both an input and an output; each run replaces it. `constants`
    are outputs that do not depend on any input: unpadded, by tensor number. `watch` reports values
    of the last run that overflowed or underflowed half; None if nothing is rounded to half.
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
        """Create a context of an executable, which the partition then owns.

        The executable may have other owners. Raises DeviceMemoryError or ExecutionError; then the
        executable is released, unless it has other owners.
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
        """Return the same partition in another context, which has its own memory and queue.

        Raises DeviceMemoryError or ExecutionError.
        """
        context = self.executable.context()
        context.timeout = self.context.timeout
        watch = RangeWatch(self.facts.words) if self.facts.words else None
        return replace(self, context=context, watch=watch)

    @property
    def program(self) -> Program:
        """The program as the device runs it."""
        return self.executable.program

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on host addresses of unpadded tensors, in the order of `inputs` and `outputs`."""
        self.context.run(self.bindings([*map(c_void_p, inputs)], [*map(c_void_p, outputs)]))

    def bindings(self, inputs: Sequence[c_void_p], outputs: Sequence[c_void_p]) -> Bindings:
        """Return the bindings of a run: host memory behind these pointers, and the range words.

        The pointers are read at each run.
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
        """Return the size in bytes of each input and then each output."""
        program = self.program
        ins = zip(self.inputs, program.inputs, strict=False)
        outs = zip(self.outputs, program.outputs, strict=False)
        return [(v, part.size) for v, part in (*ins, *outs)]

    @property
    def states(self) -> tuple[int, ...]:
        """The inputs that a run replaces."""
        return tuple(v for v in self.inputs if v in self.outputs)

    def buffers(self) -> dict[int, npt.NDArray[Any]]:
        """Return a zero-filled buffer for each input and output."""
        values = self.facts.values
        boundary = (*self.inputs, *self.outputs)
        return {v: np.zeros(values[v].shape, values[v].dtype.value) for v in boundary}

    def warm_up(self, device: Device) -> None:
        """Run once on zeros, since drivers defer part of their work to the first run.

        Raises ExecutionError when the device fails.
        """
        buffers = self.buffers()
        try:
            self.run(
                [buffers[v].ctypes.data for v in self.inputs],
                [buffers[v].ctypes.data for v in self.outputs],
            )
        except DeviceLostError as error:
            self.blame(error, device)
            raise

    def blame(self, error: DeviceLostError, device: Device) -> None:
        """Exclude the implementation whose kernel a device is lost with.

        All special ones whose kernels ran if no kernel is known to lose it alone.
        """
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
        """Release everything on the device."""
        self.context.close()
        self.disown()

    def disown(self) -> None:
        """Drop the reference to the executable; the context remains usable."""
        self.executable.close(self.context)


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A rewritten graph with its layout, from which programs with different kernels are built.

    `inputs` and `outputs` are the values to transfer; `states` maps each output that replaces an
    input to that input. `constants`: see CompiledPartition, `share_memory`: see compile_partition.
    """

    device: Device
    selected: Selected
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, int]
    constants: Mapping[int, npt.NDArray[Any]]
    share_memory: bool
    replaced: tuple[str, ...] = ()
    """See PartitionFacts."""

    def build(self, choices: Choices, compilation: Compilation | None = None) -> BuiltProgram:
        """Select kernels and plan the memory; see build_program for `compilation`."""
        layout, info = self.selected.layout, self.device.info
        ends = self.inputs, self.outputs
        return build_program(
            *(layout, info, *ends, self.share_memory, choices, self.selected),
            compilation=compilation,
        )

    def compile(
        self, built: BuiltProgram, compilation: Compilation | None = None
    ) -> CompiledPartition:
        """Compile, or finish a compilation, and create a context.

        Raises CompilationError, a KernelError if single kernels fail, or DeviceMemoryError.
        """
        if config.debug_level() >= 2:
            for kernel in built.program.kernels:
                _log.info("%s", self._source(kernel))
        if compilation is None:
            executable = self.device.compile(built.program)
        else:
            executable = compilation.finish(built.program)
        outputs = tuple(self.states.get(v, v) for v in self.outputs)
        facts = PartitionFacts.of(self.selected.layout, built, self.replaced)
        return CompiledPartition.create(self.inputs, outputs, executable, facts, self.constants)

    def _source(self, kernel: KernelText) -> str:
        """Return the source of a kernel, or its own text if there is none."""
        try:
            return self.device.dialect.kernel(kernel)
        except TranslationError:  # which compiling raises, too
            return kernel.body
