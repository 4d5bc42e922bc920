"""OpenGL functions in a context without a window, for the thread that created it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import (
    POINTER,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from ctypes.util import find_library
from functools import partial
from types import SimpleNamespace
from typing import Any

from litegpu.backends.opengl.sharing import SharedContext
from litegpu.errors import CompilationError, UnsupportedDeviceError, missing_dependency
from litegpu.host.optional_packages import load

PACKAGE = "glcontext"
"""The package that creates contexts, by its name for pip."""

_OLDEST = 430
_NUMBERS = POINTER(c_uint32)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "glAttachShader": (None, c_uint32, c_uint32),
    "glBindBuffer": (None, c_uint32, c_uint32),
    "glBindBufferRange": (None, c_uint32, c_uint32, c_uint32, c_size_t, c_size_t),
    "glBufferData": (None, c_uint32, c_size_t, c_void_p, c_uint32),
    "glBufferSubData": (None, c_uint32, c_size_t, c_size_t, c_void_p),
    "glClearBufferData": (None, c_uint32, c_uint32, c_uint32, c_uint32, c_void_p),
    "glClientWaitSync": (c_uint32, c_void_p, c_uint32, c_uint64),
    "glCompileShader": (None, c_uint32),
    "glCopyBufferSubData": (None, c_uint32, c_uint32, c_size_t, c_size_t, c_size_t),
    "glCreateProgram": (c_uint32,),
    "glCreateShader": (c_uint32, c_uint32),
    "glDeleteBuffers": (None, c_int32, _NUMBERS),
    "glDeleteProgram": (None, c_uint32),
    "glDeleteQueries": (None, c_int32, _NUMBERS),
    "glDeleteShader": (None, c_uint32),
    "glDeleteSync": (None, c_void_p),
    "glDispatchCompute": (None, c_uint32, c_uint32, c_uint32),
    "glFenceSync": (c_void_p, c_uint32, c_uint32),
    "glFinish": (None,),
    "glFlush": (None,),
    "glGenBuffers": (None, c_int32, _NUMBERS),
    "glGenQueries": (None, c_int32, _NUMBERS),
    "glGetBufferParameteri64v": (None, c_uint32, c_uint32, POINTER(c_int64)),
    "glGetBufferSubData": (None, c_uint32, c_size_t, c_size_t, c_void_p),
    "glGetError": (c_uint32,),
    "glGetInteger64v": (None, c_uint32, POINTER(c_int64)),
    "glGetIntegeri_v": (None, c_uint32, c_uint32, POINTER(c_int32)),
    "glGetProgramBinary": (None, c_uint32, c_int32, POINTER(c_int32), _NUMBERS, c_void_p),
    "glGetProgramInfoLog": (None, c_uint32, c_int32, POINTER(c_int32), c_char_p),
    "glGetProgramiv": (None, c_uint32, c_uint32, POINTER(c_int32)),
    "glGetQueryObjectui64v": (None, c_uint32, c_uint32, POINTER(c_uint64)),
    "glGetShaderInfoLog": (None, c_uint32, c_int32, POINTER(c_int32), c_char_p),
    "glGetShaderiv": (None, c_uint32, c_uint32, POINTER(c_int32)),
    "glGetString": (c_char_p, c_uint32),
    "glGetStringi": (c_char_p, c_uint32, c_uint32),
    "glIsBuffer": (c_uint8, c_uint32),
    "glLinkProgram": (None, c_uint32),
    "glMemoryBarrier": (None, c_uint32),
    "glProgramBinary": (None, c_uint32, c_uint32, c_void_p, c_int32),
    "glQueryCounter": (None, c_uint32, c_uint32),
    "glShaderSource": (None, c_uint32, c_int32, POINTER(c_char_p), POINTER(c_int32)),
    "glUseProgram": (None, c_uint32),
    "glWaitSync": (None, c_void_p, c_uint32, c_uint64),
}
"""The result type and the argument types of each function."""
_NEWER_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "glBindBuffersRange": (
        *(None, c_uint32, c_uint32, c_int32),
        *(_NUMBERS, POINTER(c_size_t), POINTER(c_size_t)),
    ),
    "glBufferStorage": (None, c_uint32, c_size_t, c_void_p, c_uint32),
    "glGetGraphicsResetStatus": (c_uint32,),
}
"""Functions of OpenGL 4.4 and 4.5, which older drivers may lack."""

BUFFER_UPDATE_BARRIER, SHADER_STORAGE_BARRIER = 0x200, 0x2000
COPY_READ_BUFFER, COPY_WRITE_BUFFER = 0x8F36, 0x8F37
DYNAMIC_STORAGE = 0x100
SHADER_STORAGE_BUFFER = 0x90D2
STREAM_DRAW, STREAM_READ, STATIC_COPY = 0x88E0, 0x88E1, 0x88E6
R32UI, RED_INTEGER, UNSIGNED_INT = 0x8236, 0x8D94, 0x1405
QUERY_RESULT, TIMESTAMP = 0x8866, 0x8E28
_COMPUTE_SHADER, _COMPILE_STATUS, _LINK_STATUS, _LOG_LENGTH = 0x91B9, 0x8B81, 0x8B82, 0x8B84
_BINARY_LENGTH, _EXTENSIONS, _NUM_EXTENSIONS = 0x8741, 0x1F03, 0x821D
_ERRORS = {
    0x0500: "GL_INVALID_ENUM",
    0x0501: "GL_INVALID_VALUE",
    0x0502: "GL_INVALID_OPERATION",
    0x0505: "GL_OUT_OF_MEMORY",
    0x0507: "GL_CONTEXT_LOST",
}
CONTEXT_LOST = 0x0507
_COMMANDS_COMPLETE, _FLUSH, _TIMEOUT_EXPIRED = 0x9117, 0x1, 0x911B
_FOR_EVER = (1 << 64) - 1
_BUFFER_SIZE = 0x8764


class NoMoreDevicesError(UnsupportedDeviceError):
    """A device number is beyond the last device."""


class OpenGL:
    """An OpenGL context that is current on the creating thread, and the OpenGL functions."""

    def __init__(self, context: Any) -> None:
        """Use the current context; `context.load` returns functions, `context.release` frees it.

        Raises UnsupportedDeviceError if the driver is too old.
        """
        self._context = context
        try:
            self.call: Any = SimpleNamespace(**self._functions())
            """The functions by name; None if this driver lacks one."""
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_device(cls, number: int) -> OpenGL:
        """Create a context on the device with this EGL device number.

        Raises NoMoreDevicesError, MissingDependencyError, or UnsupportedDeviceError with the cause.
        """
        return cls(_create(number))

    @classmethod
    def sharing(cls, shared: SharedContext) -> OpenGL:
        """Enter a context that shares buffers. Raises UnsupportedDeviceError with the cause."""
        shared.enter()
        return cls(shared)

    def _functions(self) -> dict[str, Any]:
        found = {name: self._load(name, *kinds) for name, kinds in _SIGNATURES.items()}
        missing = [name for name, function in found.items() if function is None]
        if missing:
            raise UnsupportedDeviceError(
                f"The OpenGL driver lacks {', '.join(missing)}. Update the GPU's driver."
            )
        newer = {name: self._load(name, *kinds) for name, kinds in _NEWER_SIGNATURES.items()}
        return found | newer

    def _load(self, name: str, result: Any, *arguments: Any) -> Any:
        make = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
        address = self._context.load(name)
        return make(result, *arguments)(address) if address else None

    def close(self) -> None:
        """Release the context."""
        self._context.release()

    def text(self, name: int) -> str:
        """Return a string property of the driver."""
        found: bytes | None = self.call.glGetString(name)
        return (found or b"").decode(errors="replace").strip()

    def extensions(self) -> set[str]:
        """Return the names of all extensions."""
        count = self.integer(_NUM_EXTENSIONS)
        return {self.call.glGetStringi(_EXTENSIONS, i).decode() for i in range(count)}

    def integer(self, name: int) -> int:
        """Return a numeric property of the driver."""
        number = c_int64()
        self.call.glGetInteger64v(name, ctypes.byref(number))
        return number.value

    def integer_of_axis(self, name: int, axis: int) -> int:
        """Return a numeric property of the driver for the x, y or z axis."""
        number = c_int32()
        self.call.glGetIntegeri_v(name, axis, ctypes.byref(number))
        return number.value

    def error(self) -> int:
        """Return the first error since the last call, 0 for none; discard the others."""
        first: int = self.call.glGetError()
        error = first
        # A lost context reports its loss at every query.
        for _ in range(16):
            if not error:
                break
            error = self.call.glGetError()
        return first

    def was_reset(self) -> bool:
        """Return whether the driver reports that the context was lost."""
        ask = self.call.glGetGraphicsResetStatus
        return bool(ask and ask())

    def finish_within(self, seconds: float) -> bool:
        """Wait at most `seconds` until all work is done; return whether all work is done."""
        fence = self.fence()
        try:
            return self.is_reached(fence, seconds)
        finally:
            self.call.glDeleteSync(fence)

    def fence(self) -> int | None:
        """Return a fence after all commands so far; None if the driver fails."""
        sync: int | None = self.call.glFenceSync(_COMMANDS_COMPLETE, 0)
        self.call.glFlush()
        return sync

    def is_reached(self, fence: int | None, seconds: float = 0.0) -> bool:
        """Wait at most `seconds` for a fence; return whether it was reached.

        A `fence` of None counts as reached, because a later call raises the driver's error.
        """
        if fence is None:
            return True
        status = self.call.glClientWaitSync(fence, _FLUSH, int(seconds * 1e9))
        return bool(status != _TIMEOUT_EXPIRED)

    def follow(self, fence: int) -> None:
        """Make the device wait for a fence before later commands; delete the fence."""
        self.call.glWaitSync(fence, 0, _FOR_EVER)
        self.call.glDeleteSync(fence)

    def bytes_of(self, number: int) -> int | None:
        """Return the size of a buffer in bytes; None if no buffer has this number."""
        if not self.call.glIsBuffer(number):
            return None
        found = c_int64()
        self.call.glBindBuffer(COPY_READ_BUFFER, number)
        self.call.glGetBufferParameteri64v(COPY_READ_BUFFER, _BUFFER_SIZE, ctypes.byref(found))
        return found.value

    def holds(self, number: int, data: bytes) -> bool:
        """Return whether a buffer of the current context has this number and content.

        The method restores the context's state, because the context may be the application's.
        """
        if not self.call.glIsBuffer(number):
            return False
        before, found = self.integer(COPY_READ_BUFFER), ctypes.create_string_buffer(len(data))
        if self.bytes_of(number) == len(data):
            self.call.glGetBufferSubData(COPY_READ_BUFFER, 0, len(data), found)
        self.call.glBindBuffer(COPY_READ_BUFFER, before)
        return found.raw == data

    def make(self, kind: str) -> c_uint32:
        """Return the number of a new buffer ("Buffers") or query ("Queries"); 0 on failure."""
        number = c_uint32()
        getattr(self.call, f"glGen{kind}")(1, ctypes.byref(number))
        return number

    def delete(self, kind: str, number: c_uint32) -> None:
        """Delete a buffer or a query."""
        getattr(self.call, f"glDelete{kind}")(1, ctypes.byref(number))

    def compile(self, source: str) -> int:
        """Return the number of a linked program. Raises CompilationError with the log."""
        gl = self.call
        shader = gl.glCreateShader(_COMPUTE_SHADER)
        try:
            text = c_char_p(source.encode())
            gl.glShaderSource(shader, 1, ctypes.byref(text), None)
            gl.glCompileShader(shader)
            if not self._of(gl.glGetShaderiv, shader, _COMPILE_STATUS):
                raise self._refusal(gl.glGetShaderiv, gl.glGetShaderInfoLog, shader)
            return self._linked(lambda program: self._attach(program, shader))
        finally:
            gl.glDeleteShader(shader)

    def _attach(self, program: int, shader: int) -> None:
        self.call.glAttachShader(program, shader)
        self.call.glLinkProgram(program)

    def _linked(self, link: Callable[[int], object]) -> int:
        """Return the number of a new program after calling `link`. Raises CompilationError."""
        gl = self.call
        program: int = gl.glCreateProgram()
        try:
            link(program)
            if not self._of(gl.glGetProgramiv, program, _LINK_STATUS):
                raise self._refusal(gl.glGetProgramiv, gl.glGetProgramInfoLog, program)
        except BaseException:
            gl.glDeleteProgram(program)
            raise
        return program

    def _refusal(self, ask: Any, read: Any, number: int) -> CompilationError:
        """Return an error with the log of a shader or program, or with OpenGL's error."""
        log = self._log(ask, read, number)
        error = self.error()
        return CompilationError(log or (error_name(error) if error else "no reason is given"))

    def binary(self, program: int) -> bytes:
        """Return the binary of a linked program; empty if the driver cannot return it."""
        length = self._of(self.call.glGetProgramiv, program, _BINARY_LENGTH)
        kind, data = c_uint32(), ctypes.create_string_buffer(max(length, 1))
        got = c_int32()
        arguments = (ctypes.byref(got), ctypes.byref(kind), data)
        self.call.glGetProgramBinary(program, length, *arguments)
        failed = self.error() or not got.value
        return b"" if failed else kind.value.to_bytes(4, "little") + data.raw[: got.value]

    def program_of(self, binary: bytes) -> int | None:
        """Return the number of a program loaded from `binary`; None if the driver rejects it."""
        kind, data = int.from_bytes(binary[:4], "little"), binary[4:]
        try:
            return self._linked(
                lambda program: self.call.glProgramBinary(program, kind, data, len(data))
            )
        except CompilationError:
            return None

    def _of(self, ask: Any, number: int, name: int) -> int:
        value = c_int32()
        ask(number, name, ctypes.byref(value))
        return value.value

    def _log(self, ask: Any, read: Any, number: int) -> str:
        text = ctypes.create_string_buffer(self._of(ask, number, _LOG_LENGTH) + 1)
        read(number, len(text), None, text)
        return text.value.decode(errors="replace").strip()


def error_name(error: int) -> str:
    """Return an OpenGL error code with its name."""
    return f"{_ERRORS.get(error, 'an error')} (0x{error:04X})"


def context_source() -> Any:
    """Return the module of the package glcontext that creates contexts on this system.

    Raises MissingDependencyError, or UnsupportedDeviceError with the cause.
    """
    missing = partial(missing_dependency, PACKAGE, "opengl", "The OpenGL backend")
    package = load(PACKAGE, "glcontext", missing)
    if sys.platform == "darwin":
        raise UnsupportedDeviceError(
            "macOS supports OpenGL only up to 4.1, without compute shaders. Use backend='webgpu'."
        )
    # With glcontext's helper, an environment variable could change the device.
    return package if sys.platform == "win32" else load(PACKAGE, "glcontext", missing, "egl")


def _create(number: int) -> Any:
    """Return a new context of glcontext, which is current on this thread."""
    source = context_source()
    try:
        if sys.platform == "win32":
            return _on_windows(source, number)
        names = {"libegl": find_library("EGL") or "libEGL.so.1"}
        names["libgl"] = find_library("GL") or "libGL.so.1"
        return source.create_context(
            mode="standalone", glversion=_OLDEST, device_index=number, **names
        )
    except UnsupportedDeviceError:
        raise
    except Exception as error:  # glcontext raises plain exceptions
        if "requested device index" in str(error):
            raise NoMoreDevicesError(str(error)) from error
        raise UnsupportedDeviceError(
            f"An OpenGL 4.3 context cannot be created: {error}."
        ) from error


def _on_windows(glcontext: Any, number: int) -> Any:
    if number:
        raise NoMoreDevicesError("Windows has one OpenGL device, the one that drives the screen.")
    return glcontext.default_backend()(mode="standalone", glversion=_OLDEST)
