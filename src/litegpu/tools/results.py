"""Prints a model's results: the top classes, or a summary of each output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.console import print_table
from litegpu.tools.models import RANDOM_WEIGHTS, FoundModel

TOP = 5
MIN_CLASSES = 10
TOP_COLUMNS = (">top", ">score", ">class", "name")


def class_count(outputs: list[Output]) -> int:
    """Return the number of classes if the model has a single output of scores, else 0."""
    if len(outputs) != 1:
        return 0
    shape = outputs[0].values.shape
    scores = len(shape) >= 2 and shape[0] == 1 and max(shape) == outputs[0].values.size
    return max(shape) if scores and max(shape) >= MIN_CLASSES else 0


def print_meaning(model: FoundModel) -> None:
    """If the model has random weights, print that results have no meaning."""
    if model.has_random_weights:
        print(f"\n{RANDOM_WEIGHTS}")


def best_classes(output: Output) -> list[tuple[int, float]]:
    """Return the classes with the highest scores, each (index, score)."""
    scores = output.values.reshape(-1).astype(np.float64)
    return [(int(best), float(scores[best])) for best in np.argsort(-scores, kind="stable")[:TOP]]


def top_rows(best: Iterable[tuple[int, float]], labels: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield rows of TOP_COLUMNS for classes, each (index, score); `labels` may be empty."""
    for index, (number, score) in enumerate(best, 1):
        yield str(index), f"{score:.4f}", str(number), labels[number] if labels else ""


def print_top(output: Output, labels: list[str]) -> None:
    """Print the classes with the highest scores; `labels` may be empty."""
    print_table(TOP_COLUMNS, top_rows(best_classes(output), labels))


def summary(output: Output) -> dict[str, Any]:
    """Return name, shape, type, range and mean of an output; an empty output has no figures."""
    values = output.values
    figures = (values.min(), values.max(), values.mean()) if values.size else (None,) * 3
    return {
        "name": output.name,
        "shape": list(values.shape),
        "type": str(values.dtype),
        **{
            name: figure if figure is None else float(figure)
            for name, figure in zip(("min", "max", "mean"), figures, strict=True)
        },
    }


def print_summary(outputs: list[Output]) -> None:
    """Print shape, type, range and mean of each output."""
    print_table(
        ("output", "shape", "type", ">min", ">max", ">mean"),
        [_summary_row(summary(output)) for output in outputs],
    )


def _summary_row(found: dict[str, Any]) -> tuple[str, ...]:
    figures = ("" if found[key] is None else f"{found[key]:.6g}" for key in ("min", "max", "mean"))
    return (found["name"], "×".join(map(str, found["shape"])), found["type"], *figures)
