"""Results of classifiers."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.category import Category


@dataclass
class Classifications:
    """The classes of one model output, sorted by descending score."""

    categories: list[Category]
    head_index: int
    head_name: str | None = None


@dataclass
class ClassificationResult:
    """The classes of each output of a model.

    `timestamp_ms` is the timestamp of an audio chunk, and has no meaning for pictures.
    """

    classifications: list[Classifications]
    timestamp_ms: int | None = None
