"""Lost devices, and invokes that exceed the timeout, on every backend."""

from __future__ import annotations

import pytest

from every_backend import on_backends
from litegpu import backends
from robustness.programs import run_program

NEVER = {
    "cuda": """
from litegpu.backends.cuda.submission import CUDASubmission
def hang():
    CUDASubmission.is_done = lambda self: False
""",
    "opencl": """
from litegpu.backends.opencl import submission as opencl_submission
def hang():
    opencl_submission.wait_until = lambda done, seconds: time.sleep(seconds)
""",
}
"""What makes a run never end."""
LOSE = {
    "cuda": """
from litegpu.backends.cuda import submission as cuda_submission
left = [0]
def fail(calls, real=cuda_submission.together):
    results = real(calls)
    if left[0]:
        left[0] -= 1
        results[1] = 700
    return results
cuda_submission.together = fail
def lose(delegate, times=1):
    left[0] = times
""",
    "opencl": """
from litegpu.backends.opencl import submission as opencl_submission
left = [0]
def fail(calls, real=opencl_submission.together):
    results = real(calls)
    if left[0]:
        left[0] -= 1
        results = [*results[1:], -5]
    return results
opencl_submission.together = fail
def lose(delegate, times=1):
    left[0] = times
""",
    "webgpu": """
def lose(delegate):
    delegate._device.device.destroy()
""",
}
"""For each backend what makes a device fail for good in its next run, as far as is known."""
on_each_that_is_lost = on_backends(LOSE)


@on_each_that_is_lost
def test_interpreters_go_on_after_a_loss(backend: str) -> None:
    """The invoke in which it happens is right, and so are all others."""
    source = f"""
{LOSE[backend]}
delegate = GpuDelegate()
target, other = (interpreter(model, delegate) for _ in range(2))
expected = run(target, x)[0]
before = delegate._device
lose(delegate)
for each in (target, target, other):
    assert abs(run(each, x)[0] - expected).max() < 1e-5
assert before.lost
assert delegate.error is None, delegate.error
late = GpuDelegate()
assert late._device is not before
fresh = interpreter(model, late)
assert late.report.whole_graph, late.error
assert abs(run(fresh, x)[0] - expected).max() < 1e-5
assert abs(run(interpreter(model, delegate), x)[0] - expected).max() < 1e-5
assert delegate._device is late._device
del target, other, delegate
assert abs(run(fresh, x)[0] - expected).max() < 1e-5
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


@on_each_that_is_lost
def test_states_are_lost_with_their_device(backend: str) -> None:
    """No invoke goes on with what a failed one has left of them."""
    source = f"""
{LOSE[backend]}
from cases.base import Sheet
from cases.lstm import Lstm
from small_models import assert_close
sheet = Sheet()
sheet.add(Lstm())
model, x = sheet.writer.build(), random(2, 4, 5)
delegate = GpuDelegate()
target = interpreter(model, delegate)
assert delegate.report.whole_graph
first, second = run(target, x), run(target, x)
lose(delegate)
try:
    run(target, x)
    raise AssertionError("nothing failed")
except RuntimeError as error:
    assert (
        "states 'variable', 'variable' were lost with the device. Call reset_all"
    ) in str(error), error
target.reset_all_variables()
assert_close(run(target, x), first)
assert_close(run(target, x), second)
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


@on_each_that_is_lost
def test_buffers_are_lost_with_their_device_while_shapes_change(backend: str) -> None:
    """What compiles anew for a shape moves to no device that the bound buffers are not on."""
    source = f"""
{LOSE[backend]}
import numpy as np
from litegpu import DeviceLostError, TensorBuffer
from litegpu.backends import BACKENDS
delegate = GpuDelegate()
target = interpreter(model, delegate)
given, turned = target.get_input_details()[0]["index"], random(1, 7, 9, 3)
expected = reference(model, turned)[0]
memory = BACKENDS["{backend}"].open(0).allocate(x.nbytes)
delegate.bind_buffer(target, given, TensorBuffer(memory, np.float32, x.shape))
target.resize_tensor_input(given, turned.shape)
lose(delegate)
try:
    target.allocate_tensors()
    target.invoke()
    raise AssertionError("nothing failed")
except RuntimeError as error:
    assert isinstance(delegate.error, DeviceLostError), delegate.error
delegate.bind_buffer(target, given, None)
target.allocate_tensors()
target.set_tensor(given, turned)
target.invoke()
assert abs(target.get_tensor(target.get_output_details()[0]["index"]) - expected).max() < 1e-3
assert delegate.error is None
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


@on_each_that_is_lost
def test_models_go_on_after_a_loss(backend: str) -> None:
    """A CompiledModel recovers in the call in which it happens, and so do all its contexts."""
    source = f"""
{LOSE[backend]}
from litegpu import CompiledModel, DeviceLostError
target = CompiledModel.from_buffer(model, contexts=2)
assert target.is_fully_accelerated()
expected = target(x)
before = target._main.delegate._device
lose(target._main.delegate)
for _ in range(2):
    assert abs(target(x) - expected).max() < 1e-5
    assert abs(target.submit(x).result() - expected).max() < 1e-5
assert before.lost and not target._main.delegate._device.lost
lose(target._main.delegate)
futures = [target.submit(x) for _ in range(4)]
assert all(abs(each.result() - expected).max() < 1e-5 for each in futures)
inputs, outputs = target.create_input_buffers(0), target.create_output_buffers(0)
inputs[0].write(x)
lose(target._main.delegate)
try:
    target.run_by_index(0, inputs, outputs)
    target.run_by_index(0, inputs, outputs)
    raise AssertionError("nothing failed")
except DeviceLostError as error:
    assert (
        "The buffers of the run were lost with the device. Create the buffers again"
    ) in str(error), error
inputs, outputs = target.create_input_buffers(0), target.create_output_buffers(0)
inputs[0].write(x)
target.run_by_index(0, inputs, outputs)
assert abs(outputs[0].array.reshape(expected.shape) - expected).max() < 1e-5
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


@on_backends(NEVER)
def test_a_device_that_is_lost_each_time_is_an_error(backend: str) -> None:
    source = f"""
{LOSE[backend]}
from litegpu import DeviceLostError, backends
delegate = GpuDelegate()
target = interpreter(model, delegate)
expected = run(target, x)[0]
other, backends.next_after = backends.next_after, lambda info: None
lose(delegate, 1000)
for _ in range(2):
    try:
        run(target, x)
        raise AssertionError("nothing failed")
    except RuntimeError as error:
        assert "was lost 4 times in this process" in str(error), error
    assert isinstance(delegate.error, DeviceLostError), delegate.error
assert left[0] == 996
if other(delegate.device) is not None:
    backends.next_after = other
    assert abs(run(target, x)[0] - expected).max() < 1e-5
    assert delegate.device.backend != "{backend}", delegate.device
lose(delegate, 0)
assert abs(run(interpreter(model, GpuDelegate()), x)[0] - expected).max() < 1e-5
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


@on_backends(NEVER)
def test_an_invoke_that_does_not_end(backend: str) -> None:
    source = f"""
import time
{NEVER[backend]}
from litegpu import InvokeTimeoutError
delegate = GpuDelegate(invoke_timeout_ms=20_000)
target = interpreter(model, delegate)
expected = run(target, x)[0]
assert abs(expected - reference(model, x)[0]).max() < 1e-3
delegate = GpuDelegate(invoke_timeout_ms=100)
stuck = interpreter(model, delegate)
hang()
began = time.monotonic()
try:
    run(stuck, x)
    raise AssertionError("nothing failed")
except RuntimeError as error:
    assert "has not ended an invoke after 100 ms" in str(error), error
assert time.monotonic() - began < 10
assert isinstance(delegate.error, InvokeTimeoutError), delegate.error
late = GpuDelegate()
assert late._device is not delegate._device
assert abs(run(interpreter(model, late), x)[0] - expected).max() < 1e-5
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


NVIDIA = {
    "cuda": "*(float *)16 = 1.0f;",
    "opencl": "*(__global float *)16 = 1.0f;",
}
"""Writes where nothing may be written: on a CPU it would end the process."""


@pytest.mark.parametrize("backend", NVIDIA)
def test_a_kernel_that_writes_where_it_may_not(backend: str) -> None:
    """A new device works, or the error says that only a new process helps."""
    infos = [each for each in backends.list_devices() if each.backend == backend]
    if not infos or "NVIDIA" not in infos[0].platform:
        pytest.skip("needs an NVIDIA GPU")
    source = f"""
import numpy as np
from litegpu import DeviceLostError, LitegpuError
from backend_suite import Launch, cell, kernel, program, ready
from litegpu.backends.buffers import Bindings
delegate = GpuDelegate()
target = interpreter(model, delegate)
expected = run(target, x)[0]
bad = program([kernel("bad", "    {NVIDIA[backend]}")],
              [Launch("bad", (cell(1), cell(0)), (64, 1, 1), (64, 1, 1))], [0], [1])
context = ready(delegate._device, bad)
data = np.zeros(1024, np.float32)
try:
    context.run(Bindings.of([data], [data]))
    raise AssertionError("nothing failed")
except DeviceLostError as error:
    print("lost:", error)
context.close()
try:
    run(target, x)
except RuntimeError as error:
    assert "is lost" in str(error), error
for held in ((target,), ()):
    if not held:
        del target
    try:
        fresh = interpreter(model, GpuDelegate())
        assert abs(run(fresh, x)[0] - expected).max() < 1e-5
        print("opened again")
    except LitegpuError as error:
        print("not opened:", str(error).replace("\\n", " "))
print("ended")
"""
    ended = run_program(source, backend)
    assert ended.code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    print(ended.stdout)
    assert lines[-1] == "ended"
    assert "opened again" in lines[-2] or "Start a new process" in lines[-2], lines
