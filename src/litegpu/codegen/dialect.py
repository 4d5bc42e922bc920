"""What one GPU language needs to know to turn a kernel body into a compilable kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """One buffer of a kernel; `vector` means it is read or written 4 elements at a time.

    `kind` is F32, F16 or U32, or, at the boundary of a partition, I32, I64 or U8 (bool).

    `constant` data never changes while the partition exists.
    """

    name: str
    kind: str
    vector: bool
    written: bool
    constant: bool = False


@dataclass(frozen=True, slots=True)
class KernelText:
    """A rendered kernel in the portable dialect, before the words of a language are put in."""

    name: str
    arguments: tuple[Argument, ...]
    local_size: tuple[int, int, int]
    shared: tuple[tuple[str, str, int], ...]
    """Arrays in work-group memory: (element type, name, length)."""
    body: str
    cluster: int = 1
    """Work groups, neighbours on the x axis, that can reach each other's memory (CUDA)."""
    side_by_side: int = 1
    """Work groups that one multiprocessor must have registers for at a time (CUDA)."""


class Dialect(ABC):
    """A language: its prelude defines the portable words, `kernel` writes one entry point."""

    name: str
    prelude: str

    @abstractmethod
    def kernel(self, text: KernelText) -> str:
        """Return the source of one entry point, without the prelude."""
