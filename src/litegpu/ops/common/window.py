"""The sliding windows of convolutions and pools, with their padding and output size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from litegpu.codegen.storage import Shape4 as Shape4  # for passes, too

Pair = tuple[int, int]

LOADS_AT_ONCE = 24
"""Maximum number of loads of a depthwise convolution for which a CUDA thread has enough registers.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """A window over H and W; `pads` are the rows above the image and the columns left of it.

    The image may be upsampled `zoom` times by repetition (nearest neighbor). Pixels outside the
    image are zeros or, with `mirror`, the image's reflection. The edge pixel is repeated if
    `mirror` is -1, and not repeated if `mirror` is 0.
    """

    kernel: Pair
    stride: Pair
    dilation: Pair = (1, 1)
    pads: Pair = (0, 0)
    zoom: Pair = (1, 1)
    mirror: int | None = None

    @property
    def pointwise(self) -> bool:
        """Whether each output pixel reads only the input pixel at the same position."""
        single = self.kernel == (1, 1) and self.stride == (1, 1)
        return single and self.pads == (0, 0) and self.zoom == (1, 1)

    @property
    def plain(self) -> bool:
        """Whether the image is neither upsampled nor reflected."""
        return self.zoom == (1, 1) and self.mirror is None

    def seen(self, image: Pair) -> Pair:
        """Return the (H, W) of the upsampled image."""
        return image[0] * self.zoom[0], image[1] * self.zoom[1]

    def seen_by(self, patch: Pair) -> Pair:
        """Return the (H, W) of the input region that the windows of an output patch read."""
        lines, pixels = (
            (size - 1) * stride + (taps - 1) * dilation + 1
            for size, taps, stride, dilation in zip(
                patch, self.kernel, self.stride, self.dilation, strict=True
            )
        )
        return lines, pixels

    def words(self, image: Pair) -> dict[str, Any]:
        """Return the template variables of a window over an image (H, W).

        `coordinate(axis, index)` is the text of an image row or column, for indices inside the
        image.
        """
        return {
            "kernel": self.kernel,
            "stride": self.stride,
            "dilation": self.dilation,
            "pads": self.pads,
            "seen": self.seen(image),
            "mirrors": self.mirror is not None,
            "coordinate": partial(self._coordinate, image),
        }

    def _coordinate(self, image: Pair, axis: int, index: str) -> str:
        if self.mirror is not None:
            index = mirrored(index, self.mirror, self.seen(image)[axis])
        return f"({index}) / {self.zoom[axis]}" if self.zoom[axis] > 1 else index

    def elements_read(self, rows: int, padded_channels: int) -> int:
        """Return the maximum number of elements that `rows` outputs read from an image."""
        return rows * self.kernel[0] * self.kernel[1] * padded_channels

    def leaves(self, image: Pair, output: Pair) -> bool:
        """Whether a window of an output (H, W) reads zeros outside the image."""
        if self.mirror is not None:
            return False
        for size, out, k, s, d, p in zip(
            *(self.seen(image), output, self.kernel, self.stride, self.dilation, self.pads),
            strict=True,
        ):
            if p > 0 or (out - 1) * s - p + (k - 1) * d >= size:
                return True
        return False


def readers(view: Window, axis: int, size: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the inputs that adjacent outputs along an axis read: (offset, [(neighbor, tap)])."""
    found: dict[int, list[tuple[int, int]]] = {}
    for tap in range(view.kernel[axis]):
        for neighbour in range(size):
            offset = neighbour * view.stride[axis] + tap * view.dilation[axis]
            found.setdefault(offset, []).append((neighbour, tap))
    return sorted(found.items())


def mirrored(index: str, edge: int, size: int) -> str:
    """Return the text of an index reflected at both ends; for `edge`, see Window.mirror."""
    inner = f"max({index}, {edge} - ({index}))"
    return f"min({inner}, {2 * size - 2 - edge} - {inner})"


POINT = Window((1, 1), (1, 1))
"""The 1x1 window of a product with a matrix."""


@dataclass(frozen=True, slots=True)
class DepthwiseAttributes:
    """The window, and value ids of weights [1, H, W, O] and of the bias [O] (or ABSENT)."""

    window: Window
    weights: int
    bias: int

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.weights, self.bias)


@dataclass(frozen=True, slots=True)
class PoolAttributes:
    """The window of a pool. The kernel skips taps outside the image, or reads them as `outside`.

    For quantized tensors, `outside` is a stored integer.
    """

    window: Window
    outside: float | None = None


def output_size(size: int, kernel: int, stride: int, dilation: int, padding: str) -> int:
    """Return the number of window positions along an axis, below 1 if the window does not fit."""
    extent = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == "same" else (size + stride - extent) // stride


def leading_pad(size: int, out: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the padding before the first pixel along an axis for SAME padding."""
    extent = (kernel - 1) * dilation + 1
    return max((out - 1) * stride + extent - size, 0) // 2


def window_of(params: Mapping[str, Any], kernel: Pair, image: Pair) -> Window:
    """Return the window of a node from its parameters, kernel and image size (H, W)."""
    stride = (params["stride_height"], params["stride_width"])
    dilation = (params.get("dilation_height_factor", 1), params.get("dilation_width_factor", 1))
    pads = (0, 0)
    if params["padding"] == "same":
        out = output_shape(params, kernel, image)
        top, left = (
            leading_pad(image[i], out[i], kernel[i], stride[i], dilation[i]) for i in (0, 1)
        )
        pads = (top, left)
    return Window(kernel, stride, dilation, pads)


def output_shape(params: Mapping[str, Any], kernel: Pair, image: Pair) -> Pair:
    """Return the output's (H, W)."""
    stride = (params["stride_height"], params["stride_width"])
    dilation = (params.get("dilation_height_factor", 1), params.get("dilation_width_factor", 1))
    height, width = (
        output_size(image[i], kernel[i], stride[i], dilation[i], params["padding"]) for i in (0, 1)
    )
    return height, width


def result_shape(
    params: Mapping[str, Any], image: tuple[int, ...], kernel: Pair, channels: int
) -> tuple[int, ...]:
    """Return the output's [N, H, W, C] for an image [N, H, W, ...]."""
    n, height, width, _ = image
    return (n, *output_shape(params, kernel, (height, width)), channels)


def check_window(params: Mapping[str, Any], kernel: Pair, image: Pair) -> str:
    """Return why a window is not supported, or an empty text."""
    strides = (params["stride_height"], params["stride_width"])
    dilations = (params.get("dilation_height_factor", 1), params.get("dilation_width_factor", 1))
    for what, pair in (("kernel", kernel), ("stride", strides), ("dilation", dilations)):
        # The CPU also rejects values above 2^15, and indices would exceed 32 bits.
        if not 1 <= min(pair) <= max(pair) < 1 << 15:
            return f"Incorrect {what} values: {what}_height = {pair[0]}, {what}_width = {pair[1]}"
    if params["padding"] not in ("same", "valid"):
        return f"Unknown padding: {params['padding']}"
    if min(output_shape(params, kernel, image)) < 1:
        return f"The {kernel} window does not fit into the {image} image."
    return ""
