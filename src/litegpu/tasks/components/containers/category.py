"""Classes with scores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Category:
    """A predicted class: its index, its score, and its name if the model has class names.

    `display_name` is the class name in the language of the option `display_names_locale`.
    """

    index: int | None = None
    score: float | None = None
    display_name: str | None = None
    category_name: str | None = None
