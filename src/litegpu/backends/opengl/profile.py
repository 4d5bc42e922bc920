"""Measures the start and end of each launch of an OpenGL device with the device's clock."""

from __future__ import annotations

from ctypes import byref, c_uint32, c_uint64
from typing import TYPE_CHECKING

from litegpu.backends.execution import Profiler
from litegpu.backends.opengl import library

if TYPE_CHECKING:
    from litegpu.backends.opengl.context import OpenGLContext


class OpenGLProfiler(Profiler):
    """Measures the launches of a context with time stamps between them."""

    def __init__(self, context: OpenGLContext) -> None:
        """Measure the times of a context."""
        super().__init__(context)
        self._context = context

    def durations(self) -> list[float]:
        """Run each launch between two time stamps; return the device time of each in seconds."""
        return [end - start for start, end in self._spans()]

    def chain_seconds(self) -> float:
        """Return the seconds from before the first launch to after the last."""
        spans = self._spans()
        return spans[-1][1] - spans[0][0] if spans else 0.0

    def _spans(self) -> list[tuple[float, float]]:
        self._context.synchronize()
        return self._context.device.call(self._measured)

    def _measured(self) -> list[tuple[float, float]]:
        """Return the start and end of each launch in seconds (on the worker)."""
        context = self._context
        gl = context.gl
        stamps: list[c_uint32] = []
        try:
            for launch in context.launches:
                stamps += (gl.make("Queries"), gl.make("Queries"))
                gl.call.glQueryCounter(stamps[-2], library.TIMESTAMP)
                for call in launch:
                    call()
                gl.call.glQueryCounter(stamps[-1], library.TIMESTAMP)
            times = [self._time(stamp) for stamp in stamps]
            context.make((), "measuring")
        finally:
            for stamp in stamps:
                gl.delete("Queries", stamp)
        return list(zip(times[::2], times[1::2], strict=True))

    def _time(self, stamp: c_uint32) -> float:
        """Return the seconds of a time stamp, on the device's clock."""
        value = c_uint64()
        self._context.gl.call.glGetQueryObjectui64v(stamp, library.QUERY_RESULT, byref(value))
        return value.value * 1e-9
