"""L2 prefetch of later launches' weights.

If the constants of a program exceed the cache, every kernel would wait for the GPU's memory at its
start. A prefetch costs one instruction of a block. ResNet-50 at batch 1, with 52 MB of weights,
takes 287 us on an H200 instead of 295.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from litegpu.backends.program import BufferRange, Launch, Program

_LAUNCHES = 2
"""Distance of the prefetch in launches: the next launch already loads its own weights."""
_UNIT = 16
"""Granularity and alignment of a prefetch in bytes."""


def prefetch_ranges(program: Program, cache_bytes: int) -> Sequence[BufferRange | None]:
    """Return the constants that each launch prefetches, None for none.

    Nothing is prefetched if the cache has twice the size of a run's memory, or if values take more
    memory than constants: ResNet-50 at batch 64 took 0.3 % longer with it.
    """
    constants, values = program.constants.nbytes, program.memory_bytes
    if 2 * (constants + values) <= cache_bytes or values > constants:
        return [None] * len(program.launches)
    largest = [_largest_constants(launch) for launch in program.launches]
    return [*largest[_LAUNCHES:], *[None] * _LAUNCHES][: len(largest)]


def _largest_constants(launch: Launch) -> BufferRange | None:
    constants = (part for part in launch.ranges if part.constant)
    return max(constants, key=attrgetter("size"), default=None)


def prefetch_bytes(ahead: BufferRange, blocks: Sequence[int]) -> int:
    """Return how many bytes each block of a grid prefetches; the last few are omitted."""
    return ahead.size // math.prod(blocks) // _UNIT * _UNIT
