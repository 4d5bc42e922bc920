"""The OpenGL backend: its context and thread, its messages, its cached programs."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend_suite import ADD_ONE, adding, floats, kernel, launch, program, ready, run
from litegpu import (
    CompilationError,
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    InvokeTimeoutError,
    UnsupportedDeviceError,
    backends,
)
from litegpu.backends.buffers import Bindings
from litegpu.backends.opengl import device as opengl
from litegpu.backends.opengl import library as opengl_library
from litegpu.backends.opengl.device import OpenGLDevice
from litegpu.backends.opengl.library import NoMoreDevicesError, OpenGL
from litegpu.host.private_files import Folder
from robustness.programs import START, run_program
from small_models import assert_close, fully_convolutional, interpreter, random, reference
from small_models import run as run_model

INVALID_OPERATION, OUT_OF_MEMORY, CONTEXT_LOST = 0x0502, 0x0505, 0x0507


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
    """Make the backend search for devices again, now and after the test."""
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
    assert "OpenGL only up to 4.1, without compute shaders. Use backend='webgpu'." in reason()


def test_windows_has_one_device(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    glcontext = pytest.importorskip("glcontext")

    def no_driver() -> Any:
        def create(**_: Any) -> Any:
            raise RuntimeError("wglCreateContextAttribsARB failed")

        return create

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(glcontext, "default_backend", no_driver)
    assert "An OpenGL 4.3 context cannot be created: wglCreateContextAttribsARB failed." in reason()
    with pytest.raises(NoMoreDevicesError, match="Windows has one OpenGL device"):
        OpenGL.of_device(1)


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is Linux's way")
def test_without_the_loader(looked_for_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("glcontext")
    monkeypatch.setattr(opengl_library, "find_library", lambda name: f"lib{name}-absent.so")
    found = reason()
    assert "OpenGL is not usable: An OpenGL 4.3 context cannot be created" in found
    assert "not loaded" in found and found.count("cannot be created") == 1
    assert "apt-get install libegl1 libgl1" in found


def test_a_driver_that_lacks_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    bare = SimpleNamespace(load=lambda name: 0, release=lambda: released.append(True))
    with pytest.raises(UnsupportedDeviceError, match=r"lacks glAttachShader, .* Update the GPU's"):
        OpenGL(bare)
    assert released == [True]


def test_a_context_that_is_refused_later(device: OpenGLDevice) -> None:
    with pytest.raises(NoMoreDevicesError, match="requested device index"):
        OpenGLDevice(77, partial(OpenGL.of_device, 77), lambda _: device.info)


# The context and its thread


@pytest.mark.skipif(sys.platform != "linux", reason="EGL is Linux's way")
def test_the_context_of_an_application_stays_current(
    device: OpenGLDevice, looked_for_anew: None
) -> None:
    egl = ctypes.CDLL(find_library("EGL") or "libEGL.so.1")
    egl.eglGetCurrentContext.restype = ctypes.c_void_p
    own = OpenGL.of_device(0)  # as an application would make one, on this thread
    before = egl.eglGetCurrentContext()
    assert before
    assert backends.BACKENDS["opengl"].devices()
    context = ready(device, adding(1))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()
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
    context = ready(device, adding(1))
    (buffer, *_), calls = context.buffers.numbers, device.gl.call  # type: ignore[attr-defined]
    number, is_buffer = buffer.value, device.gl._load("glIsBuffer", ctypes.c_ubyte, ctypes.c_uint32)
    assert device.worker.call(lambda: is_buffer(number))
    del context, buffer
    assert not device.worker.call(lambda: is_buffer(number))
    assert calls is device.gl.call


def test_equal_kernels_are_compiled_once(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.worker.call(device.programs.clear)
    compile_source, sources = device.gl.compile, []

    def spy(source: str) -> int:
        sources.append(source)
        return compile_source(source)

    monkeypatch.setattr(device.gl, "compile", spy)
    first, second = ready(device, adding(1)), ready(device, adding(2))
    assert len(sources) == 1
    first.close()
    device.worker.call(device.programs.clear)
    np.testing.assert_array_equal(run(second, [floats()])[0], floats() + 1 + 1)
    is_program = device.gl._load("glIsProgram", ctypes.c_ubyte, ctypes.c_uint32)
    (number,) = (each.number for each in second.executable.programs.values())  # type: ignore[attr-defined]
    assert device.worker.call(lambda: is_program(number))
    second.close()
    device.worker.call(lambda: device.gl.call.glUseProgram(0))
    assert not device.worker.call(lambda: is_program(number)), "nothing holds it any more"


def test_a_released_partition_says_so(device: OpenGLDevice) -> None:
    context = ready(device, adding(1))
    context.close()
    with pytest.raises(ExecutionError, match="This partition was released"):
        run(context, [floats()])


@pytest.mark.parametrize("lacking", ["glBindBuffersRange", "glBufferStorage"])
def test_an_old_driver(lacking: str, device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.gl.call, lacking, None)
    context = ready(device, adding(3))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1 + 1)
    context.close()


def test_a_script_ends_with_everything_alive() -> None:
    source = """
        target = interpreter(model, GpuDelegate())
        run(target, x)
        context = ready(__import__("litegpu").backends.BACKENDS["opengl"].open(0), adding(1))
        print("last line")
    """
    start = START + "from backend_suite import adding, ready\n"
    ended = run_program(source, "opengl", start=start)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "last line\n", "")


def test_an_inherited_context_is_harmless() -> None:
    """A forked child runs, closes and deletes an interpreter, and exits."""
    source = """
        import os
        from litegpu import ForkedProcessError, backends
        opened = backends.BACKENDS["opengl"].open(0)
        first, second, third = (ready(opened, adding(1)) for _ in range(3))
        child = os.fork()
        if child == 0:
            listing = backends.BACKENDS["opengl"].devices
            for act in (lambda: run_context(first, [floats()]), listing):
                try:
                    act()
                except ForkedProcessError as error:
                    print(str(error)[:26], flush=True)
            first.close()
            del second
            raise SystemExit(3)
        print(os.waitpid(child, 0)[1] >> 8)
        np.testing.assert_array_equal(run_context(third, [floats()])[0], floats() + 1)
    """
    start = START + (
        "import numpy as np\nfrom backend_suite import adding, floats, ready, run as run_context\n"
    )
    ended = run_program(source, "opengl", start=start)
    assert (ended.code, ended.stdout, ended.stderr) == (
        *(0, "OpenGL was opened before t\n" * 2 + "3\n", ""),
    )


# Errors of the driver


def failing(
    monkeypatch: pytest.MonkeyPatch, device: OpenGLDevice, error: int, after: int = 0
) -> None:
    """Make the driver report an error after some checks without an error."""
    checks = iter([0] * after)
    monkeypatch.setattr(device.gl, "error", lambda: next(checks, error))


def test_too_little_memory(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, device, OUT_OF_MEMORY)
    wanted = r"Device opengl:0 .* cannot provide \d+ bytes: GL_OUT_OF_MEMORY \(0x0505\)\. Close"
    with pytest.raises(DeviceMemoryError, match=wanted):
        ready(device, adding(1))


def test_context_that_fails(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, device, INVALID_OPERATION, after=7)
    wanted = (
        r"failed while recording a partition: GL_INVALID_OPERATION \(0x0502\)\. Create a new inter"
    )
    with pytest.raises(ExecutionError, match=wanted):
        ready(device, adding(1))


@pytest.mark.parametrize(
    ("error", "name"), [(INVALID_OPERATION, "GL_INVALID_OPERATION"), (0x1234, "an error")]
)
def test_a_device_that_fails_while_running(
    error: int, name: str, device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ready(device, adding(1))
    with monkeypatch.context() as broken:
        failing(broken, device, error)
        wanted = rf"Device opengl:0 .* failed while running a partition: {name} \(0x{error:04X}\)"
        with pytest.raises(ExecutionError, match=wanted):
            run(context, [floats()])
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()


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
        ready(device, program([bad], [], [0], [0]))


# A device that is lost


def lose_at(moment: str, device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the driver lose the context while a partition is prepared or run; return the message."""
    after = {"allocating memory": 1, "recording a partition": 7}.get(moment, 0)
    context = ready(device, adding(1))
    with monkeypatch.context() as lost:
        failing(lost, device, CONTEXT_LOST, after)
        with pytest.raises(DeviceLostError) as caught:
            if moment == "running a partition":
                run(context, [floats()])
            elif moment == "measuring a partition":
                context.profiler().durations()
            elif moment == "reading the memory of a partition":
                context.read_memory()
            else:
                ready(device, adding(1))
    context.close()
    return str(caught.value)


@pytest.mark.parametrize(
    "moment",
    [
        "allocating memory",
        "recording a partition",
        "running a partition",
        "measuring a partition",
        "reading the memory of a partition",
    ],
)
def test_a_lost_context_is_opened_anew(
    moment: str, device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = lose_at(moment, device, monkeypatch)
    assert f"is lost: {moment}, GL_CONTEXT_LOST (0x0507). Create a new GpuDelegate" in message
    assert device.lost
    late = backends.BACKENDS["opengl"].open(0)
    assert late is not device and not late.lost
    context = ready(late, adding(1))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()


def test_a_reset_that_the_driver_tells(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ready(device, adding(1))
    failing(monkeypatch, device, INVALID_OPERATION)
    monkeypatch.setattr(device.gl.call, "glGetGraphicsResetStatus", lambda: 0x8253)
    with pytest.raises(DeviceLostError, match=r"is lost: running a partition, GL_INVALID"):
        run(context, [floats()])
    context.close()


def test_a_thread_that_has_ended(device: OpenGLDevice) -> None:
    context = ready(device, adding(1))
    device.worker.stop()
    with pytest.raises(DeviceLostError, match=r"is lost: The thread 'litegpu-opengl-0' has ended"):
        run(context, [floats()])
    context.close()
    assert backends.BACKENDS["opengl"].open(0) is not device


def test_the_next_interpreter_works_after_a_loss(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    monkeypatch.setattr(device.failures, "losses", 0)  # those of other tests are not this one's
    delegate = GpuDelegate(backend="opengl")
    target = interpreter(model, delegate)
    with monkeypatch.context() as lost:
        failing(lost, device, CONTEXT_LOST)
        assert_close(run_model(target, x), reference(model, x))
    assert device.lost and delegate.error is None
    late = GpuDelegate(backend="opengl")
    assert_close(run_model(interpreter(model, late), x), reference(model, x))
    assert late.report is not None and late.report.whole_graph


def test_a_run_that_takes_too_long(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    context, result = ready(device, adding(1)), np.zeros_like(floats())
    context.timeout = 60.0
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.timeout = 0.05
    answer = threading.Event()
    monkeypatch.setattr(device.gl, "finish_within", lambda seconds: answer.wait(60))
    wanted = (
        r"Device opengl:0 .* did not answer within invoke_timeout_ms \(50 ms\) and counts as lost"
    )
    with pytest.raises(InvokeTimeoutError, match=wanted):
        context.run(Bindings.of([floats()], [result]))
    assert device.lost
    answer.set()  # now the device answers after all: nobody's memory is written
    device.worker.join(60)
    assert not result.any()
    context.close()
    assert backends.BACKENDS["opengl"].open(0) is not device


def test_a_fence_that_is_not_reached(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ready(device, adding(1))
    context.timeout = 5.0
    monkeypatch.setattr(device.gl.call, "glClientWaitSync", lambda *_: 0x911B)
    with pytest.raises(InvokeTimeoutError, match=r"within invoke_timeout_ms \(5000 ms\)"):
        run(context, [floats()])
    assert device.lost
    context.close()


def test_a_submission_that_takes_too_long(
    device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of `wait` abandons nothing; only the context's timeout does."""
    context, result = ready(device, adding(1)), np.zeros_like(floats())
    event = context.submit(Bindings.of([floats()], [result]))
    monkeypatch.setattr(device.gl.call, "glClientWaitSync", lambda *_: 0x911B)
    assert not event.wait(timeout=0.01)
    assert (event.done(), device.lost) == (False, False)
    context.timeout = 5.0
    for _ in range(2):
        with pytest.raises(InvokeTimeoutError, match=r"within invoke_timeout_ms \(5000 ms\)"):
            event.wait()
    assert (event.done(), device.lost) == (True, True)
    assert not result.any()
    context.close()


def test_a_submission_that_fails(device: OpenGLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    context, result = ready(device, adding(1)), np.zeros_like(floats())
    bindings = Bindings.of([floats()], [result])
    for moment in ("submit", "wait"):
        event = context.submit(bindings)
        with monkeypatch.context() as broken:
            failing(broken, device, INVALID_OPERATION)
            for _ in range(2):
                with pytest.raises(ExecutionError, match="failed while running a partition"):
                    if moment == "submit":
                        context.submit(bindings)
                    else:
                        event.wait()
        context.run(bindings)
        np.testing.assert_array_equal(result, floats() + 1)
    context.close()


# Kept programs


def test_programs_are_kept_and_found_again(
    device: OpenGLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(device, adding(1)).close()
    ready(device, adding(1), Folder(str(tmp_path))).close()
    (cached,) = tmp_path.iterdir()
    assert cached.suffix == ".glbin"

    def never(_: str) -> int:
        raise AssertionError("compiled again")

    with monkeypatch.context() as again:
        again.setattr(device.gl, "compile", never)
        device.worker.call(device.programs.clear)
        context = ready(device, adding(2), Folder(str(tmp_path)))
        np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1 + 1)
        context.close()


def test_other_kernels_are_other_files(device: OpenGLDevice, tmp_path: Path) -> None:
    for name in ("one", "two"):
        ready(device, program([kernel(name, ADD_ONE)], [], [0], [0]), Folder(str(tmp_path))).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_kept_program_that_the_driver_refuses_is_replaced(
    device: OpenGLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as rubbish:
        rubbish.setattr(device.gl, "binary", lambda number: b"\0\0\0\0rubbish")
        ready(device, adding(1), Folder(str(tmp_path))).close()
    (cached,) = tmp_path.iterdir()
    refused = cached.read_bytes()
    device.worker.call(device.programs.clear)
    context = ready(device, adding(1), Folder(str(tmp_path)))
    np.testing.assert_array_equal(run(context, [floats()])[0], floats() + 1)
    context.close()
    assert [*tmp_path.iterdir()] == [cached] and cached.read_bytes() != refused


def test_a_program_under_another_kernels_name_is_not_used(
    device: OpenGLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = (ADD_ONE, ADD_ONE.replace("1.0f", "2.0f"))
    assert len({*texts}) == 2
    compiled: list[str] = []
    compile_text = device.gl.compile

    def counted(text: str) -> int:
        compiled.append(text)
        return compile_text(text)

    monkeypatch.setattr(device.gl, "compile", counted)

    def sums() -> list[Any]:
        device.worker.call(device.programs.clear)
        found = []
        for text in texts:
            one = program([kernel("add", text)], [launch("add", 1, 0)], [0], [1])
            context = ready(device, one, Folder(str(tmp_path)))
            found += run(context, [floats()])
            context.close()
        return found

    wanted = [floats() + 1, floats() + 2]
    np.testing.assert_array_equal(sums(), wanted)
    first, second = tmp_path.iterdir()
    stored = first.read_bytes(), second.read_bytes()
    first.write_bytes(stored[1])
    second.write_bytes(stored[0])
    for total in (4, 4):
        np.testing.assert_array_equal(sums(), wanted)
        assert len(compiled) == total, "both were repaired once"
