"""Models of sounds that return their input."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.writer import ModelWriter
from model_metadata import Noted, Written

LENGTH, RATE = 100, 16000
"""The samples that a model takes, and their rate."""


def hearing(channels: int = 1, sound: tuple[int, int] | None = (RATE, 1), inputs: int = 1) -> bytes:
    """Return a model whose scores are its samples."""
    writer = ModelWriter()
    size = (1, LENGTH * channels)
    x, *others = [writer.input(size, name=f"audio{index}") for index in range(inputs)]
    zero = writer.constant(np.zeros(1, np.float32), name="zero")
    writer.output(writer.op("ADD", [x, *(others or [zero])], [size], name="scores"))
    if sound is None:
        return writer.build()
    return Written([Noted(sound=sound)] * inputs, [Noted("scores")]).on(writer.build())
