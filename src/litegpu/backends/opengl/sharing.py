"""Creates OpenGL contexts that share buffers with an application's context: EGL, GLX and WGL."""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_void_p
from ctypes.util import find_library
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from litegpu.errors import BindingError, UnsupportedDeviceError

_VERSION = (4, 3)
_WHAT = "A context that shares its buffers with the application's"


@dataclass(frozen=True, slots=True)
class GLBuffer:
    """A buffer of the application's OpenGL context, by its number from glGenBuffers."""

    number: int

    def __post_init__(self) -> None:
        """Raise BindingError if the number cannot be the number of a buffer."""
        if not hasattr(self.number, "__index__") or not 0 <= int(self.number) < 1 << 32:
            raise BindingError(
                f"GLBuffer({self.number!r}) is not the name of a buffer: glGenBuffers returns "
                "integers from 1 on."
            )
        object.__setattr__(self, "number", int(self.number))  # OpenGL's functions need a Python int


@dataclass(frozen=True, slots=True)
class SharedContext:
    """A context, for another thread, that shares buffers with the application's context."""

    enter: Callable[[], None]
    """Makes the context current on this thread. Raises UnsupportedDeviceError."""
    load: Callable[[str], int]
    """Returns the address of an OpenGL function; 0 if there is none."""
    release: Callable[[], object]
    """Releases the context, on the thread on which the context is current."""


class _System(ABC):
    """A library that creates contexts: EGL, GLX or WGL."""

    @abstractmethod
    def current(self) -> int:
        """Return the handle of this thread's current context; 0 if there is none."""

    @abstractmethod
    def share(self) -> SharedContext:
        """Return a new context that shares with this thread's. Raises UnsupportedDeviceError."""


def current() -> int:
    """Return the handle of this thread's current OpenGL context; 0 if there is none."""
    return next((found for system in _systems() if (found := system.current())), 0)


def share() -> SharedContext:
    """Return a new context that shares its buffers with this thread's current context.

    Raises UnsupportedDeviceError if this thread has no current context, or if the driver fails.
    """
    for system in _systems():
        if system.current():
            return system.share()
    raise UnsupportedDeviceError(
        "No OpenGL context is current on this thread. Make the application's context current, "
        "then share it from the same thread."
    )


def _systems() -> list[_System]:
    """Return the libraries that are available on this system."""
    if not _found:
        kinds: tuple[type[_System], ...] = (_WGL,) if sys.platform == "win32" else (_EGL, _GLX)
        for kind in kinds:
            try:
                _found.append(kind())
            except (OSError, AttributeError):  # no such library, or one without these functions
                continue
    return _found


_found: list[_System] = []


def _functions(library: Any, signatures: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    functions = {}
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def _numbers(*values: int) -> Any:
    return (c_int * len(values))(*values)


def _refused(call: str) -> UnsupportedDeviceError:
    version = ".".join(map(str, _VERSION))
    return UnsupportedDeviceError(
        f"{_WHAT} is rejected by the driver ({call}). The driver must support OpenGL {version}, "
        "even if the application uses an older version. OpenGL and OpenGL ES contexts cannot "
        "share buffers."
    )


class _EGL(_System):
    _NONE, _CONFIG_ID, _OPENGL_API = 0x3038, 0x3028, 0x30A2
    _CONTEXT = (0x3098, _VERSION[0], 0x30FB, _VERSION[1], 0x30FD, 1, _NONE)
    """Attributes for the major and minor version, and the core profile."""
    _SIGNATURES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "eglBindAPI": (c_uint32, c_uint32),
        "eglChooseConfig": (c_uint32, c_void_p, c_void_p, c_void_p, c_int, c_void_p),
        "eglCreateContext": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        "eglDestroyContext": (c_uint32, c_void_p, c_void_p),
        "eglGetCurrentContext": (c_void_p,),
        "eglGetCurrentDisplay": (c_void_p,),
        "eglGetProcAddress": (c_void_p, c_char_p),
        "eglMakeCurrent": (c_uint32, c_void_p, c_void_p, c_void_p, c_void_p),
        "eglQueryContext": (c_uint32, c_void_p, c_void_p, c_int, c_void_p),
    }

    def __init__(self) -> None:
        library = ctypes.CDLL(find_library("EGL") or "libEGL.so.1")
        self.call = _functions(library, self._SIGNATURES)

    def current(self) -> int:
        return self.call["eglGetCurrentContext"]() or 0

    def share(self) -> SharedContext:
        current, display = self.current(), self.call["eglGetCurrentDisplay"]()
        number, count, config = c_int(), c_int(), c_void_p()
        self.call["eglQueryContext"](display, current, self._CONFIG_ID, ctypes.byref(number))
        if number.value:  # a context may have no configuration
            wanted = _numbers(self._CONFIG_ID, number.value, self._NONE)
            found = (ctypes.byref(config), 1, ctypes.byref(count))
            self.call["eglChooseConfig"](display, wanted, *found)
        handle = self.call["eglCreateContext"](display, config, current, _numbers(*self._CONTEXT))
        if not handle:
            raise _refused("eglCreateContext")
        make_current = partial(self.call["eglMakeCurrent"], display, None, None)

        def enter() -> None:
            self.call["eglBindAPI"](self._OPENGL_API)  # a thread starts with OpenGL ES
            if not make_current(handle):
                raise _refused("eglMakeCurrent without a surface")

        def release() -> None:
            make_current(None)
            self.call["eglDestroyContext"](display, handle)

        return SharedContext(enter, self._load, release)

    def _load(self, name: str) -> int:
        return self.call["eglGetProcAddress"](name.encode()) or 0


class _GLX(_System):
    _CONFIG_ID, _SCREEN = 0x8013, 0x800C
    _CONTEXT = (0x2091, _VERSION[0], 0x2092, _VERSION[1], 0x9126, 1, 0)
    """Attributes for the major and minor version, and the core profile."""
    _SIGNATURES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "glXGetCurrentContext": (c_void_p,),
        "glXGetCurrentDisplay": (c_void_p,),
        "glXGetFBConfigAttrib": (c_int, c_void_p, c_void_p, c_int, c_void_p),
        "glXGetFBConfigs": (POINTER(c_void_p), c_void_p, c_int, c_void_p),
        "glXGetProcAddressARB": (c_void_p, c_char_p),
        "glXMakeContextCurrent": (c_int, c_void_p, ctypes.c_ulong, ctypes.c_ulong, c_void_p),
        "glXQueryContext": (c_int, c_void_p, c_void_p, c_int, c_void_p),
    }

    def __init__(self) -> None:
        library = ctypes.CDLL(find_library("GLX") or find_library("GL") or "libGL.so.1")
        self.call = _functions(library, self._SIGNATURES)
        create = self.call["glXGetProcAddressARB"](b"glXCreateContextAttribsARB")
        self._create = ctypes.CFUNCTYPE(c_void_p, *[c_void_p] * 3, c_int, c_void_p)(create)

    def current(self) -> int:
        return self.call["glXGetCurrentContext"]() or 0

    def share(self) -> SharedContext:
        current, display = self.current(), self.call["glXGetCurrentDisplay"]()
        number, screen, count = c_int(), c_int(), c_int()
        self.call["glXQueryContext"](display, current, self._CONFIG_ID, ctypes.byref(number))
        self.call["glXQueryContext"](display, current, self._SCREEN, ctypes.byref(screen))
        # Mesa's glXChooseFBConfig cannot find configurations by their number alone.
        found = self.call["glXGetFBConfigs"](display, screen, ctypes.byref(count))
        config = None
        for each in found[: count.value]:
            value = c_int()
            self.call["glXGetFBConfigAttrib"](display, each, self._CONFIG_ID, ctypes.byref(value))
            config = each if value.value == number.value else config
        if config is None:
            raise _refused("glXGetFBConfigs")
        handle = self._create(display, config, current, 1, _numbers(*self._CONTEXT))
        if not handle:
            raise _refused("glXCreateContextAttribsARB")
        make_current = partial(self.call["glXMakeContextCurrent"], display, 0, 0)

        def enter() -> None:
            if not make_current(handle):
                raise _refused("glXMakeContextCurrent without a window")

        # The context belongs to the application's display, which may be closed already.
        return SharedContext(enter, self._load, release=lambda: None)

    def _load(self, name: str) -> int:
        return self.call["glXGetProcAddressARB"](name.encode()) or 0


class _WGL(_System):
    _CONTEXT = (0x2091, _VERSION[0], 0x2092, _VERSION[1], 0x9126, 1, 0)
    """Attributes for the major and minor version, and the core profile."""
    _SIGNATURES: ClassVar[dict[str, tuple[Any, ...]]] = {
        "wglDeleteContext": (c_int, c_void_p),
        "wglGetCurrentContext": (c_void_p,),
        "wglGetCurrentDC": (c_void_p,),
        "wglGetProcAddress": (c_void_p, c_char_p),
        "wglMakeCurrent": (c_int, c_void_p, c_void_p),
    }

    def __init__(self) -> None:
        self._library = ctypes.WinDLL("opengl32")  # type: ignore[attr-defined,unused-ignore]
        self.call = _functions(self._library, self._SIGNATURES)

    def current(self) -> int:
        return self.call["wglGetCurrentContext"]() or 0

    def share(self) -> SharedContext:
        current, window = self.current(), self.call["wglGetCurrentDC"]()
        address = self.call["wglGetProcAddress"](b"wglCreateContextAttribsARB")
        if not address:
            raise _refused("wglCreateContextAttribsARB is missing")
        make = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
        create = make(c_void_p, c_void_p, c_void_p, c_void_p)(address)
        handle = create(window, current, _numbers(*self._CONTEXT))
        if not handle:
            raise _refused("wglCreateContextAttribsARB")
        make_current = self.call["wglMakeCurrent"]

        def enter() -> None:
            if not make_current(window, handle):
                raise _refused("wglMakeCurrent")

        def release() -> None:
            make_current(None, None)
            self.call["wglDeleteContext"](handle)

        return SharedContext(enter, self._load, release)

    def _load(self, name: str) -> int:
        found: int = self.call["wglGetProcAddress"](name.encode()) or 0
        if found:
            return found
        # The library itself exports the functions of OpenGL 1.1.
        function = getattr(self._library, name, None)
        return 0 if function is None else ctypes.cast(function, c_void_p).value or 0
