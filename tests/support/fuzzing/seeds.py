"""Valid models to mutate: one for each line of the op table, and models of several operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import cases
import small_models
from cases.base import Case, Sheet
from litegpu import zoo
from litegpu.tools.models import model_folders
from outside_weights import appended, external

Source = Callable[[], bytes]
_ZOO = (
    "zoo:mobilenet_v1_0.25_128",
    "zoo:mobilenet_v2_1.0_224?width=0.35&size=96",
    "zoo:ssd_mobilenet_v1_300?width=0.25&size=96",
    "zoo:deeplab_v3_257?width=0.25&size=65",
)


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
        "appended weights": lambda: appended(small_models.fully_convolutional()),
        "external weights": _with_weights_behind,
        "chain": lambda: small_models.chain(("RELU", small_models.CPU_ONLY, "TANH", "NEG")),
    }


def _with_weights_behind() -> bytes:
    """Return a model that refers to its own file as the file with its weights."""
    model = small_models.fully_convolutional()
    begin = len(external(model)[0])
    return b"".join(external(model, begin=begin))


def large() -> dict[str, Source]:
    """Return whole networks: some of the zoo, and the trained models that are here."""
    paths = [path for folder in model_folders() for path in sorted(folder.glob("*.tflite"))]
    written = {name: functools.partial(zoo.load, name) for name in _ZOO}
    return {**written, **{path.name: path.read_bytes for path in paths}}


def all_seeds(with_large: bool) -> Mapping[str, Source]:
    """Return every model to start from, by name."""
    return {**op_cases(), **networks(), **(large() if with_large else {})}
