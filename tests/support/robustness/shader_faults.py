"""Injects failures of OpenGL and wgpu calls, for `faults`."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from robustness.faults import Gate

_OUT_OF_MEMORY = 0x0505


class OpenGLPlug:
    """Functions of an OpenGL context. One that fails does nothing, and sets an error."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._error = 0

    def install(self, patch: pytest.MonkeyPatch, gate: Gate) -> None:
        from litegpu.backends.opengl import device as opengl

        self._error = 0
        for device in opengl._opened.devices.values():
            device.worker.call(device.programs.clear)
            for name, function in vars(device.gl.call).items():
                if function is not None:
                    patch.setattr(device.gl.call, name, self._watched(name, function, gate))

    def _watched(self, name: str, function: Any, gate: Gate) -> Any:
        output, gone = name.removeprefix("glGen"), name.removeprefix("glDelete")

        def call(*arguments: Any) -> Any:
            if name == "glGetError":
                error, self._error = self._error or function(), 0
                return _OUT_OF_MEMORY if gate(name) else error
            if gone != name:
                result = function(*arguments)
                self._live[gone.rstrip("s")] -= bool(_number(arguments[-1]))
                if gate(name):
                    self._error = _OUT_OF_MEMORY
                return result
            if gate(name):
                self._error = _OUT_OF_MEMORY
                return 0 if function.restype else None
            result = function(*arguments)
            if output != name:
                self._live[output.rstrip("s")] += 1
            elif name.startswith(("glCreate", "glFence")):
                self._live[name.removeprefix("glCreate").removeprefix("glFence")] += 1
            return result

        call.argtypes = function.argtypes  # type: ignore[attr-defined]
        return call

    def live(self) -> object:
        from litegpu.backends.opengl import device as opengl

        for device in opengl._opened.devices.values():
            device.worker.call(device.programs.clear)
            device.worker.call(lambda: None)  # after what was posted
        return {name: count for name, count in self._live.items() if count}


def _number(argument: Any) -> int:
    """Return the number of what is deleted, from a number or a reference to one."""
    stored = getattr(argument, "_obj", argument)
    return stored.value if isinstance(stored, ctypes.c_uint32) else (stored or 0)


class WebGPUPlug:
    """Functions of wgpu's library, below wgpu-py. One that fails raises what wgpu-py would."""

    def install(self, patch: pytest.MonkeyPatch, gate: Gate) -> None:
        import wgpu
        from wgpu.backends import wgpu_native

        from litegpu.backends.webgpu import device as webgpu

        def fail(name: str) -> None:
            raise wgpu.GPUValidationError(f"Validation Error in {name}: Not enough memory left.")

        checked = _Watched(wgpu_native._api.libf, gate, fail)
        patch.setattr(wgpu_native._api, "libf", checked)
        for device in webgpu._opened.devices.values():
            device.worker.call(device.pipelines.clear)
            patch.setattr(device.calls, "checked", checked)
            # These report no errors of their own; what may come out of them is an interrupt.
            patch.setattr(device.calls, "lib", _Watched(device.calls.lib, gate, None))

    def live(self) -> object:
        from wgpu.backends import wgpu_native

        from litegpu.backends.webgpu import device as webgpu

        for device in webgpu._opened.devices.values():
            device.worker.call(device.pipelines.clear)  # after what was posted
            gc.collect()
            device.calls.wait(device.device)
        hub = wgpu_native._helpers.generate_report()["hub"]
        return {name: counts["kept"] for name, counts in hub.items() if counts["kept"]}


class _Watched:
    """A library of which each call asks a gate, but for those of wgpu-py's own threads."""

    _PASS = ("Release", "DevicePoll", "GetConstMappedRange")
    """Releases are made while objects are collected, where nothing can come out of them; the others
    report no errors."""

    def __init__(self, real: Any, gate: Gate, fail: Callable[[str], None] | None) -> None:
        self._real, self._gate, self._fail = real, gate, fail

    def __getattr__(self, name: str) -> Any:
        from wgpu.backends.wgpu_native._poller import PollThread

        real, gate, fail = getattr(self._real, name), self._gate, self._fail
        if not callable(real) or name.endswith(self._PASS):
            return real
        if isinstance(threading.current_thread(), PollThread):
            return real

        def call(*arguments: Any) -> Any:
            if name.endswith(("Destroy", "Unmap", "End")):
                real(*arguments)
                gate(name)
            elif gate(name) and fail is not None:
                fail(name)
            else:
                return real(*arguments)
            return None

        return call
