"""Errors of the CUDA backend if something is missing or fails; needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_cuda import FakeDriver, Status, gives, install
from litegpu import CompilationError, MissingDependencyError, UnsupportedDeviceError, backends
from litegpu.backends.cuda import compiler as cuda_compiler
from litegpu.backends.cuda import device as cuda
from litegpu.backends.cuda import driver as cuda_driver
from litegpu.backends.cuda import presence as cuda_presence
from litegpu.backends.cuda.executable import find_functions, transfers
from litegpu.backends.program import BufferRange, Program
from litegpu.codegen import Argument, KernelText
from litegpu.codegen.cuda import CUDADialect, dynamic_shared_bytes
from litegpu.errors import CudaError
from litegpu.host.private_files import Folder


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that puts a fake driver in place, with some of its functions replaced."""

    def put(**functions: Any) -> FakeDriver:
        fake = FakeDriver(**functions)
        install(monkeypatch, fake)
        return fake

    return put


def test_without_the_bindings_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver.driver.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    # Where there is a driver, the packages are named that go with its version.
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[cuda\d*\]'"):
        cuda.CUDABackend().devices()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan", 12000),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Rel", 13000),
        ("NVRM version: something else", 12000),
        (None, None),
    ],
)
def test_a_driver_whose_library_is_elsewhere(
    text: str | None, version: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if text:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(cuda_presence, "_LIBRARIES", ("libcuda-absent.so",))
    monkeypatch.setattr(cuda_presence, "_KERNEL_MODULE", tmp_path / "version")
    assert cuda_presence.supported_version() == version
    error = str(cuda_presence.missing_bindings("cuda-bindings", "The CUDA backend"))
    assert ("No NVIDIA driver is found here, either" in error) == (version is None)


def test_without_nvrtc_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_compiler._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependencyError, match=r"Compiling CUDA kernels needs .*cuda-nvrtc"):
        cuda_compiler.compile_source("", ())
    cuda_compiler._nvrtc.cache_clear()


def test_without_a_driver_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver.driver.cache_clear()

    def missing() -> None:
        raise RuntimeError("libcuda.so.1 is not there")

    bindings = SimpleNamespace(driver=SimpleNamespace(cuDriverGetVersion=missing))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(
        UnsupportedDeviceError, match=r"libcuda.so.1 is not there.*Install NVIDIA's"
    ):
        cuda.CUDABackend().devices()


def test_the_backend_is_listed_either_way() -> None:
    (status,) = [each for each in backends.status() if each.name == "cuda"]
    assert bool(status.devices) != bool(status.reason)


def test_a_failing_start_of_the_driver(driver: Any) -> None:
    driver(cuInit=gives(status=Status.CUDA_ERROR_NO_DEVICE))
    with pytest.raises(
        UnsupportedDeviceError, match=r"cuInit returned CUDA_ERROR_NO_DEVICE \(100\).*nvidia-smi"
    ):
        cuda.CUDABackend().devices()


@pytest.mark.parametrize(("gpus", "context"), [(1, True), (2, False), (0, False)])
def test_a_start_ahead_creates_the_context_of_the_only_gpu(
    driver: Any, gpus: int, context: bool
) -> None:
    fake = driver(cuDeviceGetCount=gives(gpus))
    called: list[str] = []
    fake.before = called.append
    assert cuda.CUDABackend().start_ahead() in (True, False)  # the thread may be done
    cuda._start_once().join()
    assert ("cuDevicePrimaryCtxRetain" in called) == context
    assert not cuda.CUDABackend().start_ahead()


def test_a_start_ahead_leaves_errors_to_the_opening(driver: Any) -> None:
    driver(cuInit=gives(status=Status.CUDA_ERROR_NO_DEVICE))
    assert cuda.CUDABackend().start_ahead() in (True, False)
    cuda._start_once().join()
    with pytest.raises(UnsupportedDeviceError, match="CUDA_ERROR_NO_DEVICE"):
        cuda.CUDABackend().devices()


def test_a_start_ahead_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver.driver.cache_clear()
    cuda._start_once.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert not cuda.CUDABackend().start_ahead()


def test_a_driver_without_a_gpu(driver: Any) -> None:
    driver(cuDeviceGetCount=gives(0))
    with pytest.raises(UnsupportedDeviceError, match=r"lists no GPU.*CUDA_VISIBLE_DEVICES"):
        cuda.CUDABackend().devices()


def test_a_gpu_that_is_too_old(driver: Any) -> None:
    driver(cuDeviceGetAttribute=gives(5))
    with pytest.raises(UnsupportedDeviceError, match=r"capability \(5, 5\).*backend='opencl'"):
        cuda.CUDABackend().devices()


def test_facts_of_a_gpu(driver: Any) -> None:
    driver()
    (info,) = cuda.CUDABackend().devices()
    assert (info.name, info.driver, info.compute_units) == ("Test GPU", "CUDA 13.0", 9)
    assert info.compute_capability == (9, 0)
    assert info.model.warp_groups
    assert not info.software


def test_errors_name_the_call_the_code_and_the_explanation(driver: Any) -> None:
    driver()
    failing = gives(status=Status.CUDA_ERROR_OUT_OF_MEMORY)
    failing.__name__ = "cuMemAlloc"
    with pytest.raises(
        CudaError, match=r"cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY \(2\): no more memory"
    ):
        cuda_driver.call(failing, 1)


def test_a_kernel_that_its_module_lacks(driver: Any) -> None:
    driver(cuModuleLoadData=gives(3), cuModuleGetFunctionCount=gives(0))
    with pytest.raises(CudaError, match=r"lack the kernels \['wanted'\]"):
        find_functions([3], ["wanted"])


def test_a_kernel_that_does_not_compile_is_named(driver: Any) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    driver()
    (info,) = cuda.CUDABackend().devices()
    arguments = (Argument("dst", "F32", True, True),)
    text = KernelText("bad_one", arguments, (1, 1, 1), (), "    this is no kernel;\n")
    program = Program((text,), (), 64, np.zeros(0, np.uint8), (), ())
    with pytest.raises(
        CompilationError, match=r"(?s)Test GPU rejects a kernel: bad_one.*LITEGPU_DEBUG=2"
    ):
        cuda.CUDADevice(info).compile(program)


def refuse(*_: Any) -> bytes:
    raise AssertionError("compiles")


def test_compiled_kernels_are_kept_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    text = KernelText("kept", (Argument("dst", "F32", False, True),), (1, 1, 1), (), "dst[0] = 1;")
    folder = tmp_path / "cache"
    compile_it = partial(
        cuda_compiler.compile_kernels, CUDADialect(), [text], (8, 0), Folder(str(folder))
    )
    (first,) = compile_it()
    (path,) = folder.iterdir()
    cached = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(cuda_compiler, "compile_source", refuse)
        assert compile_it() == [first]
        for damage in (cached[:-1], b"", cached[:-1] + bytes([cached[-1] ^ 1])):
            path.write_bytes(damage)
            with pytest.raises(AssertionError, match="compiles"):
                compile_it()
    assert compile_it() == [first]
    assert path.read_bytes() == cached, "what was damaged is replaced"


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuModuleEnumerateFunctions"])
def test_modules_of_an_artifact_are_loaded_or_refused(
    driver: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    fake = driver()
    program = Program((), (), 64, np.zeros(0, np.uint8), (BufferRange(False, 0, 4),), ())
    fake.kernels = [kernel.name for kernel in transfers(program)]
    (info,) = cuda.CUDABackend().devices()
    device = cuda.CUDADevice(info)
    assert any("nvrtc" in version.lower() for version in device.origin)
    executable = device.compile(program)
    binaries = executable.binaries()
    executable.close()
    assert len(binaries) == 1

    def refuse(*_: Any) -> bytes:
        raise AssertionError("compiles")

    monkeypatch.setattr(cuda_compiler, "compile_source", refuse)
    again = device.load(program, binaries)
    assert again.binaries() == binaries
    again.close()
    fake.before = lambda each: Status.CUDA_ERROR_INVALID_IMAGE if each == name else None
    with pytest.raises(CompilationError, match="rejects cached kernels"):
        device.load(program, binaries)
    fake.before = lambda each: Status.CUDA_ERROR_OUT_OF_MEMORY if each == name else None
    with pytest.raises(CudaError):
        device.load(program, binaries)


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuModuleEnumerateFunctions"])
def test_kept_kernels_that_do_not_load_are_made_anew(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The driver rejects the binaries, although their file is not damaged."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    fake = driver()
    program = Program((), (), 64, np.zeros(0, np.uint8), (BufferRange(False, 0, 4),), ())
    fake.kernels = [kernel.name for kernel in transfers(program)]
    (info,) = cuda.CUDABackend().devices()
    device = cuda.CUDADevice(info)
    device.compile(program, Folder(str(tmp_path))).close()
    (path,) = tmp_path.glob("*.cubin")
    compiled: list[str] = []
    compile_source = cuda_compiler.compile_source

    def compile_and_tell(source: str, options: Sequence[str]) -> bytes:
        compiled.append(source)
        return compile_source(source, options)

    monkeypatch.setattr(cuda_compiler, "compile_source", compile_and_tell)
    device.compile(program, Folder(str(tmp_path))).close()
    assert not compiled
    fails, invalid = [name], Status.CUDA_ERROR_INVALID_IMAGE
    fake.before = lambda each: invalid if fails == [each] and fails.pop() else None
    device.compile(program, Folder(str(tmp_path))).close()
    assert len(compiled) == 1
    assert path.exists(), "kept anew"
    fake.before = lambda each: invalid if each == name else None
    with pytest.raises(CudaError, match=f"{name} returned CUDA_ERROR_INVALID_IMAGE"):
        device.compile(program, Folder(str(tmp_path)))
    assert fake.live == {}


def test_large_work_group_memory_is_asked_for_at_launch() -> None:
    small = KernelText("small", (), (1, 1, 1), (("float4", "a", 3072),), "")
    large = KernelText("large", (), (1, 1, 1), (("float4", "a", 3000), ("float", "b", 500)), "")
    assert dynamic_shared_bytes(small) == 0
    assert dynamic_shared_bytes(large) == 3000 * 16 + 500 * 4
    text = CUDADialect().kernel(large)
    assert "extern __shared__" in text
    assert "float *const b = (float *)(dynamic_shared + 3000)" in text
