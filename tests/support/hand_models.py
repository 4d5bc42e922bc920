"""Models that detect palms, hands and gestures on any picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from containers import bundle
from litegpu.files.metadata import AttachedFile, FileKind
from litegpu.zoo.writer import ModelWriter
from model_metadata import Noted, Written
from seeing_models import saying

HAND = np.random.default_rng(0).uniform(40, 180, (21, 3)).astype(np.float32)
WORLD = np.random.default_rng(1).normal(0, 0.05, (21, 3)).astype(np.float32)
DETECTOR, LANDMARKS = "hand_detector.tflite", "hand_landmarks_detector.tflite"
CANNED, CUSTOM = ("None", "Open_Palm", "Victory"), ("None", "rock")
MIDDLE = 2 * (12 * 24 + 12)
"""The first anchor of the cell right of and below the middle, at 100 of 192 pixels."""


def palms(*rows: tuple[int, float]) -> bytes:
    """Return a detector that sees palms of 40 pixels: the anchor and the logit of each.

    The middle finger is above the wrist, so that the rectangle of a hand is turned by 90 radians
    less a right angle.
    """
    codes, logits = np.zeros((1, 2016, 18)), np.full((1, 2016, 1), -200.0)
    for row, logit in rows:
        codes[0, row, :4] = -4, -4, 40, 40
        codes[0, row, 8:10] = 0, -20
        logits[0, row] = logit
    return saying({"codes": codes, "logits": logits}, size=192)


def hands(presence: float = 0.9, right: float = 0.8) -> bytes:
    """Return a landmark model that sees the same hand in each rectangle."""
    answers: dict[str, Any] = {
        "landmarks": HAND.reshape(1, 63),
        "presence": [[presence]],
        "right": [[right]],
        "world": WORLD.reshape(1, 63),
    }
    return saying(answers, size=224)


def task_file(detector: bytes | None = None, landmarks: bytes | None = None) -> bytes:
    """Return a bundle of a HandLandmarker; without arguments, its models see one hand."""
    members = {DETECTOR: detector or palms((MIDDLE, 3.0)), LANDMARKS: landmarks or hands()}
    return bundle(members)


def embedder(sizes: Sequence[tuple[int, ...]] = ((1, 21, 3), (1, 1), (1, 21, 3))) -> bytes:
    """Return an embedder whose embedding is its inputs, one after the other."""
    writer = ModelWriter()
    parts = [writer.input(size, name=f"input{index}") for index, size in enumerate(sizes)]
    total = sum(int(np.prod(size)) for size in sizes)
    flat = []
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        count = int(np.prod(size))
        shape = writer.constant(np.array([1, count], np.int32), name=f"shape{index}")
        flat.append(writer.op("RESHAPE", [part, shape], [(1, count)], name=f"flat{index}"))
    writer.output(writer.op("CONCATENATION", flat, [(1, total)], options={"axis": 1}, name="all"))
    return writer.build()


def classifier(names: Sequence[str], scores: Sequence[float], size: int = 127) -> bytes:
    """Return a classifier with these scores, whatever it gets."""
    writer = ModelWriter()
    x = writer.input((1, size), name="embedding")
    constants = [
        writer.constant(np.zeros((len(names), size), np.float32), name="weights"),
        writer.constant(np.array(scores, np.float32), name="bias"),
    ]
    writer.output(writer.op("FULLY_CONNECTED", [x, *constants], [(1, len(names))], name="scores"))
    file = AttachedFile("labels.txt", FileKind.AXIS_LABELS)
    noted = Written([Noted()], [Noted(files=[file])], files={"labels.txt": "\n".join(names)})
    return noted.on(writer.build())


def gesture_file(
    canned: bytes | None = None, custom: bytes | None = None, hand_file: bytes | None = None
) -> bytes:
    """Return a bundle of a GestureRecognizer; without arguments, the gesture is Victory."""
    members = {
        "gesture_embedder.tflite": embedder(),
        "canned_gesture_classifier.tflite": canned or classifier(CANNED, [0.2, 0.3, 0.5]),
    }
    if custom is not None:
        members["custom_gesture_classifier.tflite"] = custom
    return bundle(
        {
            "hand_landmarker.task": hand_file or task_file(),
            "hand_gesture_recognizer.task": bundle(members),
        }
    )
