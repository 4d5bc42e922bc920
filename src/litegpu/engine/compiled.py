"""A partition whose values have their places, and what a device makes of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu import config
from litegpu.backends.base import Device, Recording
from litegpu.engine.choices import Choices
from litegpu.engine.layout import Layout
from litegpu.engine.program import BuiltProgram, build_program

_log = logging.getLogger("litegpu")


@dataclass(frozen=True, slots=True)
class CompiledPartition:
    """A partition on a device. `inputs` and `outputs` are the runtime's tensor numbers.

    A state that a node changes is among both: what is left of it replaces what was there.
    `constants` are outputs that do not depend on any input: dense, by tensor number.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    recording: Recording
    layout: Layout
    built: BuiltProgram
    constants: Mapping[int, npt.NDArray[Any]]

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on host addresses of dense tensors, in the order of `inputs` and `outputs`."""
        self.recording.run(inputs, outputs)

    def buffers(self) -> dict[int, npt.NDArray[Any]]:
        """Return zeros for each input and output."""
        values = self.layout.graph.values
        boundary = (*self.inputs, *self.outputs)
        return {v: np.zeros(values[v].shape, values[v].dtype.value) for v in boundary}

    def warm_up(self) -> None:
        """Run once on zeros: drivers leave part of their work to the first run.

        Raises ExecutionError when the device fails.
        """
        held = self.buffers()
        self.run(
            [held[v].ctypes.data for v in self.inputs], [held[v].ctypes.data for v in self.outputs]
        )

    def close(self) -> None:
        """Release everything on the device."""
        self.recording.close()


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A rewritten and placed partition, of which programs with different kernels can be made.

    `inputs` and `outputs` are the values to transfer; `states` tells which of the outputs replace
    which inputs. `constants` see CompiledPartition, `share_memory` compile_partition.
    """

    device: Device
    layout: Layout
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, int]
    constants: Mapping[int, npt.NDArray[Any]]
    share_memory: bool

    def build(self, choices: Choices) -> BuiltProgram:
        """Choose kernels, and plan the memory."""
        return build_program(
            self.layout, self.device.info, self.inputs, self.outputs, self.share_memory, choices
        )

    def record(self, built: BuiltProgram, cache_dir: str | None = None) -> CompiledPartition:
        """Compile, allocate and record. Raises CompilationError or DeviceMemoryError."""
        if config.debug_level() >= 2:
            for kernel in built.program.kernels:
                _log.info("%s", self.device.dialect.kernel(kernel))
        recording = self.device.record(built.program, cache_dir)
        outputs = tuple(self.states.get(v, v) for v in self.outputs)
        return CompiledPartition(
            self.inputs, outputs, recording, self.layout, built, self.constants
        )
