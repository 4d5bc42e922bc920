"""Where the time of a start goes, by the functions that do its parts.

A function's time is its own: what another phase within it takes is that one's. Time of other
threads than the one that asks is in what waits for them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

PHASES: Mapping[str, tuple[str, ...]] = {
    "passes": ("litegpu.engine.partition:rewrite",),
    "place": ("litegpu.engine.partition:place",),
    "choose": ("litegpu.engine.lowering:Lowering.lower_all",),
    "render": ("litegpu.engine.lowering:render",),
    "pack": ("litegpu.engine.lowering:Constants.pack",),
    "wait for compilers": ("litegpu.backends.cuda.compiler:KernelCompiler.cubins",),
    "build, load, upload": (
        "litegpu.backends.cuda.executable:CUDAExecutable.__init__",
        "litegpu.backends.opencl.executable:OpenCLExecutable.__init__",
        "litegpu.backends.opengl.executable:OpenGLExecutable.__init__",
        "litegpu.backends.webgpu.executable:WebGPUExecutable.__init__",
    ),
    "context": ("litegpu.backends.execution:Executable.context",),
    "first run": ("litegpu.engine.compiled:CompiledPartition.warm_up",),
    "fingerprint": (
        "litegpu.cache.partitions:CachedPartitions.name",
        "litegpu.cache.fingerprint:Fingerprint.whole",
    ),
    "read file": ("litegpu.cache.store:ArtifactStore.load",),
    "read artifact": ("litegpu.cache.artifact:Artifact.read",),
    "check": ("litegpu.cache.partitions:check",),
    "get binaries": ("litegpu.cache.artifact:Artifact.of",),
    "write file": ("litegpu.cache.store:ArtifactStore.store",),
}
"""Functions, as module:name, by the phase that they are."""


class _Clock:
    """The seconds of each phase on one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._within = [0.0]
        """Of each function that has begun: what phases within it took."""

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time noted."""

        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*arguments, **named)
            self._within.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                own = took - self._within.pop()
                self._within[-1] += took
                self.seconds[phase] = self.seconds.get(phase, 0.0) + own

        return run


@contextlib.contextmanager
def timed_phases() -> Iterator[dict[str, float]]:
    """Yield a dictionary that has the seconds of each phase in this thread, within the block.

    >>> with timed_phases() as seconds:
    ...     pass
    >>> seconds
    {}
    """
    clock = _Clock()
    with contextlib.ExitStack() as stack:
        for phase, functions in PHASES.items():
            for function in functions:
                owner, name, found = _find(function)
                timed = clock.timed(phase, getattr(found, "__func__", found))
                setattr(owner, name, classmethod(timed) if hasattr(found, "__func__") else timed)
                stack.callback(setattr, owner, name, found)
        yield clock.seconds


def _find(function: str) -> tuple[Any, str, Any]:
    """Return what has a function, its name there, and what lies there."""
    module, _, path = function.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, importlib.import_module(module))
    return owner, name, vars(owner)[name]
