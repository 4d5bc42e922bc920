"""Valid models to mutate: one for each line of the op table, and some with several operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cases
import small_models
from cases.base import Case, Sheet
from litegpu.tools.models import model_folders

Source = Callable[[], bytes]


def _case(case: Case) -> Source:
    def write() -> bytes:
        sheet = Sheet()
        sheet.add(case)
        return sheet.writer.build()

    return write


def op_cases() -> dict[str, Source]:
    """Return the lines of the op table by name, each a model of its own."""
    return {name: _case(case) for name, case in cases.TABLE.items()}


def networks() -> dict[str, Source]:
    """Return small models of several operations."""
    return {
        "convolutions": small_models.fully_convolutional,
        "float16 weights": lambda: small_models.fully_convolutional(float16_weights=True),
        "chain": lambda: small_models.chain(("RELU", small_models.CPU_ONLY, "TANH", "NEG")),
    }


def trained() -> dict[str, Source]:
    """Return the trained models that are here."""
    paths = [path for folder in model_folders() for path in sorted(folder.glob("*.tflite"))]
    return {path.name: path.read_bytes for path in paths}


def all_seeds(with_trained: bool) -> Mapping[str, Source]:
    """Return every model to start from, by name."""
    return {**op_cases(), **networks(), **(trained() if with_trained else {})}
