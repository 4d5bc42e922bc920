"""A device that exists on paper only: kernels are chosen and written for it, but never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Device, DeviceInfo, Recording
from litegpu.backends.program import Program
from litegpu.codegen.opencl import OpenCLDialect
from litegpu.engine.layout import Layout
from litegpu.engine.program import BuiltProgram, build_program

DEVICE = DeviceInfo(
    backend="none",
    index=0,
    name="a device that only exists on paper",
    platform="",
    driver="",
    software=False,
    compute_units=8,
    memory_bytes=1 << 30,
    max_allocation_bytes=1 << 30,
    max_work_group_size=256,
    local_memory_bytes=1 << 15,
    half_arithmetic=False,
    buffer_alignment=128,
    max_arguments=128,
)


def build(layout: Layout) -> BuiltProgram:
    """Choose the kernels of a placed graph, and plan its memory."""
    graph = layout.graph
    return build_program(layout, DEVICE, graph.inputs, graph.outputs)


class PaperRecording(Recording):
    """What was recorded for the device."""

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Do nothing: outputs stay as they are."""

    def durations(self) -> list[float]:
        """Return no times: nothing runs."""
        return []

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Return no memory."""
        return np.empty(0, np.uint8)

    def close(self) -> None:
        """Have nothing to release."""


class PaperDevice(Device):
    """Takes programs as a device does, and writes their kernels; nobody compiles them."""

    def __init__(self) -> None:
        """Be a device that knows OpenCL's words."""
        self.info, self.dialect = replace(DEVICE, backend="opencl"), OpenCLDialect()

    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Write every kernel."""
        for kernel in program.kernels:
            self.dialect.kernel(kernel)
        return PaperRecording()
