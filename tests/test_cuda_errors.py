"""What the CUDA backend says when something is missing or fails; needs no GPU."""

from __future__ import annotations

import ctypes
import enum
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu import CompilationError, MissingDependencyError, UnsupportedDeviceError, backends
from litegpu.backends import cuda, cuda_driver, cuda_presence, cuda_recording
from litegpu.backends.base import Program, Slot
from litegpu.backends.cuda_recording import CUDARecording
from litegpu.codegen import Argument, KernelText
from litegpu.codegen.cuda import CUDADialect, dynamic_shared_bytes
from litegpu.errors import CudaError, DeviceMemoryError


class Status(enum.IntEnum):
    """Status codes as the bindings have them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100


def gives(*results: Any, status: Status = Status.CUDA_SUCCESS) -> Any:
    def function(*_: Any) -> tuple[Any, ...]:
        return (status, *results)

    return function


def fake_driver(**functions: Any) -> SimpleNamespace:
    """A driver with one GPU of compute capability 9.0, some of its functions replaced."""
    attributes = SimpleNamespace(
        **{
            f"CU_DEVICE_ATTRIBUTE_{name}": name
            for name in (
                "COMPUTE_CAPABILITY_MAJOR",
                "COMPUTE_CAPABILITY_MINOR",
                "MULTIPROCESSOR_COUNT",
                "MAX_THREADS_PER_BLOCK",
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            )
        }
    )

    def attribute(name: str, _index: int) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, {"COMPUTE_CAPABILITY_MINOR": 0}.get(name, 9)

    defaults = {
        "CUdevice_attribute": attributes,
        "cuInit": gives(),
        "cuDeviceGetCount": gives(1),
        "cuDeviceGetName": gives(b"Test GPU\0\0"),
        "cuDeviceTotalMem": gives(1 << 30),
        "cuDriverGetVersion": gives(13000),
        "cuDeviceGetAttribute": attribute,
        "cuDevicePrimaryCtxRetain": gives(7),
        "cuCtxPushCurrent": gives(),
        "cuCtxPopCurrent": gives(7),
        "cuStreamCreate": gives(8),
        "cuStreamDestroy": gives(),
        "cuGetErrorString": gives(b"no more memory"),
    }
    return SimpleNamespace(**{**defaults, **functions})


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that puts a fake driver in place."""

    def install(**functions: Any) -> None:
        fake = fake_driver(**functions)
        for name, function in vars(fake).items():
            if callable(function):
                function.__name__ = name
        for module in (cuda, cuda_driver, cuda_recording):
            monkeypatch.setattr(module, "driver", lambda: fake)

    return install


def test_without_the_bindings_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver.driver.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[cuda13\]'"):
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
    assert ("No NVIDIA driver is found here" in error) == (version is None)


def test_without_nvrtc_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_driver._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingDependencyError, match=r"Compiling CUDA kernels needs .*cuda-nvrtc"):
        cuda_driver.compile_source("", ())
    cuda_driver._nvrtc.cache_clear()


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
    assert info.tensor_cores
    assert info.clusters
    assert info.warp_groups
    assert not info.software


def test_errors_name_the_call_the_code_and_the_explanation(driver: Any) -> None:
    driver()
    failing = gives(status=Status.CUDA_ERROR_OUT_OF_MEMORY)
    failing.__name__ = "cuMemAlloc"
    with pytest.raises(
        CudaError, match=r"cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY \(2\): no more memory"
    ):
        cuda_driver.call(failing, 1)


def recording(driver: Any, **functions: Any) -> CUDARecording:
    driver(**functions)
    (info,) = cuda.CUDABackend().devices()
    empty = Program((), (), 64, np.zeros(0, np.uint8), (Slot(False, 0, 4),), ())
    return CUDARecording(cuda.CUDADevice(info), empty, [])


def test_too_little_memory(driver: Any) -> None:
    with pytest.raises(DeviceMemoryError, match=r"Test GPU cannot provide 64 bytes.*smaller batch"):
        recording(driver, cuMemAlloc=gives(status=Status.CUDA_ERROR_OUT_OF_MEMORY))


def test_a_ready_call_that_fails(driver: Any) -> None:
    answers = [0, 100]
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _stream: answers.pop(0))
    address = ctypes.cast(function, ctypes.c_void_p).value
    driver(cuGetProcAddress=gives(address, None), CUresult=Status, cuStreamSynchronize=gives())
    synchronize = cuda_driver.ready("cuStreamSynchronize", 8)
    synchronize()
    with pytest.raises(CudaError, match=r"cuStreamSynchronize returned CUDA_ERROR_NO_DEVICE"):
        synchronize()


def test_a_kernel_that_its_module_lacks(driver: Any) -> None:
    driver(cuModuleLoadData=gives(3), cuModuleGetFunctionCount=gives(0))
    holder = SimpleNamespace(_cu=cuda_driver.driver(), _modules=[])
    text = KernelText("wanted", (), (1, 1, 1), (), "")
    with pytest.raises(CudaError, match=r"lack the kernels \['wanted'\]"):
        CUDARecording._find_functions(holder, (text,))  # type: ignore[arg-type]


def test_a_kernel_that_does_not_compile_is_named(driver: Any) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    driver()
    (info,) = cuda.CUDABackend().devices()
    arguments = (Argument("dst", "F32", True, True),)
    text = KernelText("bad_one", arguments, (1, 1, 1), (), "    this is no kernel;\n")
    program = Program((text,), (), 64, np.zeros(0, np.uint8), (), ())
    with pytest.raises(
        CompilationError, match=r"(?s)'Test GPU' refuses the kernels bad_one.*LITEGPU_DEBUG=2"
    ):
        cuda.CUDADevice(info).record(program)


def test_compiled_kernels_are_kept_where_asked(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    text = KernelText("kept", (Argument("dst", "F32", False, True),), (1, 1, 1), (), "dst[0] = 1;")
    folder = tmp_path / "cache"
    (first,) = cuda_driver.compile_kernels(CUDADialect(), [text], (8, 0), str(folder))
    (path,) = folder.iterdir()
    assert path.read_bytes() == first
    path.write_bytes(b"from the cache")
    assert cuda_driver.compile_kernels(CUDADialect(), [text], (8, 0), str(folder)) == [
        b"from the cache"
    ]


def test_large_work_group_memory_is_asked_for_at_launch() -> None:
    small = KernelText("small", (), (1, 1, 1), (("float4", "a", 3072),), "")
    large = KernelText("large", (), (1, 1, 1), (("float4", "a", 3000), ("float", "b", 500)), "")
    assert dynamic_shared_bytes(small) == 0
    assert dynamic_shared_bytes(large) == 3000 * 16 + 500 * 4
    text = CUDADialect().kernel(large)
    assert "extern __shared__" in text
    assert "float *const b = (float *)(dynamic_shared + 3000)" in text
