"""Models that detect a face on any picture, and the metadata of its geometry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from containers import bundle
from litegpu.files import wire
from litegpu.tasks.vision.core.face_geometry import POINTS
from litegpu.zoo.writer import ModelWriter
from seeing_models import saying

FACE = np.random.default_rng(0).uniform(30, 160, (478, 3)).astype(np.float32)
CANONICAL = np.random.default_rng(1).normal(0, 5, (POINTS, 3)).astype(np.float32)
WEIGHTS = {4: 0.5, 33: 0.2, 263: 0.2, 10: 0.1, 152: 0.3}
DETECTOR, LANDMARKS = "face_detector.tflite", "face_landmarks_detector.tflite"
BLENDSHAPES = "face_blendshapes.tflite"
GEOMETRY = "geometry_pipeline_metadata_landmarks.binarypb"
MIDDLE = 2 * (8 * 16 + 8)
"""The first anchor of the cell right of and below the middle, at 68 of 128 pixels."""


def faces(*rows: tuple[int, float]) -> bytes:
    """Return a detector that sees faces of 40 pixels with level eyes: anchors and logits."""
    codes, logits = np.zeros((1, 896, 16)), np.full((1, 896, 1), -200.0)
    for row, logit in rows:
        codes[0, row, :4] = -4, -4, 40, 40
        codes[0, row, 6] = 10
        logits[0, row] = logit
    return saying({"codes": codes, "logits": logits}, size=128)


def landmarks(logit: float = 3.0) -> bytes:
    """Return a landmark model that sees the same face in each rectangle."""
    return saying({"landmarks": FACE.reshape(1, 1434), "presence": [[logit]]}, size=192)


def blendshapes(points: int = 146, count: int = 52) -> bytes:
    """Return a model whose results are the first numbers that it gets."""
    writer = ModelWriter()
    x = writer.input((1, points, 2))
    shape = writer.constant(np.array([1, 2 * points], np.int32), name="shape")
    flat = writer.op("RESHAPE", [x, shape], [(1, 2 * points)], name="flat")
    operands = [
        writer.constant(np.eye(count, 2 * points, dtype=np.float32), name="weights"),
        writer.constant(np.zeros(count, np.float32), name="bias"),
    ]
    writer.output(writer.op("FULLY_CONNECTED", [flat, *operands], [(1, count)], name="scores"))
    return writer.build()


def geometry(
    weights: Mapping[int, float] = WEIGHTS, vertices: int = POINTS, *, packed: bool = False
) -> bytes:
    """Return the metadata of the geometry, as MediaPipe's protocol buffers write them."""
    rows = np.zeros((vertices, 5), np.float32)
    rows[:, :3] = CANONICAL[:vertices]
    values = [(3, rows.tobytes())] if packed else wire.repeated(3, rows.ravel())
    basis = [
        (2, wire.message((1, number), (2, np.float32(weight))))
        for number, weight in weights.items()
    ]
    return wire.message((3, 1), *basis, (1, wire.message(*values)))


def face_file(members: Mapping[str, bytes] | None = None) -> bytes:
    """Return a bundle whose models see one face; `members` replace its models."""
    known = {DETECTOR: faces((MIDDLE, 3.0)), LANDMARKS: landmarks()}
    known |= {BLENDSHAPES: blendshapes(), GEOMETRY: geometry()}
    return bundle({**known, **(members or {})})
