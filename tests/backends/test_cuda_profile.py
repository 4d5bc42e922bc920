"""Time measurement of the CUDA backend, on a simulated driver with its own clock; needs no GPU."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from fake_cuda import FakeDriver, Status, gives, install
from litegpu.backends.buffers import Bindings
from litegpu.backends.cuda import device as cuda
from litegpu.backends.cuda import driver as cuda_driver
from litegpu.backends.cuda.context import CUDAContext
from litegpu.backends.cuda.executable import CUDAExecutable
from litegpu.backends.cuda.transfer import transfer_kernel
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import KernelText
from litegpu.errors import CudaError
from paper_device import DEVICE

CALL, GAP, COPY = 4.0, 1.0, 10.0
"""Simulated microseconds: of the host per call, between kernels, and of a copy."""
COPY_NAME = transfer_kernel(16).name
KERNELS = {"short": 3.0, "long": 500.0, COPY_NAME: COPY}


class Simulation:
    """A host that enqueues and a device that works, each with its clock in microseconds."""

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.capturing: list[tuple[float, bool]] | None = None
        self.graphs: dict[int, list[tuple[float, bool]]] = {}
        self.events: dict[int, float] = {}
        self.launched: list[int] = []
        self.live = {"graphs": 0, "events": 0}
        self.numbers = itertools.count(1)
        self.buffers: list[Any] = []

    def functions(self) -> dict[str, Any]:
        """Return the functions of the driver that a context calls."""
        plain = (
            "cuMemsetD8Async",
            "cuMemcpyHtoD",
            "cuMemFree",
            "cuMemFreeHost",
            "cuModuleUnload",
            "cuGraphDestroy",
        )
        return {
            **{name: gives() for name in (*plain, "cuGraphUpload")},
            "cuModuleLoadData": gives(3),
            "cuModuleGetFunctionCount": gives(len(KERNELS)),
            "cuModuleEnumerateFunctions": gives(list(KERNELS)),
            "cuFuncGetName": lambda function: (Status.CUDA_SUCCESS, function.encode()),
            "cuMemAlloc": gives(1 << 20),
            "cuMemHostAlloc": self.allocate,
            "cuLaunchKernelEx": self.launch,
            "cuStreamBeginCapture": self.begin,
            "cuStreamEndCapture": self.end,
            "cuStreamSynchronize": self.synchronize,
            "cuGraphInstantiate": self.instantiate,
            "cuGraphLaunch": self.launch_graph,
            "cuGraphExecDestroy": lambda _: self.forget("graphs"),
            "cuEventCreate": self.create_event,
            "cuEventRecord": self.record_event,
            "cuEventElapsedTime": self.elapsed,
            "cuEventDestroy": lambda _: self.forget("events"),
        }

    def allocate(self, size: int, _flags: int) -> tuple[Status, int]:
        self.buffers.append(ctypes.create_string_buffer(size))
        return Status.CUDA_SUCCESS, ctypes.addressof(self.buffers[-1])

    def begin(self, *_: Any) -> tuple[Status]:
        self.capturing = []
        return (Status.CUDA_SUCCESS,)

    def end(self, _stream: Any) -> tuple[Status, Any]:
        captured, self.capturing = self.capturing, None
        return Status.CUDA_SUCCESS, captured

    def launch(self, config: Any, function: str, *_: Any) -> tuple[Status]:
        assert self.capturing is not None, "kernels run as parts of graphs only"
        self.capturing.append((KERNELS[function], bool(config.numAttrs)))
        return (Status.CUDA_SUCCESS,)

    def instantiate(self, graph: Any, _flags: int) -> tuple[Status, int]:
        number = next(self.numbers)
        self.graphs[number] = graph
        self.live["graphs"] += 1
        return Status.CUDA_SUCCESS, number

    def launch_graph(self, graph: int, _stream: Any) -> tuple[Status]:
        self.host += CALL
        self.device = max(self.device, self.host)
        self.device += sum(cost + (0 if overlap else GAP) for cost, overlap in self.graphs[graph])
        self.launched.append(graph)
        return (Status.CUDA_SUCCESS,)

    def synchronize(self, _stream: Any) -> tuple[Status]:
        self.host = max(self.host, self.device)
        return (Status.CUDA_SUCCESS,)

    def create_event(self, _flags: int) -> tuple[Status, int]:
        self.live["events"] += 1
        return Status.CUDA_SUCCESS, next(self.numbers)

    def record_event(self, event: int, _stream: Any) -> tuple[Status]:
        self.host += CALL
        self.device = max(self.device, self.host)
        self.events[event] = self.device
        return (Status.CUDA_SUCCESS,)

    def elapsed(self, start: int, end: int) -> tuple[Status, float]:
        return Status.CUDA_SUCCESS, (self.events[end] - self.events[start]) * 1e-3

    def forget(self, what: str) -> tuple[Status]:
        self.live[what] -= 1
        return (Status.CUDA_SUCCESS,)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """A simulation that replaces the driver."""
    result = Simulation()
    install(monkeypatch, FakeDriver(**result.functions()))
    return result


def named(function: Any, name: str) -> Any:
    """Return a function that errors can name, as bound methods cannot be."""

    def call(*args: Any) -> Any:
        return function(*args)

    call.__name__ = name
    return call


def context(*kernels: str, capability: tuple[int, int] = (9, 0)) -> CUDAContext:
    """Return a context that launches these kernels between a copy in and a copy out."""
    texts = [KernelText(name, (), (1, 1, 1), (), "") for name in dict.fromkeys(kernels)]
    launches = tuple(Launch(name, (), (1, 1, 1), (1, 1, 1)) for name in kernels)
    ends = (BufferRange(False, 0, 16),), (BufferRange(False, 16, 16),)
    program = Program(tuple(texts), launches, 64, np.zeros(0, np.uint8), *ends)
    device = cuda.CUDADevice(DEVICE)
    device.capability = capability
    return CUDAExecutable(device, program, [b"cubin"]).context()  # type: ignore[return-value]


def copies_in(simulation: Simulation) -> list[int]:
    """Return the graphs that were launched and only copy."""
    launched = dict.fromkeys(simulation.launched)
    return [graph for graph in launched if {cost for cost, _ in simulation.graphs[graph]} == {COPY}]


def test_short_kernels_are_timed_in_batches(simulation: Simulation) -> None:
    """The time of a kernel includes the gap before the next kernel, but not the cost of events."""
    target = context("short", "long", "short")
    profiler = target.profiler()
    for _ in range(2):
        short, long, again = profiler.durations()
        assert short == again == pytest.approx((KERNELS["short"] + GAP) * 1e-6)
        assert long == pytest.approx((KERNELS["long"] + GAP) * 1e-6)
    first, second, third = (len(simulation.graphs[graph]) for graph in simulation.launched[-6::2])
    assert first == third >= 20
    assert second == 1


def test_kernels_by_themselves_do_not_overlap(simulation: Simulation) -> None:
    target = context("short", "short")
    profiler = target.profiler()
    profiler.durations()
    (inputs,) = copies_in(simulation)
    batches = [simulation.graphs[graph] for graph in simulation.launched if graph != inputs]
    assert all(not overlap for batch in batches for _, overlap in batch)


@pytest.mark.parametrize(("capability", "gaps"), [((9, 0), 0), ((8, 0), 2)])
def test_chains_overlap_as_in_a_run(
    simulation: Simulation, capability: tuple[int, int], gaps: int
) -> None:
    target = context("short", "long", capability=capability)
    profiler = target.profiler()
    expected = KERNELS["short"] + KERNELS["long"] + gaps * GAP
    for _ in range(3):
        assert profiler.chain_seconds() == pytest.approx(expected * 1e-6)
    inputs, chain = sorted(set(simulation.launched), key=simulation.launched.index)
    assert copies_in(simulation) == [inputs]
    assert simulation.launched == [inputs, chain] * 2 * 3, "each time of the inputs that were given"


def test_kernels_are_timed_on_what_was_made_of_the_inputs(simulation: Simulation) -> None:
    profiler = context("short", "long", "short").profiler()
    profiler.durations()
    (inputs,) = copies_in(simulation)
    simulation.launched.clear()
    profiler.durations()
    first, *batches = simulation.launched
    assert first == inputs
    assert [simulation.graphs[graph][0][0] for graph in batches[::2]] == [3.0, 500.0, 3.0]


def test_the_whole_graph_has_its_copies(simulation: Simulation) -> None:
    target = context("long")
    source, result = np.ones(4, np.float32), np.zeros(4, np.float32)
    seconds = target.profiler().device_seconds(Bindings.of([source], [result]))
    assert seconds == pytest.approx((COPY + KERNELS["long"] + COPY) * 1e-6)
    assert simulation.buffers[0].raw == source.tobytes(), "the inputs are those that were given"


def test_phases_of_a_run(simulation: Simulation) -> None:
    target = context("short")
    source, result = np.ones(4, np.float32), np.zeros(4, np.float32)
    simulation.buffers[1].raw = np.full(4, 2, np.float32).tobytes()
    phases = target.profiler().phases(Bindings.of([source], [result]))
    assert list(phases) == ["copy in", "submit", "wait", "copy out"]
    assert all(seconds >= 0 for seconds in phases.values())
    assert simulation.buffers[0].raw == source.tobytes()
    assert result.tolist() == [2.0] * 4
    assert len(simulation.launched) == 1


def test_everything_is_released(simulation: Simulation) -> None:
    target = context("short", "long")
    profiler = target.profiler()
    profiler.durations()
    profiler.chain_seconds()
    assert simulation.live == {"graphs": 1 + 2 * 2 + 1 + 1, "events": 2}
    target.close()
    target.close()
    assert simulation.live == {"graphs": 0, "events": 0}


def test_a_driver_that_fails_meanwhile(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = context("short")
    profiler = target.profiler()
    failing = named(gives(status=Status.CUDA_ERROR_OUT_OF_MEMORY), "cuGraphInstantiate")
    monkeypatch.setattr(cuda_driver.driver(), "cuGraphInstantiate", failing)
    with pytest.raises(CudaError, match="cuGraphInstantiate returned CUDA_ERROR_OUT_OF_MEMORY"):
        profiler.durations()
    target.close()
    assert simulation.live == {"graphs": 0, "events": 0}
