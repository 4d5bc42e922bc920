"""Determines the task of a model, from outputs, ops and metadata, or from the user's flag."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from litegpu.errors import OptionsError
from litegpu.pictures.framing import CROP, LETTERBOX, STRETCH
from litegpu.tools.drawing import (
    anchors,
    cells,
    classes,
    detections,
    images_out,
    landmarks,
    masks,
    poses,
)
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Finding, Outputs, Scene


class Reader(NamedTuple):
    """A method to interpret the outputs for a task."""

    fit: str
    """The default method to fit a picture to the input."""
    min_score: float
    """Default minimum score of objects and points."""
    evidence: Callable[[Outputs, ModelFacts], Evidence | None]
    read: Callable[[Outputs, Scene], Finding]
    purpose: str


class Task(NamedTuple):
    """The task selected for a model, and the reason."""

    name: str
    reader: Reader
    why: str
    others: tuple[str, ...] = ()
    """Other possible tasks of the model."""


TASKS: dict[str, tuple[Reader, ...]] = {
    "detect": (
        Reader(STRETCH, 0.5, detections.evidence, detections.read, "boxes around objects"),
        Reader(LETTERBOX, 0.5, anchors.evidence, anchors.read, "boxes around objects"),
        Reader(LETTERBOX, 0.5, cells.evidence, cells.read, "boxes around objects"),
    ),
    "pose": (Reader(LETTERBOX, 0.3, poses.evidence, poses.read, "points of bodies, from maps"),),
    "landmarks": (
        Reader(LETTERBOX, 0.3, landmarks.evidence, landmarks.read, "points, from a vector"),
    ),
    "segment": (Reader(LETTERBOX, 0.5, masks.evidence, masks.read, "the class of each pixel"),),
    "image": (Reader(STRETCH, 0.5, images_out.evidence, images_out.read, "another picture"),),
    "classify": (Reader(CROP, 0.5, classes.evidence, classes.read, "the best classes"),),
}
"""The readers of each task, the most specific task first."""


def candidates(outputs: Outputs, facts: ModelFacts) -> list[tuple[str, Reader, Evidence]]:
    """Return the possible tasks of a model, in the order of TASKS."""
    found = []
    for name, readers in TASKS.items():
        for reader in readers:
            seen = reader.evidence(outputs, facts)
            if seen:
                found.append((name, reader, seen))
                break
    return found


def choose(outputs: Outputs, facts: ModelFacts, requested: str | None) -> Task | None:
    """Return the requested task, or the first certain task; None if no task is certain.

    If a requested task has several readers, the function selects the one with evidence.
    """
    possible = candidates(outputs, facts)
    if requested is not None:
        for name, reader, seen in possible:
            if name == requested:
                return Task(name, reader, seen.why)
        return Task(requested, TASKS[requested][0], "--task selects this task")
    certain = [each for each in possible if each[2].certain]
    if not certain:
        return None
    name, reader, seen = certain[0]
    return Task(name, reader, seen.why, tuple(n for n, _, _ in certain[1:]))


def unclear(outputs: Outputs, facts: ModelFacts) -> OptionsError:
    """Return the error for a model whose task is uncertain, with the candidates."""
    shapes = ", ".join(f"'{each.name}' {list(each.values.shape)}" for each in outputs)
    possible = candidates(outputs, facts)
    guesses = [
        f"--task={name} ({TASKS[name][0].purpose}: {seen.why})" for name, _, seen in possible
    ]
    could = (
        f"Possible tasks are {'; '.join(guesses)}." if guesses else ("No task fits these outputs.")
    )
    return OptionsError(
        f"The outputs of this model, {shapes}, do not determine a task. {could} Choose a task "
        f"with --task={_listed(TASKS)}."
    )


def _listed(names: Iterable[str]) -> str:
    return "|".join(names)
