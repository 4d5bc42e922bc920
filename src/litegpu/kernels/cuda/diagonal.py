"""Depthwise convolutions of halves as products with diagonal matrices: cuda/_diagonal.jinja."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.kernels.cuda.halves import halves_of, padded
from litegpu.ops.base import Target
from litegpu.ops.halves import as_halves
from litegpu.ops.window import Pair, Window

CHANNELS = 32
"""Channels of which inputs lie in shared memory together."""
PIXELS = 16
"""Pixels that an instruction makes."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Where inputs of a patch of outputs (lines, pixels) lie in shared memory.

    Images follow each other every `image_lines`. The patch comes in segments of lines that all
    belong to one image; each has the input rows of its window. Of `stride` columns the first ones
    lie side by side, then the second ones: outputs read neighbours then.
    """

    window: Window
    patch: Pair
    image_lines: int

    @property
    def pitch(self) -> int:
        """Bytes from one pixel to the next: 8 neighbours touch every bank of memory once."""
        return 2 * CHANNELS + 16

    @property
    def segment(self) -> int:
        """Lines of a segment."""
        return math.gcd(self.patch[0], self.image_lines)

    @property
    def rows(self) -> int:
        """Input rows of a segment."""
        return _reach(self.window, 0, self.segment)

    @property
    def columns(self) -> int:
        """Input columns that lie side by side, of each of the strides."""
        return -(-_reach(self.window, 1, self.patch[1]) // self.window.stride[1])

    @property
    def row_pixels(self) -> int:
        """Pixels of an input row."""
        return self.columns * self.window.stride[1]

    @property
    def pixels(self) -> int:
        """Pixels in shared memory."""
        return self.patch[0] // self.segment * self.rows * self.row_pixels

    @property
    def bytes(self) -> int:
        """Bytes for CHANNELS of each pixel."""
        return self.pixels * self.pitch

    @property
    def table_bytes(self) -> int:
        """Bytes for the places of all pixels."""
        return round_up(4 * self.pixels, 16)

    def tile_offset(self, tile: int) -> int:
        """Return how many bytes behind its first tile a warp's next ones begin."""
        line, column = divmod(tile * PIXELS, self.patch[1])
        segment, rest = divmod(line, self.segment)
        row = segment * self.rows + rest * self.window.stride[0]
        return (row * self.row_pixels + column) * self.pitch

    def pairs(self) -> Iterator[tuple[tuple[int, int], tuple[int, int | None]]]:
        """Yield what an instruction multiplies: (offset in bytes, tap) twice.

        A tap that is left alone meets itself, without weights.
        """
        (_, kernel_x), (step_y, step_x) = self.window.kernel, self.window.dilation
        stride = self.window.stride[1]
        taps: list[tuple[int, int]] = []
        for y, x in product(*map(range, self.window.kernel)):
            column = x * step_x % stride * self.columns + x * step_x // stride
            place = y * step_y * self.row_pixels + column
            taps.append((place * self.pitch, y * kernel_x + x))
        for first in range(0, len(taps), 2):
            last = first + 1 == len(taps)
            yield taps[first], (taps[first][0], None) if last else taps[first + 1]


def _reach(window: Window, axis: int, size: int) -> int:
    """Return how many inputs so many neighbours read along an axis, with those in between."""
    last = (size - 1) * window.stride[axis]
    return last + (window.kernel[axis] - 1) * window.dilation[axis] + 1


def pack_taps(
    taps: npt.NDArray[np.float32], target: Target, channels: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]:
    """Return taps [H, W, C] as halves [tap, channel] of so many channels, two to a word.

    Where half's range does not suit a channel, they are those of scaled weights, and sums must be
    multiplied by what comes second [channel]. See Halves.
    """
    flat = np.ascontiguousarray(taps.reshape(-1, taps.shape[2]).T)
    halves = halves_of(flat, target, exact=False)
    packed = padded(as_halves(halves.parts[0]).T, channels)
    back = None if halves.back is None else padded(halves.back, channels)
    return np.ascontiguousarray(packed).view(np.uint32).reshape(-1), back
