"""A CUDA driver without a GPU, which counts allocations and injects failures."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu.backends.cuda import arrays as cuda_arrays
from litegpu.backends.cuda import buffers as cuda_buffers
from litegpu.backends.cuda import context as cuda_context
from litegpu.backends.cuda import device as cuda
from litegpu.backends.cuda import driver as cuda_driver
from litegpu.backends.cuda import executable as cuda_executable
from litegpu.backends.cuda import occupancy as cuda_spread
from litegpu.backends.cuda import profile as cuda_profile
from litegpu.backends.cuda import submission as cuda_submission

CONTEXT = 7
"""The primary context."""


class Status(enum.IntEnum):
    """Status codes as the bindings have them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


RELEASES = {
    "cuStreamCreate": "cuStreamDestroy",
    "cuModuleLoadData": "cuModuleUnload",
    "cuMemAlloc": "cuMemFree",
    "cuMemHostAlloc": "cuMemFreeHost",
    "cuStreamEndCapture": "cuGraphDestroy",
    "cuGraphInstantiate": "cuGraphExecDestroy",
    "cuEventCreate": "cuEventDestroy",
}
"""What makes handles, and what releases them."""
_ENDS = {*RELEASES.values(), "cuCtxPopCurrent"}


def gives(*results: Any, status: Status = Status.CUDA_SUCCESS) -> Any:
    """Return a function of the bindings that always gives the same."""

    def function(*_: Any) -> tuple[Any, ...]:
        return (status, *results)

    return function


def _names(prefix: str, *names: str) -> SimpleNamespace:
    return SimpleNamespace(**{f"{prefix}_{name}": name for name in names})


class FakeDriver:
    """The module `cuda.bindings.driver`, with one GPU of compute capability 9.0.

    Functions that are given replace its own. `before` is called with the name of each function
    before it does anything: it may raise, or return the status to fail with.
    """

    CUresult = Status
    CUlaunchAttributeID = _names(
        "CU_LAUNCH_ATTRIBUTE", "PROGRAMMATIC_STREAM_SERIALIZATION", "CLUSTER_DIMENSION"
    )
    CUstreamCaptureMode = _names("CU_STREAM_CAPTURE_MODE", "THREAD_LOCAL", "RELAXED")
    CUfunction_attribute = _names(
        "CU_FUNC_ATTRIBUTE",
        "MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "SHARED_SIZE_BYTES",
        "NUM_REGS",
        "MAX_THREADS_PER_BLOCK",
    )
    CUdevice_attribute = _names(
        "CU_DEVICE_ATTRIBUTE",
        "COMPUTE_CAPABILITY_MAJOR",
        "COMPUTE_CAPABILITY_MINOR",
        "MULTIPROCESSOR_COUNT",
        "L2_CACHE_SIZE",
        "MAX_THREADS_PER_BLOCK",
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "PCI_DOMAIN_ID",
        "PCI_BUS_ID",
        "PCI_DEVICE_ID",
    )
    CUpointer_attribute = _names("CU_POINTER_ATTRIBUTE", "DEVICE_ORDINAL")
    CUlaunchConfig = staticmethod(lambda: SimpleNamespace(numAttrs=0))
    CUlaunchAttribute = staticmethod(
        lambda: SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))
    )
    CUcontext = int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __init__(self, **functions: Any) -> None:
        """Put `functions` in the place of its own."""
        self.before: Callable[[str], Status | None] = lambda _name: None
        self.calls: list[str] = []
        self.live: dict[int, str] = {}
        """The function that made each handle which is not released."""
        self.contexts: list[int] = []
        """The stack of contexts of this thread."""
        self.capturing = False
        self.faults: list[str] = []
        """What no caller should do."""
        self.kernels: Sequence[str] = ()
        """What every module has."""
        self._numbers = itertools.count(1000)
        self._memory: dict[int, Any] = {}
        self._native: list[Any] = []
        self._own = {**self._functions(), **functions}
        for name in self._own:
            setattr(self, name, self._named(name))

    def _functions(self) -> dict[str, Any]:
        def attribute(name: str, _index: int) -> tuple[Status, int]:
            known = {"COMPUTE_CAPABILITY_MINOR": 0, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10}
            return Status.CUDA_SUCCESS, known.get(name, 9)

        def function_attribute(name: str, _function: object) -> tuple[Status, int]:
            return Status.CUDA_SUCCESS, {"MAX_THREADS_PER_BLOCK": 1024}.get(name, 32)

        idle: tuple[str, ...] = (
            "cuInit",
            "cuMemsetD8Async",
            "cuMemcpyHtoD",
            "cuMemcpyDtoH",
            "cuMemcpyDtoD",
            "cuFuncSetAttribute",
        )
        idle += ("cuGraphUpload", "cuStreamSynchronize", "cuStreamQuery", "cuEventRecord")
        idle += ("cuEventSynchronize", "cuStreamWaitEvent")
        idle += ("cuLaunchKernelEx", "cuDevicePrimaryCtxReset", "cuMemcpyAsync")
        return {
            **{name: gives() for name in idle},
            **{make: self._creator(make) for make in RELEASES},
            **{release: self._releaser(make) for make, release in RELEASES.items()},
            "cuDeviceGetCount": gives(1),
            "cuDeviceGetName": gives(b"Test GPU\0\0"),
            "cuDeviceTotalMem": gives(1 << 30),
            "cuDriverGetVersion": gives(13000),
            "cuDeviceGetAttribute": attribute,
            "cuDevicePrimaryCtxRetain": gives(CONTEXT),
            "cuGetErrorString": gives(b"no more memory"),
            "cuCtxPushCurrent": self._push,
            "cuCtxPopCurrent": self._pop,
            "cuCtxCreate": lambda *_: (Status.CUDA_SUCCESS, next(self._numbers)),
            "cuStreamBeginCapture": self._begin,
            "cuGraphLaunch": self._launch,
            "cuEventElapsedTime": gives(0.01),
            "cuPointerGetAttribute": gives(0),
            "cuFuncGetAttribute": function_attribute,
            "cuOccupancyMaxActiveClusters": gives(1 << 10),
            "cuThreadExchangeStreamCaptureMode": gives("THREAD_LOCAL"),
            "cuModuleGetFunctionCount": lambda _module: (Status.CUDA_SUCCESS, len(self.kernels)),
            "cuModuleEnumerateFunctions": lambda *_: (Status.CUDA_SUCCESS, list(self.kernels)),
            "cuFuncGetName": lambda function: (Status.CUDA_SUCCESS, function.encode()),
            "cuGetProcAddress": self._address,
        }

    def _named(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in _ENDS:  # what fails to release something has released it
                result = self._own[name](*arguments)
                status = self.before(name)
                return result if status is None else (status, *result[1:])
            fails = True
            try:
                status = self.before(name)
                fails = status is not None
            finally:
                if fails and name == "cuStreamEndCapture":
                    self.capturing = False
            return self._own[name](*arguments) if status is None else (status, None)

        call.__name__ = name
        return call

    def _from_c(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Call a function as C does: nothing is raised through it."""
        self.calls.append(name)
        failing = None
        with contextlib.suppress(BaseException):
            failing = self.before(name)
        if failing is not None and name not in _ENDS:
            return int(failing), None
        status, *results = self._own[name](*arguments)
        return int(status if failing is None else failing), (*results, None)[0]

    def _creator(self, name: str) -> Any:
        def make(*arguments: Any) -> tuple[Status, int]:
            if name == "cuStreamEndCapture":
                if not self.capturing:
                    return Status.CUDA_ERROR_INVALID_VALUE, 0
                self.capturing = False
            number = next(self._numbers)
            if name == "cuMemHostAlloc":
                memory = ctypes.create_string_buffer(arguments[0])
                number = ctypes.addressof(memory)
                self._memory[number] = memory
            self.live[number] = name
            return Status.CUDA_SUCCESS, number

        return make

    def _releaser(self, producer: str) -> Any:
        def release(handle: int) -> tuple[Status]:
            if self.live.get(handle) != producer:
                self.faults.append(f"{RELEASES[producer]}({handle}): {self.live.get(handle)}")
                return (Status.CUDA_ERROR_INVALID_HANDLE,)
            del self.live[handle]
            return (Status.CUDA_SUCCESS,)

        return release

    def _push(self, context: int) -> tuple[Status]:
        self.contexts.append(int(context))
        return (Status.CUDA_SUCCESS,)

    def _pop(self, *_: Any) -> tuple[Status, int]:
        if not self.contexts:
            self.faults.append("a context too many was popped")
            return Status.CUDA_ERROR_INVALID_VALUE, 0
        return Status.CUDA_SUCCESS, self.contexts.pop()

    def _begin(self, *_: Any) -> tuple[Status]:
        self.capturing = True
        return (Status.CUDA_SUCCESS,)

    def _launch(self, graph: int, _stream: int) -> tuple[Status]:
        if self.capturing or self.live.get(graph) != "cuGraphInstantiate":
            self.faults.append(f"launch of {graph}, while capturing: {self.capturing}")
        return (Status.CUDA_SUCCESS,)

    def _address(self, name: bytes, version: int, *_: Any) -> tuple[Status, int]:
        """Return a function of C's that does the same."""
        own = name.decode()
        if own == "cuCtxCreate" and version >= 11040:
            raise AssertionError("since then it has more arguments")
        counts = {"cuCtxCreate": 3, "cuGraphLaunch": 2, "cuMemcpyAsync": 4}
        counts.update(cuEventRecord=2, cuStreamWaitEvent=3, cuStreamWriteValue32=4)
        count = counts.get(own, 1)

        def native(*arguments: Any) -> int:
            if own == "cuCtxPopCurrent":
                status, context = self._from_c(own)
                ctypes.c_void_p.from_address(arguments[0]).value = context
                return status
            status, output = self._from_c(own, *arguments)
            if own == "cuCtxCreate" and not status:
                ctypes.c_void_p.from_address(arguments[0]).value = output
                self.contexts.append(output)
            return status

        function = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * count)(native)
        self._native.append(function)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return Status.CUDA_SUCCESS, address


MODULES = (
    *(cuda, cuda_arrays, cuda_buffers, cuda_context, cuda_driver, cuda_executable, cuda_profile),
    *(cuda_spread, cuda_submission),
)
"""The modules that ask for the driver."""


def install(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    """Put a driver in the place of the bindings."""
    for module in MODULES:
        monkeypatch.setattr(module, "driver", lambda: driver)
    cuda._start_once.cache_clear()
