"""Failures and interrupts in the CUDA backend release everything; needs no GPU."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from fake_cuda import CONTEXT, FakeDriver, Status, install
from interrupts import CAN_INTERRUPT, Interrupts
from litegpu import DeviceLostError, DeviceMemoryError, ExecutionError, InvokeTimeoutError
from litegpu.backends.buffers import Bindings, MemoryKind
from litegpu.backends.cuda import device as cuda
from litegpu.backends.cuda.context import CUDAContext
from litegpu.backends.cuda.executable import CUDAExecutable, transfers
from litegpu.backends.opened import OpenDevices
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import KernelText
from litegpu.errors import CudaError, LitegpuError
from litegpu.host import fork_safety as process

FLOATS = 16
OTHERS = 42
"""The current context, which belongs to another library."""
KERNEL = KernelText("kernel", (), (1, 1, 1), (("float", "large", 20000),), "")
PROGRAM = Program(
    (KERNEL,),
    (Launch("kernel", (), (1, 1, 1), (1, 1, 1)),) * 2,
    256,
    np.ones(64, np.uint8),
    (BufferRange(False, 0, 4 * FLOATS),),
    (BufferRange(False, 128, 4 * FLOATS),),
)
STRIDE = 17
"""The fraction of the possible positions of a signal that is tested."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A fake driver with kernels, without an opened device."""
    result = FakeDriver()
    result.contexts.append(OTHERS)
    result.kernels = [kernel.name for kernel in (*PROGRAM.kernels, *transfers(PROGRAM))]
    install(monkeypatch, result)
    monkeypatch.setattr(process, "_openers", {})
    monkeypatch.setattr(cuda, "_opened", OpenDevices("CUDA", cuda._open))
    return result


def opened() -> cuda.CUDADevice:
    return cuda._opened.get(0)


def context() -> CUDAContext:
    """Return a context that holds the only references to the loaded modules."""
    executable = CUDAExecutable(opened(), PROGRAM, [b"one", b"two"])
    try:
        output = executable.context()
    finally:
        executable.close()
    assert isinstance(output, CUDAContext)
    return output


def ends() -> Bindings:
    """Return an input and an output; both live as long as the process."""
    arrays = np.ones(FLOATS, np.float32), np.zeros(FLOATS, np.float32)
    _alive.extend(arrays)
    return Bindings.of(arrays[:1], arrays[1:])


_alive: list[object] = []


def live_once() -> None:
    """Create a context, call all its methods, and close it."""
    target, buffers = context(), []
    try:
        target.run(ends())
        target.submit(ends()).wait()
        profiler = target.profiler()
        profiler.durations()
        profiler.chain_seconds()
        profiler.device_seconds(ends())
        profiler.phases(ends())
        target.read_memory()
        for kind in MemoryKind:
            buffers += [target.device.allocate(4 * FLOATS, kind) for _ in range(2)]
            buffers[-2].write(np.ones(FLOATS, np.float32))
            target.run(Bindings(tuple(buffers[-2:-1]), tuple(buffers[-1:])))
            buffers[-1].read()
    finally:
        target.close()
        for buffer in buffers:
            buffer.close()


def error_of(work: Callable[[], object]) -> type[BaseException] | None:
    """Return the type of the exception that `work` raises, without keeping the exception alive."""
    try:
        work()
    except BaseException as error:
        return type(error)
    finally:
        gc.collect(1)
    return None


def assert_clean(fake: FakeDriver, when: str) -> None:
    if fake.live:
        gc.collect()  # an error and its frames hold each other, in whatever generation
    assert fake.live == {}, when
    assert fake.contexts == [OTHERS], when
    assert not fake.capturing, when
    assert fake.faults == [], when


def out_of_memory() -> Status:
    return Status.CUDA_ERROR_OUT_OF_MEMORY


def no_host_memory() -> Status:
    raise MemoryError


def interrupt() -> Status:
    raise KeyboardInterrupt


ERRORS: dict[Callable[[], Status], type[BaseException]] = {
    out_of_memory: LitegpuError,
    no_host_memory: MemoryError,
    interrupt: KeyboardInterrupt,
}
"""The permitted results of each failure."""


class Failing:
    """Makes the call with a number fail, and records its name."""

    def __init__(self, number: int, failure: Callable[[], Status]) -> None:
        self._countdown = itertools.count(number, -1)
        self._failure = failure
        self.failed = ""

    def __call__(self, name: str) -> Status | None:
        if next(self._countdown):
            return None
        self.failed = name
        return self._failure()


@pytest.mark.parametrize("failure", ERRORS)
def test_each_call_of_the_driver_fails_once(
    fake: FakeDriver, failure: Callable[[], Status]
) -> None:
    for number in range(1000):
        fake.before = failing = Failing(number, failure)
        error = error_of(live_once)
        fake.before = lambda _name: None
        if not failing.failed:
            assert error is None
            assert number > 100, "there is more to fail"
            return
        when = f"call {number}, {failing.failed}, fails: {error}"
        assert_clean(fake, when)
        assert error is None or issubclass(error, ERRORS[failure]), when
        live_once()
        assert_clean(fake, f"after {when}")
    pytest.fail("never went through")


FILES = tuple(
    f"{name}.py"
    for name in (
        *("cuda/device", "cuda/executable", "cuda/context", "cuda/buffers", "cuda/driver"),
        *("cuda/profile", "cuda/occupancy", "cuda/submission", "backends/execution"),
        "host/native_handles",
    )
)


@pytest.mark.skipif(not CAN_INTERRUPT, reason="this Python does not tell enough")
def test_an_interrupt_at_any_place(fake: FakeDriver) -> None:
    opened()
    for number in itertools.count(0, STRIDE):
        interrupts = Interrupts(number, FILES)
        error = error_of(lambda: interrupts.run(live_once))  # noqa: B023
        if not interrupts.place:
            assert error is None
            assert number > 500, "there are more places"
            return
        assert error is KeyboardInterrupt, interrupts.place
        assert_clean(fake, f"interrupted at {interrupts.place} (place {number})")


@pytest.mark.parametrize("name", ["cuMemAlloc", "cuMemHostAlloc"])
def test_too_little_memory(fake: FakeDriver, name: str) -> None:
    fake.before = lambda each: out_of_memory() if each == name else None
    with pytest.raises(
        DeviceMemoryError, match=r"Test GPU cannot provide \d+ bytes.*smaller batch"
    ):
        context()
    assert_clean(fake, name)


@pytest.mark.parametrize("name", ["cuCtxPushCurrent", "cuGraphLaunch", "cuStreamSynchronize"])
def test_an_invoke_that_fails(fake: FakeDriver, name: str) -> None:
    target = context()
    fails = [name]
    fake.before = lambda each: out_of_memory() if fails == [each] and fails.pop() else None
    with pytest.raises(CudaError, match=rf"{name} returned CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        target.run(ends())
    assert fake.contexts == [OTHERS]
    target.run(ends())
    target.close()
    with pytest.raises(ExecutionError, match="This partition was released"):
        target.run(ends())
    assert_clean(fake, name)


# Devices that are opened, and lost


def test_no_thread_is_left_of_a_start_ahead(fake: FakeDriver) -> None:
    started = threading.Event()
    fake.before = lambda name: None if name != "cuInit" or started.wait(5) else Status.CUDA_SUCCESS
    assert cuda.CUDABackend().start_ahead()
    threading.Timer(0.2, started.set).start()
    cuda.CUDABackend().open(0)
    assert not cuda._start_once().is_alive()


def fatal(name: str) -> Callable[[str], Status | None]:
    return lambda each: Status.CUDA_ERROR_ILLEGAL_ADDRESS if each == name else None


@pytest.mark.parametrize("name", ["cuStreamSynchronize", "cuGraphLaunch"])
def test_a_lost_device_is_opened_anew(fake: FakeDriver, name: str) -> None:
    lost, target, other = opened(), context(), context()
    fake.before = fatal(name)
    with pytest.raises(DeviceLostError, match=r"Test GPU is lost: .*\(700\).*new GpuDelegate"):
        target.run(ends())
    assert lost.lost
    fake.before = lambda _name: None
    fake.calls.clear()
    for fails in (lambda: other.run(ends()), other.profiler().durations, other.read_memory):
        with pytest.raises(DeviceLostError, match="is lost: it failed before"):
            fails()
    target.close()
    other.close()
    assert fake.calls == [], "nothing is asked of a context that is lost"
    late = opened()
    assert late is not lost
    assert late.context not in (lost.context, CONTEXT)
    before = dict(fake.live)
    live_once()
    assert fake.live == before
    assert fake.contexts == [OTHERS]


def test_a_device_that_is_lost_while_a_context_is_released(fake: FakeDriver) -> None:
    target = context()
    fake.before = fatal("cuModuleUnload")
    target.close()
    assert opened().lost is False, "a new one"


def test_where_contexts_cannot_be_made_the_primary_one_is_reset(fake: FakeDriver) -> None:
    lost, target = opened(), context()
    lost.lost = True
    fake.before = fatal("cuCtxCreate")
    with pytest.raises(DeviceLostError, match=r"while interpreters that used it exist: .*Delete"):
        opened()
    target.close()
    fake.calls.clear()
    assert opened().context == CONTEXT
    assert "cuDevicePrimaryCtxReset" in fake.calls


def test_where_no_context_can_be_had(fake: FakeDriver) -> None:
    opened().lost = True
    names = ("cuCtxCreate", "cuDevicePrimaryCtxReset")
    fake.before = lambda name: Status.CUDA_ERROR_ILLEGAL_ADDRESS if name in names else None
    with pytest.raises(DeviceLostError, match=r"reopened in this process: .*Start a new process"):
        opened()


# Time limits


def test_an_invoke_that_takes_too_long(fake: FakeDriver) -> None:
    device, target = opened(), context()
    target.timeout = 0.05
    target.run(ends())
    fake.before = lambda name: Status.CUDA_ERROR_NOT_READY if name == "cuStreamQuery" else None
    began = time.monotonic()
    with pytest.raises(InvokeTimeoutError, match=r"not ended an invoke after 50 ms .*longer limit"):
        target.run(ends())
    assert time.monotonic() - began < 10
    assert device.lost
    live = dict(fake.live)
    target.close()
    assert fake.live == live, "the device may still write there"
    assert fake.contexts == [OTHERS]
    assert not opened().lost


def test_an_invoke_in_time_that_fails(fake: FakeDriver) -> None:
    target = context()
    target.timeout = 10
    for name in ("cuGraphLaunch", "cuStreamQuery"):
        fails = [name]
        fake.before = lambda each: out_of_memory() if fails == [each] else None  # noqa: B023
        with pytest.raises(CudaError, match=rf"{name} returned CUDA_ERROR_OUT_OF_MEMORY"):
            target.run(ends())
        assert fake.contexts == [OTHERS]
    fake.before = lambda _name: None
    target.run(ends())
    target.close()


@pytest.mark.skipif(not CAN_INTERRUPT, reason="this Python does not tell enough")
def test_an_interrupt_while_there_is_a_limit(fake: FakeDriver) -> None:
    """The graph has ended, or the device is abandoned, before the interrupt is raised."""
    answers: list[int] = []

    def query(_stream: int) -> tuple[Status]:
        answers.append(len(answers) % 3)
        return (Status.CUDA_SUCCESS if answers[-1] == 2 else Status.CUDA_ERROR_NOT_READY,)

    fake._own["cuStreamQuery"] = query
    target = context()
    target.timeout = 10
    for number in itertools.count():
        answers.clear()
        interrupts = Interrupts(number, ("backends/cuda/submission.py", "host/native_calls.py"))
        error = error_of(lambda: interrupts.run(lambda: target.run(ends())))  # noqa: B023
        if not interrupts.place:
            assert error is None
            assert number > 10
            break
        assert error is KeyboardInterrupt
        launched = "cuGraphLaunch" in fake.calls
        assert not launched or answers[-1:] == [2], interrupts.place
        fake.calls.clear()
    target.close()
    assert_clean(fake, "at the end")


def test_a_submission_that_takes_too_long(fake: FakeDriver) -> None:
    """A timeout of `wait` abandons nothing; only the context's timeout does."""
    device, target = opened(), context()
    target.timeout = 0.05
    event = target.submit(ends())
    fake.before = lambda name: Status.CUDA_ERROR_NOT_READY if name == "cuStreamQuery" else None
    assert not event.wait(timeout=0.01)
    assert (event.done(), device.lost) == (False, False)
    for _ in range(2):
        with pytest.raises(InvokeTimeoutError, match="not ended an invoke after 50 ms"):
            event.wait()
    assert (event.done(), device.lost) == (True, True)
    target.close()
    assert fake.contexts == [OTHERS]


def test_a_submission_that_fails(fake: FakeDriver) -> None:
    target = context()
    for name, limit in (("cuStreamSynchronize", None), ("cuStreamQuery", 10.0)):
        target.timeout = limit
        event = target.submit(ends())
        fake.before = lambda each: out_of_memory() if each == name else None  # noqa: B023
        for _ in range(2):
            with pytest.raises(CudaError, match=rf"{name} returned CUDA_ERROR_OUT_OF_MEMORY"):
                event.wait()
        assert event.done()
        fake.before = lambda _name: None
        target.run(ends())
    fake.before = lambda each: out_of_memory() if each == "cuGraphLaunch" else None
    with pytest.raises(CudaError, match="cuGraphLaunch returned CUDA_ERROR_OUT_OF_MEMORY"):
        target.submit(ends())
    fake.before = lambda _name: None
    target.close()
    assert_clean(fake, "at the end")


def test_copies_on_the_gpu_that_fail(fake: FakeDriver) -> None:
    target = context()
    buffers = [target.device.allocate(4 * FLOATS) for _ in range(2)]
    submission = target.bind(Bindings(tuple(buffers[:1]), tuple(buffers[1:])))
    submission.run()
    fake.before = lambda each: out_of_memory() if each == "cuMemcpyAsync" else None
    for make in (submission.run, submission.submit):
        with pytest.raises(CudaError, match="cuMemcpyAsync returned CUDA_ERROR_OUT_OF_MEMORY"):
            make()
    fake.before = fatal("cuMemcpyDtoH")
    with pytest.raises(DeviceLostError, match="is lost"):
        buffers[0].read()
    fake.before = lambda _name: None
    with pytest.raises(DeviceLostError, match="is lost"):
        target.device.allocate(64)
    target.close()
    for buffer in buffers:
        buffer.close()
    assert fake.contexts == [OTHERS]


# Forks


def test_a_child_releases_nothing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    target = context()
    live = dict(fake.live)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        fake.calls.clear()
        target.close()
        assert fake.calls == []
    assert fake.live == live
    target.close()
    assert_clean(fake, "in the parent")
