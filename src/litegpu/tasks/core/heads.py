"""The outputs of classifiers: scores of classes, which become categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.errors import ModelError
from litegpu.files.metadata import FileKind
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.classification_result import (
    ClassificationResult,
    Classifications,
)
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions
from litegpu.tasks.core.classes import ScoreCalibration, classes_of
from litegpu.tasks.core.model import Floats, TaskModel


class ClassHead:
    """A model output with a score for each class."""

    def __init__(self, model: TaskModel, output: int, options: ClassifierOptions) -> None:
        """Read the names of the classes.

        Raises:
            ModelError: the number of names is not that of the classes, or the metadata are damaged.
            TaskError: an allowlist or denylist is given, and the model has no class names.
        """
        note = model.note(output)
        self.name = note.name or None
        self._classes = classes_of(model.content, options, note, note, FileKind.AXIS_LABELS)
        self._calibration = ScoreCalibration.of(model.content, note)
        self._most = options.most
        size = int(np.prod(model.shapes[output]))
        if self._classes.names and len(self._classes.names) != size:
            raise ModelError(
                f"The model has {size} classes and {len(self._classes.names)} names of classes. "
                "Attach a file with a line for each class."
            )

    def __call__(self, scores: Floats) -> list[Category]:
        """Return the classes that the options select, sorted by descending score."""
        scores = scores.ravel()
        if self._calibration is not None:
            scores = self._calibration(scores, np.arange(len(scores)))
        found: list[Category] = []
        for index in np.argsort(-scores, kind="stable").tolist():
            score = float(scores[index])
            if score < self._classes.threshold or len(found) == self._most:
                break
            if self._classes.counts(index, score):
                found.append(self._classes.category(index, score))
        return found


def class_heads(model: TaskModel, options: ClassifierOptions) -> list[ClassHead]:
    """Return all outputs of a classifier. Raises as the constructor of ClassHead."""
    return [ClassHead(model, output, options) for output in range(len(model.shapes))]


def classified(
    heads: Sequence[ClassHead], outputs: Sequence[Floats], timestamp_ms: int | None
) -> ClassificationResult:
    """Return the classes of each output of a classifier."""
    pairs = enumerate(zip(heads, outputs, strict=True))
    return ClassificationResult(
        [Classifications(head(scores), number, head.name) for number, (head, scores) in pairs],
        timestamp_ms,
    )
