"""CUDA through NVIDIA's own Python packages: one CUDA graph per partition, kernels by NVRTC."""

from __future__ import annotations

from litegpu.backends.base import Backend, Device, DeviceInfo, Program, Recording
from litegpu.backends.cuda_driver import call, compile_kernels, driver
from litegpu.backends.cuda_recording import CUDARecording, transfers
from litegpu.backends.opened import OpenDevices
from litegpu.backends.process import touch
from litegpu.codegen.cuda import CUDADialect
from litegpu.errors import CompilationError, CudaError, UnsupportedDeviceError

_OLDEST = (6, 0)


class CUDABackend(Backend):
    """NVIDIA GPUs of compute capability 6.0 and up."""

    name = "cuda"
    title = "CUDA"
    package = "cuda-bindings"

    def devices(self) -> list[DeviceInfo]:
        """Return the usable GPUs in the driver's order."""
        found = [_describe(index) for index in range(_device_count())]
        usable = [info for info in found if _capability(info.index) >= _OLDEST]
        if found and not usable:
            raise UnsupportedDeviceError(
                f"{found[0].name} has compute capability {_capability(0)}; CUDA kernels need "
                f"{_OLDEST} or newer. Use backend='opencl'."
            )
        return usable

    def open(self, index: int) -> Device:
        """Return the GPU of that index, in its primary context."""
        return _opened.get(index)


def _open(index: int) -> CUDADevice:
    return CUDADevice(_describe(index))


_opened = OpenDevices(CUDABackend.title, _open)


def _device_count() -> int:
    cu = driver()
    touch(CUDABackend.title)
    try:
        call(cu.cuInit, 0)
        (count,) = call(cu.cuDeviceGetCount)
    except CudaError as error:
        raise UnsupportedDeviceError(
            f"The NVIDIA driver has no usable GPU: {error} Check that `nvidia-smi` lists one."
        ) from error
    if count == 0:
        raise UnsupportedDeviceError(
            "The NVIDIA driver lists no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES."
        )
    return int(count)


def _attribute(index: int, name: str) -> int:
    cu = driver()
    attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    (value,) = call(cu.cuDeviceGetAttribute, attribute, index)
    return int(value)


def _capability(index: int) -> tuple[int, int]:
    return (
        _attribute(index, "COMPUTE_CAPABILITY_MAJOR"),
        _attribute(index, "COMPUTE_CAPABILITY_MINOR"),
    )


def _describe(index: int) -> DeviceInfo:
    cu = driver()
    (name,) = call(cu.cuDeviceGetName, 256, index)
    (memory,) = call(cu.cuDeviceTotalMem, index)
    (version,) = call(cu.cuDriverGetVersion)
    major, minor = _capability(index)
    return DeviceInfo(
        backend="cuda",
        index=index,
        name=name.split(b"\0")[0].decode(),
        platform=f"NVIDIA CUDA, compute capability {major}.{minor}",
        driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
        software=False,
        compute_units=_attribute(index, "MULTIPROCESSOR_COUNT"),
        memory_bytes=int(memory),
        max_allocation_bytes=int(memory),
        max_work_group_size=_attribute(index, "MAX_THREADS_PER_BLOCK"),
        local_memory_bytes=_attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        half_arithmetic=True,
        buffer_alignment=256,
        max_arguments=256,
        tensor_cores=(major, minor) >= (8, 0),
        clusters=(major, minor) >= (9, 0),
        warp_groups=(major, minor) == (9, 0),
    )


class CUDADevice(Device):
    """One GPU; its primary context is shared with whatever else the process runs on it."""

    dialect = CUDADialect()

    def __init__(self, info: DeviceInfo) -> None:
        """Retain the primary context. Raises CudaError when the driver refuses."""
        self.info = info
        self.capability = _capability(info.index)
        cu = driver()
        (self.context,) = call(cu.cuDevicePrimaryCtxRetain, info.index)

    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Compile, allocate and capture. See Device.record."""
        kernels = (*program.kernels, *transfers(program))
        try:
            modules = compile_kernels(self.dialect, kernels, self.capability, cache_dir)
        except CompilationError as error:
            names = ", ".join(kernel.name for kernel in kernels)
            raise CompilationError(
                f"CUDA device '{self.info.name}' refuses the kernels {names}: {error}"
            ) from error
        return CUDARecording(self, program, modules)
