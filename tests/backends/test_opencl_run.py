"""Runs of partitions on OpenCL: command buffers, separate calls, calls that fail."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backend_suite import ADD_ONE as BODY
from backend_suite import FLOATS, adding, cell, floats, kernel, launch, program, ready, run
from interrupts import CAN_INTERRUPT, Interrupts
from litegpu import (
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    InvokeTimeoutError,
    progress,
)
from litegpu.backends.buffers import Bindings, HostBuffer, MemoryKind
from litegpu.backends.opencl import commands as opencl_commands
from litegpu.backends.opencl import library as opencl_library
from litegpu.backends.opencl.commands import CommandBuffer, EnqueueLoop
from litegpu.backends.opencl.device import OpenCLBackend, OpenCLDevice
from litegpu.backends.program import Launch
from litegpu.options import Precision
from litegpu.progress import Progress
from small_models import (
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
)
from small_models import run as run_model

cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")


def test_command_buffers_where_the_device_has_them(opencl_device: OpenCLDevice) -> None:
    context: Any = ready(opencl_device, adding(3))
    has = "cl_khr_command_buffer" in opencl_device._device.extensions
    assert isinstance(context._commands, CommandBuffer if has else EnqueueLoop)
    context.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_enqueue_loop_gives_the_same_answers(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    recorded = run_model(interpreter(model, GpuDelegate(backend="opencl", precision=precision)), x)
    monkeypatch.setattr(CommandBuffer, "create", lambda *_: None)
    target = interpreter(model, GpuDelegate(backend="opencl", precision=precision))
    for _ in range(3):
        np.testing.assert_array_equal(run_model(target, x)[0], recorded[0])
    target.resize_tensor_input(0, [2, 9, 7, 3])
    target.allocate_tensors()
    assert_close(run_model(target, np.concatenate([x, x])), [np.concatenate(recorded * 2)])


class Broken:
    """Replaces an OpenCL function that fails after some successful calls."""

    def __init__(self, real: Any, status: int, after: int = 0) -> None:
        self._real, self._status, self._left = real, status, after
        self.argtypes = real.argtypes

    def repair(self) -> None:
        self._left = 1 << 30

    def __call__(self, *args: Any) -> Any:
        self._left -= 1
        return self._real(*args) if self._left >= 0 else self._status


@pytest.mark.parametrize(
    ("function", "status", "after"),
    [("create", 0, 0), ("launch", -59, 0), ("launch", -59, 1), ("finalize", -59, 0)],
)
def test_a_command_buffer_that_fails_gives_way_to_the_loop(
    opencl_device: OpenCLDevice,
    function: str,
    status: int,
    after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    functions = opencl_commands._Functions.load(opencl_device._device.platform.int_ptr)
    if functions is None:
        pytest.skip(f"{opencl_device.info.name} has no cl_khr_command_buffer")
    failing: Any = {function: Broken(getattr(functions, function), status, after)}
    broken = dataclasses.replace(functions, **failing)
    monkeypatch.setattr(opencl_commands._Functions, "load", lambda _: broken)
    context: Any = ready(opencl_device, adding(3))
    assert isinstance(context._commands, EnqueueLoop)
    assert (run(context, [np.zeros_like(floats())])[0] == 3).all()
    context.close()


def test_extension_functions_that_are_missing(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        opencl_library.library(), "clGetExtensionFunctionAddressForPlatform", lambda *_: None
    )
    context: Any = ready(opencl_device, adding(2))
    assert isinstance(context._commands, EnqueueLoop)
    context.close()


def software(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device be one whose driver compiles kernels at their first launch."""
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, software=True))


def test_the_first_run_waits_for_each_launch(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    software(opencl_device, monkeypatch)
    context: Any = ready(opencl_device, adding(3))
    seen: list[Progress] = []
    monkeypatch.setattr(progress, "_QUIET_S", 0)
    monkeypatch.setattr(progress, "_BETWEEN_S", 0)
    x, y = floats(), np.empty_like(floats())
    wait = context._run_now

    def run_slowly(calls: Any) -> None:
        wait(calls)
        time.sleep(0.05)

    monkeypatch.setattr(context, "_run_now", run_slowly)
    with progress.watching(seen.append):
        context.first_run(Bindings.of([x], [y]))
    np.testing.assert_array_equal(y, x + 1 + 1 + 1)
    assert {(each.stage, each.total) for each in seen} >= {("run", 3)}
    assert {each.done for each in seen if each.stage == "run"} >= {0, 1, 2}
    assert (run(context, [x])[0] == x + 1 + 1 + 1).all()
    context.close()


def test_an_interrupted_first_run_leaves_nothing_in_flight(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    software(opencl_device, monkeypatch)
    context: Any = ready(opencl_device, adding(3))
    launched: list[Any] = []
    steps = progress.steps

    def interrupted(stage: Any, items: Any, total: int) -> Iterator[Any]:
        for item in steps(stage, items, total):
            if launched:
                raise KeyboardInterrupt
            launched.append(item)
            yield item

    x, y = floats(), np.empty_like(floats())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(progress, "steps", interrupted)
        context.first_run(Bindings.of([x], [y]))
    assert len(launched) == 1 and context.ready
    assert (run(context, [x])[0] == x + 1 + 1 + 1).all()
    context.close()


def test_a_first_run_that_fails(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    software(opencl_device, monkeypatch)
    context: Any = ready(opencl_device, adding(3))
    x, y = floats(), np.empty_like(floats())
    with monkeypatch.context() as broken:
        real = opencl_library.library().clEnqueueNDRangeKernel
        failing = Broken(real, -5, after=1)
        broken.setattr(opencl_library.library(), "clEnqueueNDRangeKernel", failing)
        with pytest.raises(ExecutionError, match=r"OUT_OF_RESOURCES \(status -5\)"):
            context.first_run(Bindings.of([x], [y]))
    context.close()


FUNCTIONS = {
    "write": "clEnqueueWriteBuffer",
    "launch": "clEnqueueNDRangeKernel",
    "read": "clEnqueueReadBuffer",
    "wait": "clFinish",
}


@pytest.mark.parametrize("part", FUNCTIONS)
def test_a_call_that_fails_is_an_error_with_its_name(
    opencl_device: OpenCLDevice, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandBuffer, "create", lambda *_: None)
    outputs = [0] if part != "wait" else []
    wanted = program([kernel("add_one", BODY)], [launch("add_one", 1, 0)], [0], outputs)
    with monkeypatch.context() as broken:
        real = getattr(opencl_library.library(), FUNCTIONS[part])
        broken.setattr(opencl_library.library(), FUNCTIONS[part], Broken(real, -5))
        context: Any = ready(opencl_device, wanted)
        with pytest.raises(ExecutionError, match=r"OUT_OF_RESOURCES \(status -5\)") as caught:
            run(context, [floats()], len(outputs))
    assert opencl_device.info.name in str(caught.value)
    assert "Create a new GpuDelegate and interpreter" in str(caught.value)
    context.close()


def test_a_device_that_fails_shows_through_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delegate = GpuDelegate(backend="opencl")
    target = interpreter(chain(["ABS"]), delegate)
    library = opencl_library.library()
    broken = Broken(library.clEnqueueWriteBuffer, -38)
    monkeypatch.setattr(library, "clEnqueueWriteBuffer", broken)
    with pytest.raises(RuntimeError, match="TfLiteGpuDelegate Invoke: OpenCL device") as caught:
        target.invoke()
    assert "INVALID_MEM_OBJECT (status -38)" in str(caught.value)
    assert isinstance(delegate.error, ExecutionError)
    broken.repair()
    assert_close(run_model(target, random(1, 4, 4, 4)), [abs(random(1, 4, 4, 4))])


def test_times_of_a_device_that_fails(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ready(opencl_device, adding(1))
    monkeypatch.setattr(opencl_library.OpenCLKernel, "enqueue", lambda *_: -54)
    x = floats()
    for measure in (
        context.profiler().durations,
        context.profiler().chain_seconds,
        lambda: context.profiler().device_seconds(Bindings.of([x], [x])),
    ):
        with pytest.raises(ExecutionError, match=r"INVALID_WORK_GROUP_SIZE \(status -54\)"):
            measure()
    context.close()


def test_phases_of_a_run(opencl_device: OpenCLDevice) -> None:
    context = ready(opencl_device, adding(3))
    x = floats()
    assert list(context.profiler().phases(Bindings.of([x], [x]))) == [
        "copy in",
        "submit",
        "wait",
        "copy out",
    ]
    context.close()


@pytest.mark.parametrize("command_buffer", [True, False])
def test_running_a_closed_context_is_an_error_not_a_crash(
    opencl_device: OpenCLDevice, command_buffer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not command_buffer:
        monkeypatch.setattr(CommandBuffer, "create", lambda *_: None)
    context = ready(opencl_device, adding(1))
    x = floats()
    call = context.bind(Bindings.of([x], [x])).run
    call()
    context.close()
    for late in (call, lambda: run(context, [x])):
        with pytest.raises(
            ExecutionError, match=r"This partition was released\. Create a new inter"
        ):
            late()


def test_an_address_that_is_missing_is_an_error(opencl_device: OpenCLDevice) -> None:
    context = ready(opencl_device, adding(1))
    nowhere = HostBuffer(ctypes.c_void_p(), 4 * FLOATS)
    call = context.bind(Bindings((nowhere,), (nowhere,))).run
    with pytest.raises(ExecutionError, match=r"INVALID_VALUE \(status -30\)"):
        call()
    context.close()


def test_contexts_that_nobody_closes_release_their_kernels(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    real = opencl_library.library().clReleaseKernel
    monkeypatch.setattr(
        opencl_library.library(),
        "clReleaseKernel",
        lambda handle: released.append(handle.value) or real(handle),  # type: ignore[func-returns-value]
    )
    context = ready(opencl_device, adding(3))
    del context
    assert len(set(released)) == 3


def test_a_kernel_that_is_not_in_the_program(opencl_device: OpenCLDevice) -> None:
    with pytest.raises(ExecutionError, match=r"clCreateKernel\(gone\) fails with INVALID_KERNEL_N"):
        ready(opencl_device, program([kernel("here", BODY)], [launch("gone", 1, 0)], [0], [1]))


def test_a_kernel_with_too_many_buffers(opencl_device: OpenCLDevice) -> None:
    launched = launch("here", 1, 0, cell(2))
    with pytest.raises(ExecutionError, match=r"clSetKernelArg\(here, 4\) fails with INVALID_ARG_I"):
        ready(opencl_device, program([kernel("here", BODY)], [launched], [0], [1]))


RUNNING = ("opencl/submission.py", "opencl/context.py", "buffers.py", "native_calls.py")


@pytest.mark.skipif(not CAN_INTERRUPT, reason="this Python does not tell enough")
@pytest.mark.parametrize("limit", [None, 10.0])
def test_an_interrupt_at_any_place_of_a_run(
    opencl_device: OpenCLDevice, limit: float | None
) -> None:
    """The next run is correct, and the interrupted run writes nothing later."""
    context = ready(opencl_device, adding(3))
    context.timeout = limit
    x, result = floats(), np.zeros(FLOATS, np.float32)
    call = context.bind(Bindings.of([x], [result])).run
    for number in itertools.count():
        interrupts = Interrupts(number, RUNNING)
        try:
            interrupts.run(call)
        except KeyboardInterrupt:
            seen = result.copy()
            x[:] = number
            np.testing.assert_array_equal(result, seen, err_msg=interrupts.place)
            call()
            np.testing.assert_array_equal(result, x + 3, err_msg=interrupts.place)
        if not interrupts.place:
            assert number > 3
            break
    context.close()


@pytest.mark.skipif(not CAN_INTERRUPT, reason="this Python does not tell enough")
def test_an_interrupt_at_any_place_of_a_context(opencl_device: OpenCLDevice) -> None:
    files = tuple(
        f"{name}.py"
        for name in ("opencl/context", "opencl/executable", "opencl/library", "native_handles")
    )
    wanted = adding(2)
    ready(opencl_device, wanted).close()
    gc.collect()  # what earlier tests left
    before = opencl_device.context.reference_count
    for number in itertools.count(0, 5):
        interrupts = Interrupts(number, files)
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.run(lambda: ready(opencl_device, wanted).close())
        if opencl_device.context.reference_count != before:
            gc.collect()  # an error and its frames hold each other, in whatever generation
        assert opencl_device.context.reference_count == before, interrupts.place
        if not interrupts.place:
            assert number > 50
            break


SLOW = """\
    float x = LOAD1_F32(src, 0);
    for (int i = 0; i < 10000000; ++i) x = x * 0.5f + 1.0f;
    STORE1_F32(dst, GLOBAL_X, x);
"""


def test_a_kernel_that_takes_too_long(opencl_device: OpenCLDevice) -> None:
    """The device is abandoned; its late writes do not reach user arrays."""
    slow = Launch("slow", (cell(1), cell(0)), (64, 1, 1), (64, 1, 1))
    wanted = program([kernel("slow", SLOW, vector=False)], [slow], [0], [1])
    context = ready(opencl_device, wanted)
    context.timeout = 0.02
    source, result = floats(), np.full(FLOATS, -7, np.float32)
    call = context.bind(Bindings.of([source], [result])).run
    with pytest.raises(InvokeTimeoutError, match=r"has not ended an invoke after 20 ms"):
        call()
    assert opencl_device.lost
    for late in (call, context.read_memory, lambda: ready(opencl_device, wanted)):
        with pytest.raises(DeviceLostError, match="is lost: it failed before"):
            late()
    context.close()
    del call, context
    assert (result == -7).all()
    anew = OpenCLBackend().open(0)
    assert anew is not opencl_device
    context = ready(anew, adding(1))
    np.testing.assert_array_equal(run(context, [source])[0], source + 1)
    context.close()
    assert (result == -7).all()


def test_a_status_without_a_name() -> None:
    assert opencl_library.status_name(-9999) == "an error (status -9999)"


def test_an_opencl_library_that_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(ctypes, "WinDLL", refuse, raising=False)
    with pytest.raises(ExecutionError, match="library that pyopencl uses cannot be found"):
        opencl_library._load("pyopencl")


@pytest.mark.parametrize("kind", [MemoryKind.PINNED, MemoryKind.DEVICE])
def test_buffers_that_cannot_be_had(opencl_device: OpenCLDevice, kind: MemoryKind) -> None:
    nbytes = 1 << 50
    with pytest.raises(DeviceMemoryError, match=rf"cannot provide {nbytes} bytes: .*smaller batch"):
        opencl_device.allocate(nbytes, kind)


def test_memory_that_cannot_be_mapped(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise cl.MemoryError("enqueue_map_buffer failed: OUT_OF_HOST_MEMORY")

    monkeypatch.setattr(cl, "enqueue_map_buffer", refuse)
    with pytest.raises(DeviceMemoryError, match="cannot provide 64 bytes: enqueue_map_buffer"):
        opencl_device.allocate(64, MemoryKind.PINNED)


def test_copies_of_a_buffer_that_fail(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise cl.LogicError("clEnqueueReadBuffer failed: INVALID_VALUE")

    buffer = opencl_device.allocate(64)
    monkeypatch.setattr(cl, "enqueue_copy", refuse)
    for fails in (buffer.read, lambda: buffer.write(np.zeros(4))):
        with pytest.raises(ExecutionError, match="cannot copy a buffer: clEnqueueReadBuffer"):
            fails()
    buffer.close()


def test_buffers_of_a_lost_device(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl_device, "lost", True)
    for kind in MemoryKind:
        with pytest.raises(DeviceLostError, match="is lost: it failed before"):
            opencl_device.allocate(64, kind)


def test_a_submission_that_takes_too_long(opencl_device: OpenCLDevice) -> None:
    """A timeout of `wait` abandons nothing; only the context's timeout does."""
    slow = Launch("slow", (cell(1), cell(0)), (64, 1, 1), (64, 1, 1))
    wanted = program([kernel("slow", SLOW, vector=False)], [slow], [0], [1])
    context = ready(opencl_device, wanted)
    context.timeout = 0.1
    result = np.full(FLOATS, -7, np.float32)
    event = context.submit(Bindings.of([floats()], [result]))
    assert not event.wait(timeout=0.01)
    assert (event.done(), opencl_device.lost) == (False, False)
    for _ in range(2):
        with pytest.raises(InvokeTimeoutError, match=r"has not ended an invoke after 100 ms"):
            event.wait()
    assert (event.done(), opencl_device.lost) == (True, True)
    context.close()
    assert (result == -7).all()


def test_a_submission_that_fails(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandBuffer, "create", lambda *_: None)
    library = opencl_library.library()
    with monkeypatch.context() as broken:
        broken.setattr(library, "clEnqueueReadBuffer", Broken(library.clEnqueueReadBuffer, -38))
        context, result = ready(opencl_device, adding(1)), np.zeros(FLOATS, np.float32)
        with pytest.raises(
            ExecutionError, match=r"INVALID_MEM_OBJECT \(status -38\) while running"
        ):
            context.submit(Bindings.of([floats()], [result]))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()
