"""The OpenCL backend: missing packages and platforms, memory errors, command buffers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend_suite import adding, floats, program, ready, run
from litegpu import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    LitegpuError,
    MissingDependencyError,
    UnsupportedDeviceError,
    backends,
)
from litegpu.backends.execution import Executable
from litegpu.backends.opencl import build as opencl_build
from litegpu.backends.opencl import device as opencl
from litegpu.backends.opencl import library as opencl_library
from litegpu.backends.opencl.device import OpenCLDevice
from litegpu.backends.program import Program
from litegpu.host.private_files import Folder
from places import python_path
from robustness.programs import run_program
from small_models import (
    CPU_ONLY,
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
    reference,
)
from small_models import run as run_model

cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")


def changed_info(monkeypatch: pytest.MonkeyPatch, device: OpenCLDevice, **facts: Any) -> None:
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, **facts))


def test_without_pyopencl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    status = next(each for each in backends.status() if each.name == "opencl")
    assert status.devices == ()
    assert "needs the Python package 'pyopencl', which is not installed" in status.reason
    assert status.remedy == "pip install 'litegpu[opencl]'"
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[opencl\]'"):
        GpuDelegate(backend="opencl")


def test_pyopencl_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyopencl.py").write_text("raise ImportError('libOpenCL.so.1: no such file')\n")
    monkeypatch.delitem(sys.modules, "pyopencl")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedDeviceError, match="installed but cannot be loaded") as caught:
        GpuDelegate(backend="opencl")
    assert "libOpenCL.so.1: no such file" in str(caught.value)
    assert "pip install --force-reinstall pyopencl" in str(caught.value)


def test_no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[Any]:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", refuse)
    with pytest.raises(UnsupportedDeviceError, match="OpenCL finds no platform") as caught:
        GpuDelegate(backend="opencl")
    assert "PLATFORM_NOT_FOUND_KHR" in str(caught.value)
    assert "apt-get install pocl-opencl-icd" in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="the C library is not glibc")
def test_pocl_calls_its_own_llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[tuple[str, int]] = []

    def load(name: str, mode: int) -> None:
        loaded.append((name, mode & os.RTLD_DEEPBIND))
        raise OSError("no such file")  # what OpenCL's loader will say too

    (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    (tmp_path / "pocl.icd").write_text("/usr/lib/libpocl.so.2\n")
    (tmp_path / "damaged.icd").write_bytes(b"\xff pocl")
    monkeypatch.setattr(opencl_library, "_VENDORS", tmp_path)
    monkeypatch.setattr("ctypes.CDLL", load)
    opencl_library.load_pocl_isolated.__wrapped__()
    assert loaded == [("/usr/lib/libpocl.so.2", os.RTLD_DEEPBIND)]


class Platform:
    def __init__(self, name: str, *devices: Any) -> None:
        self.name = name
        self._devices = devices

    def get_devices(self) -> Sequence[Any]:
        if not self._devices:
            raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")
        return self._devices


@pytest.mark.parametrize(
    ("platforms", "names", "hint"),
    [
        ([], "none", False),
        ([Platform("One"), Platform("Two")], "One, Two", False),
        ([Platform("Portable Computing Language")], "Portable Computing Language", True),
    ],
)
def test_no_devices(
    platforms: list[Platform], names: str, hint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    with pytest.raises(UnsupportedDeviceError, match="OpenCL has no devices") as caught:
        GpuDelegate(backend="opencl")
    assert f"(platforms: {names})" in str(caught.value)
    assert ("apt-get install pocl-opencl-icd" in str(caught.value)) != hint
    assert ("set POCL_CACHE_DIR to a writable folder" in str(caught.value)) == hint


def test_gpus_come_first_then_accelerators_then_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, accelerator, gpu = (SimpleNamespace(type=1 << bit) for bit in (1, 3, 2))
    platforms = [Platform("a", cpu, accelerator), Platform("empty"), Platform("b", gpu)]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    assert opencl._raw_devices() == [gpu, accelerator, cpu]


def test_a_device_that_cannot_be_opened(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_devices: Any) -> Any:
        raise cl.RuntimeError("clCreateContext failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(cl, "Context", refuse)
    with pytest.raises(UnsupportedDeviceError, match=r"cannot be opened: .*NOT_AVAIL") as caught:
        OpenCLDevice(opencl_device.info, opencl_device._device)
    assert opencl_device.info.name in str(caught.value)
    assert "`litegpu devices` lists the others" in str(caught.value)


def test_the_cpu_takes_over_from_kernels_that_do_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = chain(["ABS", CPU_ONLY, "NEG", "EXP"]), random(1, 4, 4, 4)
    delegate = GpuDelegate(backend="opencl", max_delegated_partitions=2)
    monkeypatch.setattr(opencl.OpenCLDevice.dialect, "kernel", lambda _: "__kernel nonsense\n")
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
    assert isinstance(delegate.error, CompilationError)
    assert delegate.device.name in str(delegate.error)
    report = delegate.report
    assert report is not None and report.partitions == ()
    notes = "\n".join(report.notes)
    assert "1 node left to the CPU" in notes and "2 nodes left to the CPU" in notes
    assert "rejects a kernel: copy_" in notes
    assert "2 nodes left to the CPU: Device opencl:" in caplog.text


def test_only_the_partition_that_does_not_compile_stays_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = chain(["ABS", CPU_ONLY, "NEG", "EXP"]), random(1, 4, 4, 4)
    delegate = GpuDelegate(backend="opencl", max_delegated_partitions=2)
    dialect = opencl.OpenCLDevice.dialect
    original = type(dialect).kernel

    def no_exponentials(text: Any) -> str:
        return "nonsense\n" if "EXP4" in text.body else original(dialect, text)

    monkeypatch.setattr(dialect, "kernel", no_exponentials)
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
    assert delegate.report is not None
    assert delegate.report.delegated_nodes == [0]
    assert len(delegate.report.notes) == 1


def test_a_folder_for_compiled_kernels(tmp_path: Path) -> None:
    model, x = chain(["ABS"], (1, 2, 3, 5)), random(1, 2, 3, 5)
    delegate = GpuDelegate(
        backend="opencl",
        experimental_flags=8,
        serialization_dir=str(tmp_path / "kept"),
        model_token="m",
    )
    for _ in range(2):
        assert_close(run_model(interpreter(model, delegate), x), [abs(x)])
        assert delegate.error is None


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled."""
    found: list[str] = []
    from_source = opencl_build._from_source

    def keep(cl: Any, context: Any, source: str, options: str) -> Any:
        found.append(source)
        return from_source(cl, context, source, options)

    monkeypatch.setattr(opencl_build, "_from_source", keep)
    return found


def test_a_program_is_made_of_its_binary_again(
    opencl_device: OpenCLDevice, compiled: list[str]
) -> None:
    wanted = adding(2)
    executable = opencl_device.compile(wanted)
    context = executable.context()
    (expected,) = run(context, [floats()])
    binaries = executable.binaries()
    context.close()
    executable.close()
    again = opencl_device.load(wanted, binaries)
    assert len(compiled) == 1
    context = again.context()
    np.testing.assert_array_equal(run(context, [floats()])[0], expected)
    context.close()
    again.close()
    opencl_device.load(wanted, {}).close()
    assert len(compiled) == 2, "without binaries the program is compiled"
    ((options, binary),) = binaries.items()
    with pytest.raises(CompilationError, match="rejects a kernel: add_one: "):
        opencl_device.load(wanted, {options: b"no binary"})
    with pytest.raises(CompilationError, match="add_one: unknown options of a binary, -I/ #0\\."):
        opencl_device.load(wanted, {"-I/ #0": binary})


def test_binaries_depend_on_options_of_pocl(monkeypatch: pytest.MonkeyPatch) -> None:
    device = backends.BACKENDS["opencl"].open(0)
    before = device.origin
    monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable -DOTHER")
    assert device.origin != before


def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    source = f"""
    from litegpu.backends.opencl import build as opencl_build
    if sys.argv[1] == "again":
        def refuse(*_):
            raise AssertionError("compiles")
        opencl_build._from_source = refuse
    delegate = GpuDelegate(serialization_dir={str(tmp_path)!r}, model_token="m",
                           experimental_flags=8)
    run(interpreter(model, delegate), x)
    assert delegate.error is None, delegate.error
    assert delegate.report.whole_graph
    """
    for word in ("first", "again"):
        ended = run_program(source, "opencl", word)
        assert ended.code == 0, ended.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".artifact"}


def test_a_home_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """The home folder is read-only, as in many containers; only PoCL may need to write to it."""
    (tmp_path / "file").write_text("")
    source = """
import logging
logging.getLogger("litegpu").setLevel(logging.ERROR)
from litegpu import GpuDelegate
from small_models import fully_convolutional, interpreter, random, run
delegate = GpuDelegate(backend="opencl")
run(interpreter(fully_convolutional(), delegate), random(1, 9, 7, 3))
assert delegate.error is None, delegate.error
assert delegate.report.whole_graph
"""
    (tmp_path / "pocl").mkdir()
    home = str(tmp_path / "file" / "home")
    environment = {
        **os.environ,
        "HOME": home,
        "XDG_CACHE_HOME": home,
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        "PYTHONPATH": python_path(),
    }
    result = subprocess.run(
        [sys.executable, "-c", source],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("what", ["values", "weights"])
def test_one_buffer_is_larger_than_the_device_allows(
    opencl_device: OpenCLDevice, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = np.zeros(1 << 16, np.float32) if what == "weights" else None
    limit = 1 << 17 if what == "weights" else 1 << 14
    changed_info(monkeypatch, opencl_device, max_allocation_bytes=limit)
    wanted = (
        rf"needs \d+ bytes for {what} in one buffer, but device '.*' \(opencl\) allows {limit}\."
    )
    with pytest.raises(DeviceMemoryError, match=wanted):
        ready(opencl_device, program([], [], [0], [0], constants))


def test_the_cpu_takes_over_when_memory_is_short(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate(backend="opencl", device=0)
    changed_info(monkeypatch, opencl_device, max_allocation_bytes=64)
    assert_close(run_model(interpreter(model, delegate), x), reference(model, x))
    assert isinstance(delegate.error, DeviceMemoryError)
    assert "4 nodes left to the CPU: The partition needs" in caplog.text
    assert delegate.report is not None
    assert "all 4 operations will run on the CPU" in str(delegate.report)
    assert "4 nodes left to the CPU" in str(delegate.report)


def test_memory_that_is_short_after_a_resize_is_an_error(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fully_convolutional()
    delegate = GpuDelegate(backend="opencl", device=0)
    target = interpreter(model, delegate)
    with monkeypatch.context() as poor:
        changed_info(poor, opencl_device, max_allocation_bytes=64)
        target.resize_tensor_input(0, [5, 9, 7, 3])
        with pytest.raises(RuntimeError, match=r"bytes for .* in one buffer.*smaller batch"):
            target.allocate_tensors()
    assert isinstance(delegate.error, DeviceMemoryError)
    target.allocate_tensors()
    assert_close(run_model(target, random(5, 9, 7, 3)), reference(model, random(5, 9, 7, 3)))


REFUSALS: list[tuple[Exception, type[LitegpuError]]] = [
    (cl.MemoryError("clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE"), DeviceMemoryError),
    (cl.RuntimeError("clCreateBuffer failed: OUT_OF_RESOURCES"), DeviceMemoryError),
    (cl.LogicError("clCreateBuffer failed: INVALID_BUFFER_SIZE"), DeviceMemoryError),
    (cl.LogicError("clCreateBuffer failed: INVALID_CONTEXT"), ExecutionError),
]


@pytest.mark.parametrize(("refusal", "expected"), REFUSALS)
def test_what_a_driver_refuses_becomes_a_typed_error(
    opencl_device: OpenCLDevice,
    refusal: Exception,
    expected: type[LitegpuError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffers: list[Any] = []
    real = cl.Buffer

    def one_only(*args: Any, **kwargs: Any) -> Any:
        if buffers:
            raise refusal
        buffers.append(real(*args, **kwargs))
        return buffers[0]

    monkeypatch.setattr(cl, "Buffer", one_only)
    text: dict[type[LitegpuError], str] = {
        DeviceMemoryError: r"cannot provide \d+ bytes: .*Close other programs",
        ExecutionError: r"cannot record the partition: .*`litegpu devices` lists",
    }
    with pytest.raises(expected, match=text[expected]) as caught:
        ready(opencl_device, program([], [], [0], [0], floats()))
    assert opencl_device.info.name in str(caught.value)
    with pytest.raises(cl.LogicError):  # already released
        buffers[0].release()


@pytest.mark.parametrize("alignment", [16, 512, 8192])
def test_every_range_begins_where_the_device_allows(
    opencl_device: OpenCLDevice, alignment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Program] = []
    compile_program = opencl_device.compile

    def keep(wanted: Program, cache_dir: Folder | None = None) -> Executable:
        recorded.append(wanted)
        return compile_program(wanted, cache_dir)

    at_least = max(alignment, opencl_device.info.buffer_alignment)
    changed_info(monkeypatch, opencl_device, buffer_alignment=at_least)
    monkeypatch.setattr(opencl_device, "compile", keep)
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    target = interpreter(model, GpuDelegate(backend="opencl", device=0))
    assert_close(run_model(target, x), reference(model, x))
    ranges = [one for launched in recorded[0].launches for one in launched.ranges]
    assert any(one.constant and one.offset for one in ranges)
    assert all(one.offset % alignment == 0 for one in ranges)
