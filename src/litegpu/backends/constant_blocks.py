"""Large constants of a program, whose bytes the host has only while it needs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
BLOCK_BYTES = 1 << 18
"""Minimum size in bytes of a constant with a block of its own; drivers allocate whole pages."""
BLOCK_THREADS = min(max(4, (os.cpu_count() or 1) // 2), 8)
"""Number of threads that pack blocks: NumPy releases the GIL, compilers need the other cores."""

LOAD_THREADS = min(os.cpu_count() or 1, 16)
"""Number of threads that read and check the files of blocks."""


class ConstantBlock:
    """A large constant; the host has its bytes only while they are read, unless it keeps them."""

    def __init__(self, nbytes: int, make: Callable[[], Bytes], digest: str = "") -> None:
        """Describe a block whose bytes `make` returns.

        `digest` is the SHA-256 of the bytes in hexadecimal digits; empty if it is unknown.
        """
        self.nbytes, self._make = nbytes, make
        self.digest = digest
        """The SHA-256 of the bytes in hexadecimal digits; empty before the first `read`."""

    @classmethod
    def of(cls, data: Bytes, digest: str = "") -> ConstantBlock:
        """Return a block of bytes that the host keeps."""
        return cls(data.nbytes, lambda: data, digest)

    @classmethod
    def missing(cls, nbytes: int, digest: str) -> ConstantBlock:
        """Return a block that is known only by its size and digest."""

        def fail() -> Bytes:
            raise ValueError(f"the bytes of the block {digest[:12]} are not known")

        return cls(nbytes, fail, digest)

    def read(self) -> Bytes:
        """Return the bytes, which callers must not modify. Any thread may call this."""
        data = self._make()
        if not self.digest:
            self.digest = hashlib.sha256(data.data).hexdigest()
        return data

    def packed(self) -> ConstantBlock:
        """Return the same block, whose bytes the host keeps from now on."""
        return ConstantBlock.of(self.read(), self.digest)

    def freed(self) -> ConstantBlock:
        """Return a block of the same size and digest whose bytes read as zeros."""
        # Without a reference to this block, which may keep all weights from which it is packed.
        nbytes = self.nbytes
        return ConstantBlock(nbytes, lambda: np.zeros(nbytes, np.uint8), self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConstantBlock.of, (self.read(), self.digest)
