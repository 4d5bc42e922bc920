"""Devices that fail for good, and invokes that take too long, on every backend."""

from __future__ import annotations

import pytest

from litegpu import backends
from robustness.programs import on_every_backend, run_program

LOSE = {
    "cuda": """
from litegpu.backends import cuda_submission
def fail(calls, real=cuda_submission.together):
    results = real(calls)
    results[1] = 700
    return results
def lose(delegate):
    cuda_submission.together = fail
def recover():
    cuda_submission.together = fail.__defaults__[0]
""",
    "opencl": """
from litegpu.backends import opencl_submission
def fail(calls, real=opencl_submission.together):
    return [*real(calls)[1:], -5]
def lose(delegate):
    opencl_submission.together = fail
def recover():
    opencl_submission.together = fail.__defaults__[0]
""",
    "webgpu": """
def lose(delegate):
    delegate._device.device.destroy()
def recover():
    pass
""",
}
"""For each backend what makes a device fail for good, as far as litegpu can tell."""
on_each_that_is_lost = pytest.mark.parametrize(
    "backend", [mark for mark in on_every_backend.args[1] if mark in LOSE]
)


@on_each_that_is_lost
def test_after_a_loss_a_new_interpreter_works(backend: str) -> None:
    source = f"""
{LOSE[backend]}
from litegpu import DeviceLostError, ExecutionError
delegate = GpuDelegate()
target, other = (interpreter(model, delegate) for _ in range(2))
expected = run(target, x)[0]
lose(delegate)
try:
    run(target, x)
    raise AssertionError("nothing failed")
except RuntimeError as error:
    assert "is lost" in str(error), error
assert isinstance(delegate.error, ExecutionError), delegate.error
recover()
try:
    run(other, x)
    raise AssertionError("a lost device worked")
except RuntimeError as error:
    assert "is lost" in str(error), error
late = GpuDelegate()
assert late._device is not delegate._device
fresh = interpreter(model, late)
assert late.report.whole_graph, late.error
assert abs(run(fresh, x)[0] - expected).max() < 1e-5
del target, other, delegate
assert abs(run(fresh, x)[0] - expected).max() < 1e-5
print("works")
"""
    ended = run_program(source, backend)
    assert (ended.code, ended.stdout.splitlines()) == (0, ["works"]), ended.stderr


NEVER = {
    "cuda": """
from litegpu.backends.cuda_submission import CUDASubmission
def hang():
    CUDASubmission.is_done = lambda self: False
""",
    "opencl": """
from litegpu.backends import opencl_submission
def hang():
    opencl_submission.wait_until = lambda done, seconds: time.sleep(seconds)
""",
}


@pytest.mark.parametrize("backend", [each for each in on_every_backend.args[1] if each in NEVER])
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
        print("opened anew")
    except LitegpuError as error:
        print("not opened anew:", str(error).replace("\\n", " "))
print("ended")
"""
    ended = run_program(source, backend)
    assert ended.code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    print(ended.stdout)
    assert lines[-1] == "ended"
    assert "opened anew" in lines[-2] or "Start a new process" in lines[-2], lines
