"""The interface of a GPU language, which turns a kernel body into a compilable kernel."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Groups = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Argument:
    """A buffer argument of a kernel; a kernel accesses a `vector` buffer 4 elements at a time.

    `kind` is the element type: U32 or one of litegpu.codegen.registers.KINDS. A `constant` buffer
    never changes while the partition exists.
    """

    name: str
    kind: str
    vector: bool
    written: bool
    constant: bool = False


@dataclass(frozen=True, slots=True)
class LaunchAttributes:
    """Launch parameters of a kernel in addition to the number of its work groups."""

    cluster_size: int = 1
    """Number of adjacent work groups on the x axis that share their memory (CUDA clusters)."""
    min_blocks: int = 0
    """Minimum number of work groups for which a multiprocessor has registers (CUDA); 0:
    unspecified.

    The compiler may use all registers that this number of work groups permits. By default, the
    compiler minimizes registers.
    """
    folded: Groups | None = None
    """Number of work groups on each axis, if the launch folds the grid to the x and y axes.

    The folded launch may have surplus work groups. If `folded` is None, the launch does not fold
    the grid.
    """


PLAIN_LAUNCH = LaunchAttributes()


SHARED_SIZES = {"float": 4, "float4": 16, "int": 4, "int4": 16, "uint4": 16, "Long4": 32}
"""Size in bytes of each element type in shared memory; all dialects have these types."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """A rendered kernel in the portable dialect, before it is translated to a language."""

    name: str
    arguments: tuple[Argument, ...]
    local_size: tuple[int, int, int]
    shared: tuple[tuple[str, str, int], ...]
    """Arrays in shared memory: (element type, name, length)."""
    body: str
    attributes: LaunchAttributes = PLAIN_LAUNCH

    @property
    def shared_bytes(self) -> int:
        """The total size in bytes of the kernel's arrays in shared memory."""
        return sum(SHARED_SIZES[kind] * length for kind, _, length in self.shared)

    def grid_indices(self) -> Iterator[tuple[str, str, int]]:
        """Yield for each axis of a folded grid: its name, the text of the group's index, its items.

        In the texts of `grid_indices`, GROUP is the number of the work group in the launch.
        """
        if self.attributes.folded is not None:
            x, y, _ = self.attributes.folded
            grid_indices = (f"(GROUP % {x})", f"(GROUP / {x} % {y})", f"(GROUP / {x * y})")
            yield from zip("XYZ", grid_indices, self.local_size, strict=True)


_INTEGER_WORD = re.compile(r"int4|Long4|ROUND4_F16|_BITS\b|\bBITS_|_[ISU](8|16|64|32)\b")


class Dialect(ABC):
    """A GPU language: its prelude defines the macros and functions of the portable dialect.

    `integers` defines the integer macros and functions, for kernels that use them.
    """

    name: str
    prelude: str
    integers: str

    def source(self, kernels: Sequence[KernelText]) -> str:
        """Return a program with the given entry points and the functions that they use."""
        integers = any(_INTEGER_WORD.search(text.body) for text in kernels)
        words = self.prelude + (self.integers if integers else "")
        return words + "\n".join(map(self.kernel, kernels))

    @abstractmethod
    def kernel(self, text: KernelText) -> str:
        """Return the source of one entry point, without the prelude."""
