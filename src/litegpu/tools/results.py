"""What a model said, for people: the best classes, or a summary of each output."""

from __future__ import annotations

import numpy as np

from litegpu.tools.console import print_table
from litegpu.tools.runtime import Output

TOP = 5
FEWEST_CLASSES = 10


def class_count(outputs: list[Output]) -> int:
    """Return how many classes the single output scores, or 0 when it holds something else."""
    if len(outputs) != 1:
        return 0
    shape = outputs[0].values.shape
    scores = len(shape) >= 2 and shape[0] == 1 and max(shape) == outputs[0].values.size
    return max(shape) if scores and max(shape) >= FEWEST_CLASSES else 0


def print_top(output: Output, labels: list[str]) -> None:
    """Print the classes with the highest scores; `labels` may be empty."""
    scores = output.values.reshape(-1)
    best = np.argsort(-scores, kind="stable")[:TOP]
    print_table(
        (">top", ">score", ">class", "name"),
        [
            (str(place), f"{scores[number]:.4f}", str(number), labels[number] if labels else "")
            for place, number in enumerate(best, 1)
        ],
    )


def print_summary(outputs: list[Output]) -> None:
    """Print shape, type, range and mean of each output."""
    print_table(("output", "shape", "type", ">min", ">max", ">mean"), map(_summary_row, outputs))


def _summary_row(output: Output) -> tuple[str, ...]:
    values = output.values
    numbers = [values.min(), values.max(), values.mean()] if values.size else []
    return (
        output.name,
        "×".join(map(str, values.shape)),
        str(values.dtype),
        *(f"{number:.6g}" for number in numbers),
    )
