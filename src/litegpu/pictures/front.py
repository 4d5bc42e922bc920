"""The operations that compute a model's input from a picture's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.graph.ir import Quantization
from litegpu.pictures.formats import Colors, Format, Resize
from litegpu.zoo.writer import ModelWriter, TensorRef

OPEN = -1
"""The marker of a dimension whose size is known only at run time."""
_BYTES = {"uint8": 0, "int8": 128}
"""The offset, by input type, that is subtracted from bytes that the input stores directly."""


@dataclass(frozen=True)
class Input:
    """A model input [N, H, W, C]; sizes may be OPEN; integer types have one quantization scale."""

    shape: tuple[int, int, int, int]
    dtype: str
    quantization: Quantization | None = None

    def has_size_of(self, picture: tuple[int, int]) -> bool:
        """Whether pictures of this size need no resizing; a dynamic input size accepts any."""
        size = self.shape[1:3]
        return OPEN in size or size == picture

    @property
    def colors(self) -> int:
        """The number of color channels; a fourth channel is an empty mask."""
        return min(self.shape[3], 3)

    @property
    def stored(self) -> Quantization | None:
        """The quantization for storing a picture's bytes directly in the input."""
        if self.quantization is None:
            return None
        (scale,), (zero,) = self.quantization.scale, self.quantization.zero_point
        return Quantization((scale,), (zero + _BYTES[self.dtype],))


@dataclass(frozen=True)
class Picture:
    """The picture that replaces an input; the model computes `(pixel - mean) / std` from it.

    `mean` and `std` have one entry or one per channel; `colors` is the color space of YUV formats.
    """

    size: tuple[int, int]
    format: Format
    resize: Resize
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    colors: Colors | None = None


def front_of(target: Input, picture: Picture) -> bytes | None:
    """Return the model that computes an input from a picture; None if no op is needed.

    Values stay uint8 as long as the quantized value of each pixel is the byte itself.
    """
    writer = ModelWriter("picture")
    height, width = picture.size
    high, channels = (height * 3 // 2, 1) if picture.colors else (height, picture.format.channels)
    moved = target.stored if _is_stored(target, picture) else None
    x = bytes_in = writer.input(
        (target.shape[0], high, width, channels), np.uint8, name="picture", quantization=moved
    )
    if picture.colors is not None:
        x = _decoded(writer, x, picture, picture.colors)
    else:
        x = _picked(writer, x, picture.format.rgb[: target.colors], moved)
        if not picture.resize.blends:
            x = _resized(writer, x, target, picture, moved)
    if moved is None:
        x = _scaled(writer, _resized(writer, _float(writer, x), target, picture), picture)
    if target.quantization is not None and (moved is None or target.dtype == "int8"):
        x = writer.op(
            *("QUANTIZE", [x], [x.shape]),
            dtype=target.dtype,
            quantization=target.quantization,
            version=2,
        )
    x = _with_mask(writer, x, target)
    if x is bytes_in:
        return None
    writer.output(x)
    return writer.build()


def _is_stored(target: Input, picture: Picture) -> bool:
    """Whether the input stores each byte of the picture directly, as bytes or as bytes - 128."""
    parameters, stored = target.quantization, target.stored
    if parameters is None or stored is None or picture.colors is not None:
        return False
    if picture.resize.blends and not target.has_size_of(picture.size):
        return False
    pixels = np.arange(256, dtype=np.float32)[:, np.newaxis]
    real = (pixels - picture.mean) * (np.float32(1) / picture.std)
    found = np.rint(real / np.float32(parameters.scale[0])) + stored.zero_point[0]
    return bool(np.all(found == pixels))


def _picked(
    writer: ModelWriter, x: TensorRef, picks: tuple[int, ...], q: Quantization | None
) -> TensorRef:
    """Return the R, G and B channels of pixels, or only the gray channel."""
    if picks == tuple(range(x.shape[3])):
        return x
    shape = (*x.shape[:3], len(picks))
    if len({*picks}) < len(picks):
        indices = writer.constant(picks, np.int32, name="channels")
        options: dict[str, Any] = {"axis": 3}
        return writer.op(
            "GATHER", [x, indices], [shape], options=options, dtype=np.uint8, quantization=q
        )
    step = picks[1] - picks[0] if len(picks) > 1 else 1
    begin, end = picks[0], picks[-1] + step
    # No index precedes the first channel: a mask lets the slice start at the end.
    masks = {"begin_mask": 0b0111, "end_mask": 0b0111 | (0b1000 if end < 0 else 0)}
    bounds = ((0, 0, 0, begin), (0, 0, 0, max(end, 0)), (1, 1, 1, step))
    operands = [writer.constant(each, np.int32, name="slice") for each in bounds]
    return writer.op(
        *("STRIDED_SLICE", [x, *operands], [shape]), options=masks, dtype=np.uint8, quantization=q
    )


def _decoded(writer: ModelWriter, x: TensorRef, picture: Picture, colors: Colors) -> TensorRef:
    """Convert NV12 (rows of Y, then rows of alternating U and V) to R, G and B from 0 to 255."""
    batch, high, width, _ = x.shape
    height = picture.size[0]
    shape = (batch, height, width, 3)
    size = writer.constant((height, width), np.int32, name="size")
    parts = [_plane(writer, x, range(height), range(width))]
    for first in (0, 1):
        half = _plane(writer, x, range(height, high), range(first, width, 2))
        operands = [half, size]
        parts.append(
            writer.op("RESIZE_NEAREST_NEIGHBOR", operands, [(*shape[:3], 1)], dtype=np.uint8)
        )
    yuv = writer.op("CONCATENATION", parts, [shape], options={"axis": 3}, dtype=np.uint8)
    weights, bias = colors.matrix()
    # Odd rows and columns without color are cut off, as by all decoders.
    rgb = writer.op(
        "CONV_2D",
        [
            _float(writer, yuv),
            writer.constant(weights.reshape(3, 1, 1, 3), name="colors"),
            writer.constant(bias, name="colors"),
        ],
        [shape],
        options={
            "padding": "VALID",
            "stride_h": 1,
            "stride_w": 1,
            "fused_activation_function": "RELU",
        },
    )
    return writer.op("MINIMUM", [rgb, writer.constant(np.float32(255), name="white")], [shape])


def _plane(writer: ModelWriter, x: TensorRef, rows: range, columns: range) -> TensorRef:
    """Return the pixels in certain rows and columns."""
    begin, end = (0, rows.start, columns.start, 0), (0, rows.stop, columns.stop, 0)
    bounds = (begin, end, (1, 1, columns.step, 1))
    operands = [writer.constant(each, np.int32, name="slice") for each in bounds]
    shape = (x.shape[0], len(rows), len(columns), 1)
    masks = {"begin_mask": 0b1001, "end_mask": 0b1001}
    return writer.op("STRIDED_SLICE", [x, *operands], [shape], options=masks, dtype=np.uint8)


def _float(writer: ModelWriter, x: TensorRef) -> TensorRef:
    return x if x.dtype == "float32" else writer.op("CAST", [x], [x.shape], options=_TO_FLOAT)


_TO_FLOAT = {"in_data_type": "UINT8", "out_data_type": "FLOAT32"}


def _resized(
    writer: ModelWriter,
    x: TensorRef,
    target: Input,
    picture: Picture,
    quantization: Quantization | None = None,
) -> TensorRef:
    """Return the picture resized to the input's size, if the input has a fixed size."""
    if target.has_size_of((x.shape[1], x.shape[2])):
        return x
    size = target.shape[1:3]
    return writer.op(
        *(picture.resize.op, [x, writer.constant(size, np.int32, name="size")]),
        [(x.shape[0], *size, x.shape[3])],
        options=picture.resize.options,
        dtype=x.dtype,
        quantization=quantization,
        version=3 if picture.resize.options else 1,
    )


def _scaled(writer: ModelWriter, x: TensorRef, picture: Picture) -> TensorRef:
    """Return `(x - mean) / std`, by multiplying with the reciprocal."""
    if np.any(picture.mean):
        x = writer.op("SUB", [x, writer.constant(picture.mean, name="mean")], [x.shape])
    if np.any(picture.std != 1):
        factor = writer.constant(np.float32(1) / picture.std, name="scale")
        x = writer.op("MUL", [x, factor], [x.shape])
    return x


def _with_mask(writer: ModelWriter, x: TensorRef, target: Input) -> TensorRef:
    """Return the picture with an empty mask channel, if the input has one."""
    missing = target.shape[3] - target.colors
    if not missing:
        return x
    pads = writer.constant([[0, 0], [0, 0], [0, 0], [0, missing]], np.int32, name="mask")
    return writer.op(
        *("PAD", [x, pads], [(*x.shape[:3], target.shape[3])]),
        dtype=x.dtype,
        quantization=target.quantization,
        version=1 if target.quantization is None else 2,
    )
