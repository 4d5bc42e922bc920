"""Results of embedders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass
class Embedding:
    """The numbers of one output of a model: float64, or quantized to bytes."""

    embedding: NDArray[Any]
    head_index: int | None = None
    head_name: str | None = None


@dataclass
class EmbeddingResult:
    """The numbers of each output of a model. `timestamp_ms` is that of a part of a sound."""

    embeddings: list[Embedding]
    timestamp_ms: int | None = None
