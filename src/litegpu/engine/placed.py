"""Represents a partition with its layout, from which programs are built."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from litegpu import config
from litegpu.backends.base import Compilation, Device
from litegpu.codegen import KernelText
from litegpu.codegen.macros import TranslationError
from litegpu.engine.choices import Choices
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.facts import PartitionFacts
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.engine.selected import Selected

_log = logging.getLogger("litegpu")


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A rewritten graph with its layout, from which programs with different kernels are built.

    `inputs` and `outputs` are the values to transfer; `states` maps each output that replaces an
    input to that input. `constants` has the same meaning as in CompiledPartition, `share_memory` as
    in compile_partition.
    """

    device: Device
    selected: Selected
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, int]
    constants: Mapping[int, npt.NDArray[Any]]
    share_memory: bool
    replaced: tuple[str, ...] = ()
    """The replaced implementations, as in PartitionFacts."""

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
        """Compile a program, or finish its compilation, and create an execution context.

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
        """Return the translated source of a kernel, or its portable text if translation fails."""
        try:
            return self.device.dialect.kernel(kernel)
        except TranslationError:  # which compiling raises, too
            return kernel.body
