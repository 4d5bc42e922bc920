"""Small models for tasks, and pictures for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from litegpu.tasks import BaseOptions, Image, ImageFormat
from litegpu.zoo.writer import ModelWriter

CPU = BaseOptions.Delegate.CPU


def on_cpu(model: bytes) -> BaseOptions:
    """Return options for a model on the CPU, which compiles nothing."""
    return BaseOptions(model_asset_buffer=model, delegate=CPU)


def picture(height: int = 20, width: int = 30, seed: int = 0) -> Image:
    """Return a picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image(ImageFormat.SRGB, pixels)


def showing(size: int = 10, channels: int = 3) -> bytes:
    """Return a model whose output is its input, `[1, size, size, channels]`."""
    writer = ModelWriter()
    x = writer.input((1, size, size, channels))
    zero = writer.constant(np.zeros(1, np.float32), name="zero")
    writer.output(writer.op("ADD", [x, zero], [x.shape], name="pixels"))
    return writer.build()


def segmenter(scores: npt.ArrayLike, size: int = 10) -> bytes:
    """Return a model that sees scores `[height, width, classes]` on any picture."""
    known = np.asarray(scores, np.float32)[np.newaxis]
    writer = ModelWriter()
    x = writer.input((1, size, size, 3))
    axes = writer.constant(np.array([1, 2, 3], np.int32), name="axes")
    mean = writer.op("MEAN", [x, axes], [(1,)], options={"keep_dims": False})
    zero = writer.constant(np.zeros(1, np.float32), name="zero")
    nothing = writer.op("MUL", [mean, zero], [(1,)])
    scores_in = writer.constant(known, name="scores")
    writer.output(writer.op("ADD", [scores_in, nothing], [known.shape], name="masks"))
    return writer.build()
