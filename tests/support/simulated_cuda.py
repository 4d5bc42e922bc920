"""A driver of CUDA without a GPU that computes: memory is the host's, kernels run in the emulator.

The CUDA backend itself runs on it, with its graphs, streams and copies.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cuda_emulator import call_kernel, compiled
from fake_cuda import FakeDriver, Status, install
from litegpu.backends.cuda import device as cuda
from litegpu.backends.opened import OpenDevices
from litegpu.codegen import KernelText
from litegpu.errors import KernelError
from litegpu.host import fork_safety as process

_MEMORY = 1 << 28
_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
}
_Node = tuple[Any, tuple[str, str], Any]


class SimulatedDriver(FakeDriver):
    """Counts what it hands out, as FakeDriver does, and does what it is told."""

    def __init__(self) -> None:
        """Have no memory and no kernels yet."""
        self._arrays: dict[int, npt.NDArray[np.uint8]] = {}
        self.libraries: dict[str, Any] = {}
        """Of each cubin what the emulator has made of its kernels."""
        self.names: dict[str, list[str]] = {}
        self._modules: dict[int, str] = {}
        self._nodes: dict[int, list[_Node]] = {}
        self._captured: list[_Node] = []
        self._running = threading.Lock()
        self._ran = 0
        """Kernels of the last graph."""
        super().__init__()

    def _functions(self) -> dict[str, Any]:
        own = super()._functions()
        for name in ("cuMemAlloc", "cuMemFree", "cuModuleLoadData", "cuStreamEndCapture"):
            self.__dict__[f"_plain_{name}"] = own[name]
        instantiate = own["cuGraphInstantiate"]

        def instantiated(graph: int, flags: int) -> tuple[Status, int]:
            status, number = instantiate(graph, flags)
            self._nodes[number] = self._nodes[graph]
            return status, number

        return {
            **own,
            "cuDeviceTotalMem": lambda _index: (Status.CUDA_SUCCESS, _MEMORY),
            "cuDeviceGetAttribute": self._attribute,
            "cuMemAlloc": self._allocate,
            "cuMemFree": self._free,
            "cuMemsetD8Async": self._fill,
            "cuMemcpyHtoD": self._copy,
            "cuMemcpyDtoH": self._copy,
            "cuMemcpyDtoD": self._copy,
            "cuMemcpyAsync": self._copy,
            "cuModuleLoadData": self._load,
            "cuModuleGetFunctionCount": lambda module: (
                Status.CUDA_SUCCESS,
                len(self.names[self._modules[module]]),
            ),
            "cuModuleEnumerateFunctions": self._enumerate,
            "cuFuncGetName": lambda function: (Status.CUDA_SUCCESS, function[1].encode()),
            "cuLaunchKernelEx": self._capture_kernel,
            "cuStreamEndCapture": self._end_capture,
            "cuGraphInstantiate": instantiated,
            "cuGraphLaunch": self._run_graph,
            "cuEventElapsedTime": lambda *_: (Status.CUDA_SUCCESS, 0.01 * bool(self._ran)),
        }

    @staticmethod
    def _attribute(name: str, _index: int) -> tuple[Status, int]:
        known = name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return Status.CUDA_SUCCESS, _ATTRIBUTES.get(known, 9)

    def _allocate(self, nbytes: int) -> tuple[Status, int]:
        if nbytes > _MEMORY:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        array = np.empty(nbytes + 256, np.uint8)
        address = int(array.ctypes.data) + -array.ctypes.data % 256
        self._arrays[address] = array
        self.live[address] = "cuMemAlloc"
        return Status.CUDA_SUCCESS, address

    def _free(self, address: int) -> tuple[Status]:
        (status,) = self.__dict__["_plain_cuMemFree"](address)
        self._arrays.pop(address, None)
        return (status,)

    @staticmethod
    def _fill(address: int, value: int, nbytes: int, _stream: int) -> tuple[Status]:
        ctypes.memset(address, value, nbytes)
        return (Status.CUDA_SUCCESS,)

    @staticmethod
    def _copy(target: int, source: int, nbytes: int, *_stream: int) -> tuple[Status]:
        ctypes.memmove(target, source, nbytes)
        return (Status.CUDA_SUCCESS,)

    def _load(self, cubin: bytes) -> tuple[Status, int]:
        status, module = self.__dict__["_plain_cuModuleLoadData"](cubin)
        self._modules[module] = cubin.decode()
        return status, module

    def _enumerate(self, _count: int, module: int) -> tuple[Status, list[tuple[str, str]]]:
        cubin = self._modules[module]
        return Status.CUDA_SUCCESS, [(cubin, name) for name in self.names[cubin]]

    def _capture_kernel(
        self, config: Any, function: tuple[str, str], arguments: Any, _extra: int
    ) -> tuple[Status]:
        assert self.capturing, "kernels run as parts of graphs only"
        self._captured.append((config, function, arguments))
        return (Status.CUDA_SUCCESS,)

    def _end_capture(self, stream: int) -> tuple[Status, int]:
        status, graph = self.__dict__["_plain_cuStreamEndCapture"](stream)
        self._nodes[graph], self._captured = self._captured, []
        return status, graph

    def _run_graph(self, graph: int, stream: int) -> tuple[Status]:
        self._launch(graph, stream)
        self._ran = len(self._nodes[graph])
        with self._running:  # the emulator has one set of stacks
            for config, (cubin, name), (pointers, _) in self._nodes[graph]:
                grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
                block = (config.blockDimX, config.blockDimY, config.blockDimZ)
                call_kernel(self.libraries[cubin], name, pointers, grid, block)
        return (Status.CUDA_SUCCESS,)

    def compile_kernels(self, kernels: Sequence[KernelText]) -> list[bytes]:
        """Stand in for NVRTC."""
        cubin = str(len(self.libraries))
        try:
            self.libraries[cubin] = compiled(tuple(kernels)) if kernels else None
        except RuntimeError as error:
            logs = {kernel.name: _log(kernel) for kernel in kernels}
            logs = {name: log for name, log in logs.items() if log}
            raise KernelError("The emulator", logs) from error
        self.names[cubin] = [kernel.name for kernel in kernels]
        return [cubin.encode()]


def _log(kernel: KernelText) -> str:
    """Return what the compiler says of a kernel by itself, nothing where it compiles."""
    try:
        compiled((kernel,))
    except RuntimeError as error:
        return str(error)
    return ""


class _SimulatedCompiler:
    """Stands in for cuda_compiler.KernelCompiler: it compiles once all kernels are there."""

    def __init__(
        self, driver: SimulatedDriver, *_: object, fast_compile: bool = False, **__: object
    ) -> None:
        self.cubins = driver.compile_kernels
        self.fast_compiled = fast_compile

    def __enter__(self) -> _SimulatedCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, kernels: int) -> None:
        """Start nothing."""

    def add(self, kernel: KernelText) -> None:
        """Wait for all."""

    def flush(self) -> None:
        """Wait for all."""

    def close(self) -> None:
        """Have begun nothing."""


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """Let the CUDA backend run on a simulated driver; no device is open on it."""
    driver = SimulatedDriver()
    install(monkeypatch, driver)
    monkeypatch.setattr(cuda, "KernelCompiler", partial(_SimulatedCompiler, driver))
    monkeypatch.setattr(process, "_openers", dict(process._openers))
    monkeypatch.setattr(cuda, "_opened", OpenDevices("CUDA", cuda._open))
    return driver
