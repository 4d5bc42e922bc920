"""What only the OpenGL backend has: its context and thread, its messages, its kept programs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend_suite import ADD_ONE, adding, floats, kernel, program, run
from litegpu import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    UnsupportedDeviceError,
    backends,
)
from litegpu.backends import opengl, opengl_library
from litegpu.backends.opengl import OpenGLDevice
from litegpu.backends.opengl_library import NoMoreDevicesError, OpenGL
from small_models import assert_close, fully_convolutional, interpreter, random, reference
from small_models import run as run_model

OUT_OF_MEMORY, CONTEXT_LOST = 0x0505, 0x0507


@pytest.fixture
def device() -> OpenGLDevice:
    status = next(each for each in backends.status() if each.name == "opengl")
    if not status.devices:
        pytest.skip(f"no OpenGL device: {status.reason}")
    opened = backends.BACKENDS["opengl"].open(0)
    assert isinstance(opened, OpenGLDevice)
    return opened


@pytest.fixture
def looked_for_anew() -> Iterator[None]:
    """Let the backend look for devices again, now and after the test."""
    opengl._found.cache_clear()
    yield
    opengl._found.cache_clear()


def reason() -> str:
    return next(each for each in backends.status() if each.name == "opengl").reason


# Why there is no device


def test_without_glcontext(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "glcontext", None)
    status = next(each for each in backends.status() if each.name == "opengl")
    assert "needs the Python package 'glcontext', which is not installed" in status.reason
    assert status.remedy == "pip install 'litegpu[opengl]'"


def test_macos_has_no_compute_shaders(
    looked_for_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("glcontext")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "OpenGL 4.1, which has no compute shaders. Use backend='webgpu'." in reason()


def test_windows_has_one_device(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    glcontext = pytest.importorskip("glcontext")

    def no_driver() -> Any:
        def create(**_: Any) -> Any:
            raise RuntimeError("wglCreateContextAttribsARB failed")

        return create

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(glcontext, "default_backend", no_driver)
    assert "OpenGL 4.3 has no context: wglCreateContextAttribsARB failed." in reason()
    with pytest.raises(NoMoreDevicesError, match="Windows has one OpenGL device"):
        OpenGL(1)


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is Linux's way")
def test_without_the_loader(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("glcontext")
    monkeypatch.setattr(opengl_library, "find_library", lambda name: f"lib{name}-absent.so")
    found = reason()
    assert "OpenGL is not usable: OpenGL 4.3 has no context" in found
    assert "not loaded" in found and found.count("no context") == 1
    assert "apt-get install libegl1 libgl1" in found


def test_a_driver_that_lacks_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(load=lambda name: 0)
    monkeypatch.setattr(opengl_library, "_create", lambda number: bare)
    with pytest.raises(UnsupportedDeviceError, match=r"lacks glAttachShader, .* Update the GPU's"):
        OpenGL(0)


def test_a_context_that_is_refused_later(device: OpenGLDevice) -> None:
    with pytest.raises(NoMoreDevicesError, match="requested device index"):
        OpenGLDevice(device.info, 77)


# The context and its thread


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is Linux's way")
def test_the_context_of_an_application_stays_current(
    device: OpenGLDevice, looked_for_anew: None
) -> None:
    egl = ctypes.CDLL(find_library("EGL") or "libEGL.so.1")
    egl.eglGetCurrentContext.restype = ctypes.c_void_p
    own = OpenGL(0)  # as an application would make one, on this thread
    before = egl.eglGetCurrentContext()
    assert before
    assert backends.BACKENDS["opengl"].devices()
    recording = device.record(adding(1))
    np.testing.assert_array_equal(run(recording, [floats()])[0], floats() + 1)
    recording.close()
    assert egl.eglGetCurrentContext() == before
    assert own.text(0x1F01) == device.info.name, "and it works"
    own.close()


def test_the_gpu_delegate_runs_on_it(device: OpenGLDevice) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    for fields in ({"backend": "opengl"}, {"experimental_flags": 4}):
        delegate = GpuDelegate(**fields)
        assert delegate.device.backend == "opengl"
        assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
        assert delegate.report is not None and delegate.report.whole_graph


def test_what_is_never_closed_is_released(device: OpenGLDevice) -> None:
    recording = device.record(adding(1))
    (buffer, *_), held = recording._buffers, device.gl.call  # type: ignore[attr-defined]
    number, is_buffer = buffer.value, device.gl._load("glIsBuffer", ctypes.c_ubyte, ctypes.c_uint32)
    assert device.worker.call(lambda: is_buffer(number))
    del recording, buffer
    assert not device.worker.call(lambda: is_buffer(number))
    assert held is device.gl.call


def test_equal_kernels_are_compiled_once(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.worker.call(device.programs.clear)
    compile_source, sources = device.gl.compile, []

    def spy(source: str) -> int:
        sources.append(source)
        return compile_source(source)

    monkeypatch.setattr(device.gl, "compile", spy)
    first, second = device.record(adding(1)), device.record(adding(2))
    assert len(sources) == 1
    first.close()
    device.worker.call(device.programs.clear)
    np.testing.assert_array_equal(run(second, [floats()])[0], floats() + 1 + 1)
    is_program = device.gl._load("glIsProgram", ctypes.c_ubyte, ctypes.c_uint32)
    (number,) = (each.number for each in second._programs.values())  # type: ignore[attr-defined]
    assert device.worker.call(lambda: is_program(number))
    second.close()
    device.worker.call(lambda: device.gl.call.glUseProgram(0))
    assert not device.worker.call(lambda: is_program(number)), "nothing holds it any more"


def test_a_released_partition_says_so(device: OpenGLDevice) -> None:
    recording = device.record(adding(1))
    recording.close()
    with pytest.raises(ExecutionError, match="This partition was released"):
        run(recording, [floats()])


@pytest.mark.parametrize("lacking", ["glBindBuffersRange", "glBufferStorage"])
def test_an_old_driver(lacking: str, device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.gl.call, lacking, None)
    recording = device.record(adding(3))
    np.testing.assert_array_equal(run(recording, [floats()])[0], floats() + 1 + 1 + 1)
    recording.close()


# Errors of the driver


def failing(
    monkeypatch: pytest.MonkeyPatch, device: OpenGLDevice, error: int, after: int = 0
) -> None:
    """Let the driver report an error, after some checks without one."""
    checks = iter([0] * after)
    monkeypatch.setattr(device.gl, "error", lambda: next(checks, error))


def test_too_little_memory(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, device, OUT_OF_MEMORY)
    wanted = r"Device opengl:0 .* cannot provide \d+ bytes: GL_OUT_OF_MEMORY \(0x0505\)\. Close"
    with pytest.raises(DeviceMemoryError, match=wanted):
        device.record(adding(1))


def test_recording_that_fails(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, device, CONTEXT_LOST, after=5)
    wanted = r"Recording a partition with OpenGL fails with GL_CONTEXT_LOST \(0x0507\)\."
    with pytest.raises(ExecutionError, match=wanted):
        device.record(adding(1))


def test_a_device_that_fails_while_running(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = device.record(adding(1))
    with monkeypatch.context() as lost:
        failing(lost, device, CONTEXT_LOST)
        wanted = r"Device opengl:0 .* failed while running a partition: GL_CONTEXT_LOST \(0x0507\)"
        with pytest.raises(ExecutionError, match=wanted):
            run(recording, [floats()])
    failing(monkeypatch, device, 0x1234)
    with pytest.raises(ExecutionError, match=r"an error \(0x1234\)"):
        run(recording, [floats()])
    recording.close()


def test_the_error_of_a_call_is_read_and_forgotten(device: OpenGLDevice) -> None:
    def wrong() -> tuple[int, int]:
        device.gl.call.glUseProgram(123456)
        return device.gl.error(), device.gl.error()

    assert device.worker.call(wrong) == (0x0501, 0)


def test_the_cpu_takes_over_when_memory_is_short(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate(backend="opengl")
    failing(monkeypatch, device, OUT_OF_MEMORY)
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
    assert isinstance(delegate.error, DeviceMemoryError)


def test_the_log_of_a_refused_kernel_is_shown(device: OpenGLDevice) -> None:
    bad = kernel("bad", "    STORE4_F32(dst, GLOBAL_X, undeclared_word);\n")
    with pytest.raises(CompilationError, match=r"Device opengl:0 .*bad.*undeclared_word"):
        device.record(program([bad], [], [0], [0]))


# Kept programs


def test_programs_are_kept_and_found_again(
    device: OpenGLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.record(adding(1)).close()
    device.record(adding(1), str(tmp_path)).close()
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == ".glbin"

    def never(_: str) -> int:
        raise AssertionError("compiled again")

    with monkeypatch.context() as again:
        again.setattr(device.gl, "compile", never)
        device.worker.call(device.programs.clear)
        recording = device.record(adding(2), str(tmp_path))
        np.testing.assert_array_equal(run(recording, [floats()])[0], floats() + 1 + 1)
        recording.close()
    kept.write_bytes(b"\0\0\0\0rubbish")
    device.worker.call(device.programs.clear)
    recording = device.record(adding(1), str(tmp_path))
    np.testing.assert_array_equal(run(recording, [floats()])[0], floats() + 1)
    recording.close()


def test_other_kernels_are_other_files(device: OpenGLDevice, tmp_path: Path) -> None:
    for name in ("one", "two"):
        device.record(program([kernel(name, ADD_ONE)], [], [0], [0]), str(tmp_path)).close()
    assert len(list(tmp_path.iterdir())) == 2
