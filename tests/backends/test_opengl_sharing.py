"""Buffers of an application's OpenGL context; each test runs a separate program."""

from __future__ import annotations

import shutil
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from every_backend import needs_device
from litegpu import UnsupportedDeviceError, share_opengl_context
from litegpu.backends.opengl import sharing as opengl_sharing
from robustness.programs import run_program

pytest.importorskip("moderngl")
pytestmark = needs_device("opengl")

_APPLICATION = """
import litegpu, moderngl, numpy as np
from litegpu import BindingError, CompiledModel, GLBuffer, GpuDelegate, TensorBuffer
from small_models import chain, interpreter
SHAPE = (1, 4, 4, 4)
x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
application = moderngl.create_standalone_context(backend="egl")
source, result = application.buffer(x.tobytes()), application.buffer(reserve=x.nbytes)
NEGATE = '''#version 430
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Values { float values[]; };
void main() { values[gl_GlobalInvocationID.x] *= -1.0; }
'''
negate = application.compute_shader(NEGATE)
source.bind_to_storage_buffer(0)
def found(): return np.frombuffer(result.read(), np.float32).reshape(SHAPE)
def of(buffer): return TensorBuffer.of(buffer, np.float32, SHAPE)
"""
_SHARED = """
info = litegpu.share_opengl_context()
assert litegpu.share_opengl_context() == info and info in litegpu.list_devices()
here = {"backend": "opengl", "device": info.index}
"""


def runs(text: str, application: str = _APPLICATION + _SHARED) -> str:
    """Run a program that has its own OpenGL context; return its output."""
    ended = run_program(application + textwrap.dedent(text), "opengl", start="")
    assert ended.code == 0, ended.stderr
    return ended.stdout


def test_a_model_reads_and_writes_what_the_application_draws_with() -> None:
    runs("""
        model = CompiledModel.from_buffer(chain(["ABS", "EXP"]), **here)
        inputs, outputs = [of(source)], [of(GLBuffer(result.glo))]
        for sign in (1, -1, 1):
            model.run_by_index(0, inputs, outputs)
            np.testing.assert_allclose(found(), np.exp(np.abs(x)), rtol=1e-5)
            np.testing.assert_array_equal(outputs[0].read(), found())
            np.testing.assert_array_equal(inputs[0].read(), x * sign)
            result.write(np.full(SHAPE, np.nan, np.float32).tobytes())
            negate.run()
        inputs[0].write(x * 0)
        model.submit_by_index(0, inputs, outputs).result()
        assert (found() == 1).all() and application.error == "GL_NO_ERROR"
        """)


def test_runs_come_after_what_was_asked_for_just_before() -> None:
    runs("""
        model = CompiledModel.from_buffer(chain(["NEG"]), **here)
        inputs, outputs = [of(source)], [of(result)]
        for count in range(1, 9):
            for _ in range(count):
                negate.run()
                application.memory_barrier()  # what follows reads what this has written
            x = x * (-1) ** count
            model.run_by_index(0, inputs, outputs)
            np.testing.assert_array_equal(found(), -x)
        """)


def test_an_interpreter_with_bound_buffers_and_a_time_limit() -> None:
    runs("""
        delegate = GpuDelegate(invoke_timeout_ms=60000, **here)
        target = interpreter(chain(["ABS"]), delegate)
        delegate.bind_buffer(target, target.get_input_details()[0]["index"], of(source))
        delegate.bind_buffer(target, target.get_output_details()[0]["index"], of(result))
        target.invoke()
        np.testing.assert_array_equal(found(), np.abs(x))
        """)


def test_the_applications_context_may_go_before_the_model() -> None:
    runs("""
        model = CompiledModel.from_buffer(chain(["ABS"]), **here)
        inputs, outputs = [of(source)], [of(result)]
        application.release()
        model.run_by_index(0, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].read(), np.abs(x))
        """)


def test_what_cannot_be_shared_is_refused() -> None:
    output = runs(
        """
        def refused(buffer):
            try:
                of(buffer)
            except BindingError as error:
                print("refused:", error)
        refused(source)
        info = litegpu.share_opengl_context()
        refused(GLBuffer(4711))
        model = CompiledModel.from_buffer(chain(["ABS"]), backend="opengl", device=0)
        try:
            model.run_by_index(0, [of(source)], [of(result)])
        except ValueError as error:
            print("refused:", error)
        other = moderngl.create_standalone_context(backend="egl")
        refused(other.buffer(reserve=x.nbytes))
        assert litegpu.share_opengl_context() != info
        """,
        _APPLICATION,
    )
    said = [line for line in output.splitlines() if line.startswith("refused:")]
    assert len(said) == 4, output
    assert "shares no buffers with the OpenGL context that is current" in said[0]
    assert "4711 is not the name of a buffer in the current OpenGL context" in said[1]
    assert "belongs to another device" in said[2]
    assert "shares no buffers" in said[3], "the numbers of another context are others"


def test_a_lost_device_has_to_be_shared_anew() -> None:
    output = runs("""
        from litegpu.backends import BACKENDS
        BACKENDS["opengl"].open(info.index).worker.stop()
        try:
            BACKENDS["opengl"].open(info.index)
        except litegpu.UnsupportedDeviceError as error:
            print(error)
        assert litegpu.share_opengl_context().index == info.index + 1
        """)
    assert (
        "shared its buffers with an application, and is lost. Call litegpu.share_opengl" in output
    )


@pytest.mark.skipif(not shutil.which("Xvfb"), reason="no X server for tests")
def test_contexts_of_glx() -> None:
    runs(
        """
        assert opengl_sharing._GLX().current() and not opengl_sharing._EGL().current()
        model = CompiledModel.from_buffer(chain(["ABS"]), **here)
        model.run_by_index(0, [of(source)], [of(result)])
        np.testing.assert_array_equal(found(), np.abs(x))
        """,
        """
import subprocess, os
read, write = os.pipe()
server = subprocess.Popen(["Xvfb", "-displayfd", str(write)], pass_fds=[write],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.environ["DISPLAY"] = ":" + os.read(read, 16).decode().strip()
from litegpu.backends.opengl import sharing as opengl_sharing
"""
        + _APPLICATION.replace('backend="egl"', "")
        + _SHARED,
    )


def test_without_a_current_context() -> None:
    # On the thread of the tests, other libraries may have left one current.
    with (
        ThreadPoolExecutor(1) as fresh,
        pytest.raises(
            UnsupportedDeviceError, match=r"No OpenGL context is current.* context current"
        ),
    ):
        fresh.submit(share_opengl_context).result()


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is Linux's way")
@pytest.mark.parametrize("call", ["eglCreateContext", "eglMakeCurrent"])
def test_a_driver_that_refuses(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    egl = opengl_sharing._EGL()
    there = {"eglGetCurrentContext": 1, "eglGetCurrentDisplay": 1, "eglQueryContext": 1}
    there |= {"eglCreateContext": 7, "eglBindAPI": 1, "eglMakeCurrent": 1, call: 0}
    for name, result in there.items():
        monkeypatch.setitem(egl.call, name, lambda *_, result=result: result)
    monkeypatch.setattr(opengl_sharing, "_found", [egl])
    said = rf"is rejected by the driver \({call}.*must support OpenGL 4\.3, even if"
    with pytest.raises(UnsupportedDeviceError, match=said):
        opengl_sharing.share().enter()
