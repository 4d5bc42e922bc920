"""What kernels ask a GPU's cache for ahead: constants that later ones read.

Where the constants of a program are so many that each run finds none of them in the cache, every
kernel would wait for the GPU's memory at its begin. Asking costs one instruction of a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from litegpu.backends.program import BufferRange, Program

_LAUNCHES = 2
"""How many launches ahead: the next one has begun to read by itself."""
_UNIT = 16
"""Bytes that are asked for together, and what their place is a multiple of."""


def constants_ahead(program: Program, cache_bytes: int) -> Sequence[BufferRange | None]:
    """Return for each launch the constants that it should ask for, None for nothing.

    What a run touches stays in a cache of twice its size: then nothing is asked for.
    """
    largest = [
        max(
            (part for part in launch.ranges if part.constant),
            key=lambda part: part.size,
            default=None,
        )
        for launch in program.launches
    ]
    if 2 * (program.constants.nbytes + program.memory_bytes) <= cache_bytes:
        return [None] * len(largest)
    return [*largest[_LAUNCHES:], None, None][: len(largest)]


def part_ahead(ahead: BufferRange, blocks: Sequence[int]) -> int:
    """Return how many bytes each block of a grid asks for; the last few nobody does."""
    return ahead.size // math.prod(blocks) // _UNIT * _UNIT
