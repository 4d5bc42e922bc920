"""A device without hardware: kernels are selected and rendered for it, but never run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from host_device import HostContext, HostDevice, HostExecutable
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.execution import Executable
from litegpu.backends.program import Program
from litegpu.codegen import Dialect
from litegpu.codegen.opencl import OpenCLDialect
from litegpu.engine.layout import Layout, assign
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.host.private_files import Folder
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import Example
from litegpu.numeric_policy import FP32
from litegpu.ops.base import get

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


def nvidia_gpu(capability: tuple[int, int], units: int = 132, **facts: Any) -> DeviceInfo:
    """Return the facts of an NVIDIA GPU of a compute capability with so many multiprocessors."""
    return replace(
        DEVICE,
        backend="cuda",
        compute_capability=capability,
        compute_units=units,
        max_work_group_size=1024,
        buffer_alignment=256,
        **facts,
    )


def build(layout: Layout) -> BuiltProgram:
    """Choose the kernels of a placed graph, and plan its memory."""
    graph = layout.graph
    return build_program(layout, DEVICE, graph.inputs, graph.outputs)


def planned(each: Implementation, info: DeviceInfo, example: Example) -> Plan | Rejected:
    """Return how an implementation computes the last node of an example on a device, or why not."""
    graph, target = example.graph(), DeviceTarget(info, FP32)
    node = graph.nodes[-1]
    (spec,) = get(node.op).specs(node, Selected(assign(graph, FP32), target))
    return each.plan(spec, target)


class PaperDevice(HostDevice):
    """Takes programs as a device does, and writes their kernels; nobody compiles them."""

    def __init__(self, info: DeviceInfo | None = None, dialect: Dialect | None = None) -> None:
        """Be some device, or one that knows OpenCL's words."""
        self.info = info or replace(DEVICE, backend="opencl")
        self.dialect = dialect or OpenCLDialect()

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Write every kernel."""
        for kernel in program.kernels:
            self.dialect.kernel(kernel)
        return HostExecutable(program, HostContext)


@contextlib.contextmanager
def on_paper(device: PaperDevice | None = None) -> Iterator[PaperDevice]:
    """Let delegates choose a device on paper: no driver is opened, nothing is compiled or run."""
    chosen = device or PaperDevice()
    with mock.patch.object(backends, "select", lambda *_: chosen):
        yield chosen
