"""Tables of the supported picture formats, resize methods and color spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NV12 = "nv12"


@dataclass(frozen=True)
class Format:
    """A pixel format: the number of channels, and the channel indices of R, G and B."""

    channels: int
    rgb: tuple[int, ...] = ()


FORMATS = {
    "rgb8": Format(3, (0, 1, 2)),
    "bgr8": Format(3, (2, 1, 0)),
    "rgba8": Format(4, (0, 1, 2)),
    "bgra8": Format(4, (2, 1, 0)),
    "gray8": Format(1, (0, 0, 0)),
    NV12: Format(1),
}


@dataclass(frozen=True)
class Resize:
    """A resize op of the runtime with its options.

    `blends` is true if the op interpolates, so that results are not integers.
    """

    op: str
    options: Mapping[str, Any] = field(default_factory=dict)
    blends: bool = True


RESIZES = {
    "bilinear": Resize("RESIZE_BILINEAR"),
    "bilinear_half_pixel": Resize("RESIZE_BILINEAR", {"half_pixel_centers": True}),
    "nearest": Resize("RESIZE_NEAREST_NEIGHBOR", blends=False),
}


@dataclass(frozen=True)
class Colors:
    """A YUV color space: the weights of red and blue in Y, and whether Y has the full range."""

    red: float
    blue: float
    full: bool = False

    def matrix(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return `m`, [3, 3], and `b`, [3], where m @ (Y, U, V) + b is (R, G, B), from 0 to 255."""
        low, luma, chroma = (0.0, 1.0, 1.0) if self.full else (16.0, 255 / 219, 255 / 224)
        to_red, to_blue = 2 * (1 - self.red) * chroma, 2 * (1 - self.blue) * chroma
        green = 1 - self.red - self.blue
        rows = np.array(
            [
                [luma, 0, to_red],
                [luma, -to_blue * self.blue / green, -to_red * self.red / green],
                [luma, to_blue, 0],
            ]
        )
        return rows.astype(np.float32), (-rows @ [low, 128, 128]).astype(np.float32)


COLORS = {
    "bt601": Colors(0.299, 0.114),
    "bt709": Colors(0.2126, 0.0722),
    "bt601_full": Colors(0.299, 0.114, full=True),
    "bt709_full": Colors(0.2126, 0.0722, full=True),
}
