"""Samples the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import LanguageModelError

Logits = npt.NDArray[np.float32]


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
        how = self._sampling
        if how.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if how.top_k:
            order = order[: int(how.top_k)]
        scaled = logits[order].astype(np.float64) / how.temperature
        chances = np.exp(scaled - scaled[0])
        chances /= chances.sum()
        # A token is likely if the sum of those before it is below top_p; the first one always is.
        likely = np.cumsum(chances) - chances < how.top_p
        chances = chances[likely] / chances[likely].sum()
        return int(order[self._random.choice(len(chances), p=chances)])
