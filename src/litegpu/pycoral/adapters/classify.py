"""Results of classifiers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.pycoral.adapters import common
from litegpu.runtime_abi.interpreter import dequantised


class Class(NamedTuple):
    """A class of a picture: its number, and its score."""

    id: int
    score: float


def num_classes(interpreter: Any) -> int:
    """Return the number of classes of a classifier."""
    return int(np.prod(interpreter.get_output_details()[0]["shape"]))


def get_scores(interpreter: Any) -> NDArray[Any]:
    """Return the scores of all classes, one axis; quantized scores are dequantized."""
    detail = interpreter.get_output_details()[0]
    return dequantised(common.output_tensor(interpreter, 0).flatten(), detail)


def get_classes_from_scores(
    scores: NDArray[Any], top_k: float = float("inf"), score_threshold: float = -float("inf")
) -> list[Class]:
    """Return the `top_k` classes with the highest scores, the highest first.

    `scores` has one axis, as from `get_scores`. Classes with a score below `score_threshold` are
    left out.
    """
    order = np.argsort(-np.asarray(scores), kind="stable")[: int(min(top_k, len(scores)))]
    classes = [Class(int(i), float(scores[i])) for i in order]
    return [each for each in classes if each.score >= score_threshold]


def get_classes(
    interpreter: Any, top_k: float = float("inf"), score_threshold: float = -float("inf")
) -> list[Class]:
    """Return the `top_k` classes of a picture after an invoke: see `get_classes_from_scores`."""
    return get_classes_from_scores(get_scores(interpreter), top_k, score_threshold)
