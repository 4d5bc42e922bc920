"""Shared parts of cases of quantized tensors: stored integers, scales, zero points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cases.base import Array, Range, Shape
from litegpu.graph import Quantization

ORDINARY, POWER, WIDE = "ordinary", "power", "wide"
"""Kinds of scales: as converters write them, powers of two (many sums are ties), far apart."""


@dataclass(frozen=True)
class Stored(Range):
    """Stored integers of a type, its ends among them."""

    low: float = 0.0
    high: float = 0.0
    dtype: str = "int8"

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements over the whole range; every eighth is an end."""
        ends = np.iinfo(self.dtype)
        drawn = random.integers(ends.min, ends.max, shape, self.dtype, endpoint=True)
        extreme = random.choice(np.array([ends.min, ends.max], self.dtype), shape)
        return np.where(random.integers(0, 8, shape) == 0, extreme, drawn)


def quantization(
    random: np.random.Generator, dtype: str, kind: str, real: float = 1.0, channels: int = 0
) -> Quantization:
    """Draw the quantization of a tensor whose stored integers stand for about -real to real.

    With `channels` there is a scale for each, and the zero points are 0, as of int16.
    """
    count = max(channels, 1)
    factors = {
        ORDINARY: random.uniform(0.5, 2.0, count),
        POWER: 2.0 ** random.integers(-1, 2, count),
        WIDE: 10.0 ** random.uniform(-3, 1, count),
    }[kind]
    ends = np.iinfo(dtype)
    size = 2.0 ** np.round(np.log2(real)) if kind == POWER else real
    scales = np.asarray(2 * size / (int(ends.max) - int(ends.min) + 1) * factors, np.float32)
    middle = (int(ends.min) + int(ends.max) + 1) // 2
    zero = 0 if channels or dtype == "int16" else int(middle + random.integers(-100, 101))
    return Quantization(tuple(map(float, scales)), (zero,) * count)
