"""Calls of the CUDA driver that convert each error code to a typed exception."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

from litegpu.backends.cuda.presence import missing_bindings
from litegpu.errors import CudaError, UnsupportedDeviceError
from litegpu.host.native_calls import bound
from litegpu.host.native_handles import Handle, Owner
from litegpu.host.optional_packages import load

KernelNode = tuple[Any, Any, Any]
"""The arguments of a launch: configuration, function and argument block."""
TITLE = "CUDA"
FATAL = frozenset(
    (4, 46, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999)
)
"""Error codes after which a context is unusable or no longer exists."""
NOT_LOADED = frozenset((200, 209, 500))
"""Error codes for a module that does not fit the device, or lacks a requested function."""
UNLAUNCHABLE = frozenset((1, 98, 701, 720, 801))
"""Error codes for launches that the device does not support."""
NOT_READY = 600
"""The status code of a stream with unfinished work."""
_OLDEST_DRIVER = 12000
"""The minimum CUDA version of the driver: litegpu calls the functions of this version."""


@cache
def driver() -> Any:
    """Return the driver bindings. Raises if the package or the driver is missing."""
    missing = partial(missing_bindings, "cuda-bindings", "The CUDA backend")
    bindings = load("cuda-bindings", "cuda.bindings", missing, "driver")
    try:
        bindings.cuDriverGetVersion()
    except RuntimeError as error:
        raise UnsupportedDeviceError(
            f"The NVIDIA driver library cannot be loaded ({error}). Install NVIDIA's driver; "
            "without an NVIDIA GPU use backend='opencl'."
        ) from error
    return bindings


def call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Call a driver or NVRTC function; return its results without the status.

    Raises CudaError with the function, the code's name and number and the driver's explanation.
    """
    return checked(function, function(*arguments))


def checked(function: Callable[..., Any], result: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of a driver or NVRTC function, without the status. Raises CudaError."""
    status, *results = result
    if status.value:
        raise failure(function, status)
    return tuple(results)


def ready(
    name: str, *arguments: Any, version: int = _OLDEST_DRIVER, brief: bool = False
) -> partial[int]:
    """Return a prepared call of a driver function whose arguments are addresses, for the hot path.

    The prepared call takes a fifth of the time of `call`, runs only C code, and returns the status
    as a number. `version` is the CUDA version that determines the function's signature. A `brief`
    call does not release the GIL: if other threads wait for the GIL, reacquiring it takes longer
    than the function. As a result, 8 threads run 1.3 times as fast on an H200's host.
    """
    cu = driver()
    address = int(call(cu.cuGetProcAddress, name.encode(), version, 0)[0])
    # C's default convention except on 32-bit Windows, which current drivers do not support.
    make = ctypes.PYFUNCTYPE if brief else ctypes.CFUNCTYPE
    kind = make(ctypes.c_int, *(ctypes.c_void_p,) * len(arguments))
    return bound(kind(address), *arguments)


class Handles(Owner):
    """Handles of the driver that are released together."""

    def __init__(self) -> None:
        """Create an empty set of handles."""
        super().__init__(checked)

    def make(self, create: Callable[..., Any], release: Callable[..., Any], *arguments: Any) -> Any:
        """Return the handle that `create` returns for `arguments`. Raises CudaError."""
        handle = self.hold(release, _handle)
        handle.creation(create, *arguments)()
        return _created(create, handle)

    def capture(self, stream: Any, launches: Iterable[KernelNode]) -> Any:
        """Return an executable graph of launches that run in sequence. Raises CudaError."""
        cu = driver()
        template = self.hold(cu.cuGraphDestroy, _handle)
        try:
            _record(stream, launches, template)
            graph = _created(cu.cuStreamEndCapture, template)
            executable = self.make(cu.cuGraphInstantiate, cu.cuGraphExecDestroy, graph, 0)
        finally:
            template.release()
        call(cu.cuGraphUpload, executable, stream)
        call(cu.cuStreamSynchronize, stream)
        return executable


def _record(stream: Any, launches: Iterable[KernelNode], template: Handle) -> None:
    """Capture launches into the graph `template`. Raises CudaError."""
    cu = driver()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    end_capture = template.creation(cu.cuStreamEndCapture, stream)
    try:
        call(cu.cuStreamBeginCapture, stream, mode)
        for number, launch in enumerate(launches):
            _add(number, launch)
    finally:
        end_capture()


def _add(number: int, launch: KernelNode) -> None:
    """Add a launch to the captured graph. Raises CudaError with the launch's number."""
    try:
        call(driver().cuLaunchKernelEx, *launch, 0)
    except CudaError as error:
        error.launch = number
        raise


_handle = itemgetter(1)
"""Returns the handle in a function's result, the item after the status."""


def _created(create: Callable[..., Any], handle: Handle) -> Any:
    try:
        return checked(create, handle.result)[0]
    except CudaError:
        handle.forget()
        raise


def failure(function: Callable[..., Any], status: Any) -> CudaError:
    """Return the error for a status that a function returned."""
    name = getattr(function, "__name__", str(function))
    text = ""
    if name.startswith("cu"):
        code, explanation = driver().cuGetErrorString(status)
        text = explanation.decode() if not code.value and explanation else ""
    return CudaError(
        f"{name} returned {status.name} ({status.value}): {text or 'no explanation'}.",
        int(status.value),
    )
