"""The similarity of two embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import TaskError
from litegpu.tasks.components.containers.embedding_result import Embedding


def cosine_similarity(u: Embedding, v: Embedding) -> float:
    """Return the cosine of the angle between two embeddings, from -1 to 1.

    Raises:
        TaskError: the embeddings differ in length or type, are empty, or one has only zeros.
    """
    if len(u.embedding) != len(v.embedding):
        raise TaskError(
            f"The embeddings have {len(u.embedding)} and {len(v.embedding)} numbers. Give two of "
            "the same model."
        )
    if len(u.embedding) == 0:
        raise TaskError("The embeddings are empty. Give two that a model has returned.")
    one, other = _floats(u.embedding), _floats(v.embedding)
    if u.embedding.dtype != v.embedding.dtype:
        raise TaskError(
            "One embedding is quantized, the other is not. Give two of the same options."
        )
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    if norms <= 0:
        raise TaskError("An embedding has only zeros, and no direction. Give another picture.")
    return float(one.dot(other)) / norms


def _floats(embedding: NDArray[Any]) -> NDArray[np.float64]:
    """Return an embedding as floats; a quantized embedding is int8 data stored as uint8."""
    if embedding.dtype == np.uint8:
        return embedding.view(np.int8).astype(np.float64)
    return embedding.astype(np.float64)
