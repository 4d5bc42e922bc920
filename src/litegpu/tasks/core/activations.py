"""Activation functions that convert scores to probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 100.0


def sigmoid(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the sigmoid of logits, which are clipped to the range from -100 to 100."""
    clipped = np.clip(values.astype(np.float64), -_LARGEST, _LARGEST)
    found: NDArray[np.float32] = (1 / (1 + np.exp(-clipped))).astype(np.float32)
    return found
