"""Shared code of the backends that compile one shader per kernel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from litegpu import progress
from litegpu.backends.program import Program
from litegpu.codegen import KernelText

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """A cache of the objects of the most recently used kernels."""

    def __init__(self, most: int = 256) -> None:
        """Create a cache for at most `most` objects."""
        self._most = most
        self._compiled: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, text: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the cached object for a kernel or its text; on a cache miss, call `make`."""
        if text not in self._compiled:
            self._compiled[text] = make()
            if len(self._compiled) > self._most:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(text)
        return self._compiled[text]

    def clear(self) -> None:
        """Remove all objects."""
        self._compiled.clear()


def kernels_of(program: Program) -> Iterator[KernelText]:
    """Yield each kernel of a program, and report progress."""
    return progress.steps("compile", program.kernels, len(program.kernels))


def too_little_memory(title: str, sizes: Sequence[int], cause: str) -> str:
    """Return the error text for buffers that a device cannot provide."""
    return (
        f"Device {title} cannot provide {sum(sizes)} bytes: {cause}. Close other programs, use "
        "precision='fp16' or a smaller batch."
    )


def timed_out(title: str, seconds: float | None) -> str:
    """Return the error text for an invoke that took too long."""
    return (
        f"Device {title} did not answer within invoke_timeout_ms ({(seconds or 0) * 1000:g} ms) "
        "and counts as lost. Create a new GpuDelegate and interpreter, which reopen the device. "
        "If the error occurs again, use another device or no delegate."
    )
