"""Samples the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import LanguageModelError

Logits = npt.NDArray[np.float32]
_SORTED_FIRST = 1024
"""Number of most probable tokens that are sorted first, if top_k does not state it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options for sampling tokens.

    Attributes:
        temperature: Divides the logits; with 0, the most probable token is always chosen.
        top_k: Choose only among this many most probable tokens; 0 for no limit.
        top_p: Choose only among the most probable tokens whose probabilities add up to this; 1:
            all.
        seed: The seed of the random numbers; None for a random seed.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises LanguageModelError."""
        checks: tuple[tuple[str, Any, bool, str], ...] = (
            ("temperature", self.temperature, _within(self.temperature, 0, 1e6), "0 or more"),
            ("top_k", self.top_k, _is_whole(self.top_k), "a whole number from 0"),
            ("seed", self.seed, self.seed is None or _is_whole(self.seed), "a whole number from 0"),
            ("top_p", self.top_p, _within(self.top_p, 0, 1) and self.top_p > 0, "above 0, up to 1"),
        )
        for name, value, valid, wanted in checks:
            if not valid:
                raise LanguageModelError(f"{name} is {value!r}. Use {wanted}.")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high


class Sampler:
    """Samples the tokens of one answer."""

    def __init__(self, sampling: Sampling) -> None:
        """Use these sampling options."""
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Logits) -> int:
        """Return the next token for logits [vocabulary]."""
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        tokens, weights = self._candidates(logits)
        ends = np.cumsum(weights)
        drawn = np.searchsorted(ends, self._random.random() * ends[-1], side="right")
        return int(tokens[min(int(drawn), len(tokens) - 1)])

    def _candidates(self, logits: Logits) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return the tokens to choose from, with weights in proportion to their probabilities.

        Vocabularies are large, so only the most probable tokens are sorted, as many as needed.
        """
        how, size, largest = self._sampling, len(logits), logits.max()
        if not how.top_k and how.top_p == 1:
            return np.arange(size), _weights(logits, largest, how.temperature)
        limit = min(int(how.top_k) or size, size)
        total = 0.0 if how.top_k else _weights(logits, largest, how.temperature).sum()
        count = limit if how.top_k else min(_SORTED_FIRST, size)
        while True:
            order = _largest(logits, count)
            weights = _weights(logits[order], largest, how.temperature)
            # A token is likely if the sum of those before it is below top_p; the first always is.
            likely = np.cumsum(weights) - weights < how.top_p * (total or weights.sum())
            if count == limit or not likely[-1]:
                return order[likely], weights[likely]
            count = min(8 * count, limit)


def _weights(logits: Logits, largest: np.float32, temperature: float) -> npt.NDArray[np.float64]:
    """Return numbers in proportion to probabilities; 1 for the largest logit."""
    found: npt.NDArray[np.float64]
    found = np.exp((logits - largest) / np.float32(temperature)).astype(np.float64)
    return found


def _largest(logits: Logits, count: int) -> npt.NDArray[np.int64]:
    """Return the tokens of the `count` largest logits, in descending order; first tokens first."""
    found = np.arange(len(logits))
    if count < len(logits):
        border = np.partition(logits, -count)[-count]
        found = np.flatnonzero(logits >= border)
    return found[np.argsort(-logits[found], kind="stable")][:count]
