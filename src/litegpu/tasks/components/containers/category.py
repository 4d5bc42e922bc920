"""Classes with scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Category:
    """A class that a model has found: its number, its score, and its name if the model has names.

    `display_name` is the name in the language of the option `display_names_locale`.
    """

    index: int | None = None
    score: float | None = None
    display_name: str | None = None
    category_name: str | None = None
