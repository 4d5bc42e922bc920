"""Makes one call of a GPU API, or of the system's files, fail at a time.

A `Plug` is what a backend adds: it has every call of its API ask a gate first, and tells what is
allocated. The tests are the same for all of them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from fake_cuda import RELEASES, install
from litegpu.host import private_files
from robustness.shader_faults import OpenGLPlug, WebGPUPlug

Gate = Callable[[str], bool]
"""Takes the name of a call that is about to be made; true says that it fails as its API does.

It may also raise what is to come out of the call.
"""


class Plug(Protocol):
    """A GPU API whose calls can be made to fail."""

    def install(self, patch: pytest.MonkeyPatch, gate: Gate) -> None:
        """Have the calls ask `gate`, until the patch is undone."""

    def live(self) -> object:
        """Return what is allocated at present; equal when the same is."""


class OpenCLPlug:
    """Calls of the OpenCL library and of pyopencl."""

    _NO_HOST_MEMORY = -6

    def install(self, patch: pytest.MonkeyPatch, gate: Gate) -> None:
        import pyopencl as cl

        from litegpu.backends.opencl import commands as opencl_commands
        from litegpu.backends.opencl import library as opencl_library

        library, load = opencl_library.library(), opencl_commands._Functions.load
        for name in opencl_library._SIGNATURES:
            patch.setattr(library, name, self._native(getattr(library, name), name, gate))

        def functions(platform: int) -> Any:
            found = load(platform)
            if found is None:
                return None
            names = [field.name for field in dataclasses.fields(found)]
            return type(found)(
                **{name: self._native(getattr(found, name), name, gate) for name in names}
            )

        patch.setattr(opencl_commands._Functions, "load", functions)
        names = ("Buffer", "CommandQueue", "enqueue_fill_buffer", "Context")
        for owner, each in [*((cl, name) for name in names), (cl.Program, "build")]:
            patch.setattr(owner, each, self._python(cl, getattr(owner, each), each, gate))

    def _native(self, function: Any, name: str, gate: Gate) -> Any:
        def call(*arguments: Any) -> Any:
            if name == "clGetExtensionFunctionAddressForPlatform":
                return None if gate(name) else function(*arguments)
            if name.lower().startswith(("clrelease", "release", "clfinish")):
                status = function(*arguments)  # what fails to release something has released it
                return self._NO_HOST_MEMORY if gate(name) else status
            if not gate(name):
                return function(*arguments)
            if name in ("clCreateKernel", "create"):
                arguments[-1]._obj.value = self._NO_HOST_MEMORY
                return None
            return self._NO_HOST_MEMORY

        call.__name__ = name
        call.argtypes = function.argtypes  # type: ignore[attr-defined]
        return call

    def _python(self, cl: Any, function: Any, name: str, gate: Gate) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if gate(name):
                raise cl.MemoryError(f"{name} failed: OUT_OF_HOST_MEMORY")
            return function(*arguments, **named)

        return call

    def live(self) -> object:
        from litegpu.backends.opencl import device as opencl

        # Whatever is made in a context holds it, through its queue or program at least.
        return {
            index: device.context.reference_count
            for index, device in opencl._opened.devices.items()
        }


class CUDAPlug:
    """Calls of the CUDA driver; those of an invoke are prepared, and pass it by."""

    def __init__(self) -> None:
        self._live: set[tuple[str, int]] = set()

    def install(self, patch: pytest.MonkeyPatch, gate: Gate) -> None:
        from litegpu.backends.cuda import driver as cuda_driver

        install(patch, _WatchedDriver(cuda_driver.driver(), gate, self._live))

    def live(self) -> object:
        return set(self._live)


class _WatchedDriver:
    """The bindings of the CUDA driver, with each call asking a gate, and handles counted."""

    def __init__(self, real: Any, gate: Gate, live: set[tuple[str, int]]) -> None:
        self._real, self._gate, self._live = real, gate, live

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not name.startswith("cu"):
            return real

        def call(*arguments: Any) -> Any:
            failing = (self._real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
            if name in _ENDS:  # what fails to release something has released it
                result = real(*arguments)
                if name in _CREATORS:
                    self._live.discard((_CREATORS[name], int(arguments[0])))
                return failing if self._gate(name) else result
            try:
                fails = True
                fails = self._gate(name)
            finally:
                if fails and name == "cuStreamEndCapture":  # or the stream could never be used
                    self._real.cuGraphDestroy(real(*arguments)[1])
            if fails:
                return failing
            result = real(*arguments)
            if name in RELEASES and not result[0].value:
                self._live.add((name, int(result[1])))
            return result

        call.__name__ = name
        return call


_CREATORS = {release: make for make, release in RELEASES.items()}
_ENDS = {*_CREATORS, "cuCtxPopCurrent"}

PLUGS: dict[str, Callable[[], Plug]] = {
    "cuda": CUDAPlug,
    "opencl": OpenCLPlug,
    "opengl": OpenGLPlug,
    "webgpu": WebGPUPlug,
}
"""By the name of the backend."""


class _WatchedSystem:
    """The module `os`, for the module that reads and writes kept files."""

    _NAMES = ("open", "fdopen", "lstat", "fstat", "stat", "fsync", "replace", "unlink", "scandir")
    _NO_SPACE = 28

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self._NAMES:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            if self._gate(f"os.{name}"):
                raise OSError(self._NO_SPACE, "No space left on device")
            return real(*arguments, **named)

        return call


def watch_files(patch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Have calls that read and write kept files ask `gate`."""
    patch.setattr(private_files, "os", _WatchedSystem(gate))


class NthCall:
    """A gate that lets the call of one number fail, by returning true or raising `error`."""

    def __init__(self, number: int, error: type[BaseException] | None) -> None:
        self._left = number
        self._error = error
        self.failed = ""
        """The call that failed, empty if there were not so many."""

    def __call__(self, name: str) -> bool:
        self._left -= 1
        if self._left != -1:
            return False
        self.failed = name
        if self._error is not None:
            raise self._error
        return True

    def end(self) -> None:
        """Let all calls pass from now on."""
        self._left = -1
