"""Small classifiers and detectors with known results, and pictures of one color."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from litegpu.zoo.writer import ModelWriter, TensorRef

SIDE = 8
COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
"""The first classes of `colour_classifier`, by their numbers."""
LABELS = [*COLOURS, *(f"other {number}" for number in range(6))]


def picture(path: Path, colour: str, size: tuple[int, int] = (20, 16)) -> Path:
    """Write a JPEG of one colour."""
    Image.new("RGB", size, COLOURS[colour]).save(path, quality=95)
    return path


def _dense(writer: ModelWriter, x: TensorRef, weights: Any, bias: Any, name: str) -> TensorRef:
    operands = [
        x,
        writer.weights(np.asarray(weights, np.float32), name=f"{name}/weights"),
        writer.weights(np.asarray(bias, np.float32), name=f"{name}/bias"),
    ]
    return writer.op("FULLY_CONNECTED", operands, [(x.shape[0], len(bias))], name=name)


def colour_classifier(side: int = SIDE, outputs: int = 1) -> bytes:
    """Return a model that tells COLOURS apart, float32[1, side, side, 3] to [1, 12]."""
    writer = ModelWriter()
    x = writer.input((1, side, side, 3))
    # The nearest colour c has the largest c·x - c·c / 2; those beyond the list are never near.
    colours = np.array(list(COLOURS.values()), np.float32) / 127.5 - 1
    weights = np.zeros((len(LABELS), side * side * 3), np.float32)
    weights[: len(colours)] = np.tile(colours / side**2, side * side)
    bias = np.full(len(LABELS), -9.0)
    bias[: len(colours)] = -(colours**2).sum(1) / 2
    for number in range(outputs):
        writer.output(_dense(writer, x, weights, bias, f"scores{number}"))
    return writer.build()


def detector(
    boxes: Sequence[Sequence[float]],
    classes: Sequence[float],
    scores: Sequence[float],
    count: float | None = None,
    side: int = SIDE,
) -> bytes:
    """Return a model that finds the same on every picture, as a post-processing gives it."""
    writer = ModelWriter()
    x = writer.input((1, side, side, 3))
    number = len(scores) if count is None else count
    found: list[TensorRef] = []
    for name, values, shape in (
        ("boxes", np.ravel(boxes), (1, len(scores), 4)),
        ("classes", classes, (1, len(scores))),
        ("scores", scores, (1, len(scores))),
        ("count", [number], (1,)),
    ):
        flat = _dense(writer, x, np.zeros((len(values), side * side * 3)), values, name)
        sizes = writer.constant(np.array(shape, np.int32), name=f"{name}/shape")
        found.append(writer.op("RESHAPE", [flat, sizes], [shape], name=f"{name}/result"))
    writer.output(*found)
    return writer.build()
