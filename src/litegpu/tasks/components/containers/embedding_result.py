"""Results of embedders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass
class Embedding:
    """The embedding vector of one model output: float64, or quantized to bytes."""

    embedding: NDArray[Any]
    head_index: int | None = None
    head_name: str | None = None


@dataclass
class EmbeddingResult:
    """The embedding vector of each model output.

    `timestamp_ms` is the timestamp of an audio chunk, and has no meaning for pictures.
    """

    embeddings: list[Embedding]
    timestamp_ms: int | None = None
