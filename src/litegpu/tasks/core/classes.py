"""The classes of a model output: names, allowlist, denylist and calibrated scores."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, TaskError
from litegpu.files.metadata import Calibration, FileKind, TensorNotes, attached_file
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions

_log = logging.getLogger("litegpu")

Floats = NDArray[np.float32]
_MIN_SCORE = 1e-16
"""Scores are clipped to at least this value before the logarithm."""
_LOGARITHM, _INVERSE_LOGISTIC = 1, 2


@dataclass(frozen=True)
class Classes:
    """The classes of a model output."""

    names: Sequence[str] = ()
    display_names: Sequence[str] = ()
    threshold: float = -np.inf
    ignored: frozenset[int] = field(default_factory=frozenset)

    def counts(self, index: int, score: float) -> bool:
        """Return whether a class with this score belongs to the results."""
        return index not in self.ignored and not score < self.threshold

    def category(self, index: int, score: float) -> Category:
        """Return a class with its score."""
        name = self.names[index] if 0 <= index < len(self.names) else ""
        shown = self.display_names[index] if 0 <= index < len(self.display_names) else ""
        return Category(index, score, shown, name)


def classes_of(
    model: bytes,
    options: ClassifierOptions,
    labels: TensorNotes,
    scores: TensorNotes,
    kind: FileKind,
) -> Classes:
    """Return the classes of an output.

    Args:
        model: the bytes of the model, to which the names are attached.
        options: the options of the task.
        labels: the metadata of the output whose values or axis entries the labels describe.
        scores: the metadata of the output with the scores.
        kind: the kind of the labels file, a FileKind.

    Raises:
        TaskError: an allowlist or denylist contains class names, but the model has none.
    """
    names = attached_labels(model, labels.file(kind))
    displayed = attached_labels(model, labels.file(kind, options.display_names_locale or "en"))
    allowed, denied = options.category_allowlist or (), options.category_denylist or ()
    if (allowed or denied) and not names:
        raise TaskError(
            "category_allowlist and category_denylist need the names of the classes, and the "
            "metadata of the model have none. Leave them out, or add labels to the model."
        )
    ignored = {
        index
        for index, name in enumerate(names)
        if name in denied or (allowed and name not in allowed)
    }
    threshold = options.score_threshold
    if threshold is None:
        threshold = -np.inf if scores.score_threshold is None else scores.score_threshold
    return Classes(names, displayed, threshold, frozenset(ignored))


def attached_labels(model: bytes, file: str) -> list[str]:
    """Return the lines of a labels file attached to the model; no lines if there is no such file.

    Logs a warning if the metadata name a file that is missing: the results then have no names.
    """
    content = attached_file(model, file) if file else b""
    if content is None:
        _log.warning(
            "The metadata of the model name the labels file '%s', which is not attached to the "
            "model. Results have no names.",
            file,
        )
        return []
    return content.decode(errors="replace").splitlines()


class ScoreCalibration:
    """Calibrates scores with a separate sigmoid for each class."""

    def __init__(self, calibration: Calibration, text: str) -> None:
        """Parse the attached file: each line has scale, slope, offset and the minimum score.

        An empty line means that the class has no sigmoid. Raises ModelError for malformed lines.
        """
        self._kind = calibration.transformation
        self._default = np.float32(calibration.default_score)
        rows = [self._row(number, line) for number, line in enumerate(text.split("\n"), 1)]
        self._sigmoids = np.array(rows, np.float32)

    @staticmethod
    def of(model: bytes, notes: TensorNotes) -> ScoreCalibration | None:
        """Return the calibration specified in the metadata, or None if there is none.

        Raises:
            ModelError: the file with the calibration parameters is missing or damaged.
        """
        if notes.calibration is None:
            return None
        file = notes.file(FileKind.SCORE_CALIBRATION)
        if not file:
            raise ModelError(
                "The metadata of the model calibrate scores without a file of parameters. Attach "
                "one of the type TENSOR_AXIS_SCORE_CALIBRATION."
            )
        content = attached_file(model, file)
        if content is None:
            raise ModelError(
                f"The metadata of the model name the file '{file}', which is not attached to it. "
                "Attach it, or remove it from the metadata."
            )
        return ScoreCalibration(notes.calibration, content.decode(errors="replace"))

    @staticmethod
    def _row(number: int, line: str) -> list[float]:
        if not line.strip():
            return [np.nan] * 4
        try:
            values = [float(each) for each in line.split(",")]
        except ValueError:
            values = []
        if len(values) not in (3, 4) or values[0] < 0:
            raise ModelError(
                f"Line {number} of the score calibration is '{line}'. It must be a scale that is "
                "not negative, a slope and an offset, and may have a least score."
            )
        return [*values, *[-np.inf] * (4 - len(values))]

    def __call__(self, scores: Floats, classes: NDArray[np.int64]) -> Floats:
        """Return the calibrated scores of classes. Raises ModelError for an unknown class."""
        if classes.size and not 0 <= classes.min() <= classes.max() < len(self._sigmoids):
            raise ModelError(
                f"The score calibration has {len(self._sigmoids)} lines, and the model returns the "
                f"classes {classes.min()} to {classes.max()}. Attach a file with a line for each."
            )
        scale, slope, offset, least = self._sigmoids[classes].T
        with np.errstate(over="ignore"):
            found = scale / (1 + np.exp(-(self._transformed(scores) * slope + offset)))
        plain = np.isnan(scale) | (scores < least)
        calibrated: Floats = np.where(plain, self._default, found).astype(np.float32)
        return calibrated

    def _transformed(self, scores: Floats) -> NDArray[np.float64]:
        wide = scores.astype(np.float64)
        if self._kind == _LOGARITHM:
            return np.log(np.maximum(wide, _MIN_SCORE))
        if self._kind == _INVERSE_LOGISTIC:
            log, other = (np.log(np.maximum(each, _MIN_SCORE)) for each in (wide, 1 - wide))
            difference: NDArray[np.float64] = log - other
            return difference
        return wide
