"""The options of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.errors import TaskError


@dataclass
class ClassifierOptions:
    """The options of tasks that return classes.

    Args:
        display_names_locale: the language of `display_name`; None for English.
        max_results: the maximum number of results; None or a negative number for all.
        score_threshold: the minimum score; None for the threshold in the model's metadata.
        category_allowlist: the names of the only classes that results may contain.
        category_denylist: the names of the classes that results never contain.
    """

    display_names_locale: str | None = None
    max_results: int | None = None
    score_threshold: float | None = None
    category_allowlist: Sequence[str] | None = None
    category_denylist: Sequence[str] | None = None

    def check(self) -> None:
        """Raise TaskError if options contradict each other."""
        if self.max_results == 0:
            raise TaskError("max_results is 0. Use a positive number, or -1 for all results.")
        if self.category_allowlist and self.category_denylist:
            raise TaskError(
                "category_allowlist and category_denylist exclude each other. Give one of them."
            )

    @property
    def most(self) -> int | None:
        """The maximum number of results; None for all."""
        return None if self.max_results is None or self.max_results < 0 else self.max_results
