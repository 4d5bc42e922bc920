"""What a model is for: found from its outputs, its operations and its metadata, or told."""

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
    """One way to read the outputs for a task."""

    fit: str
    """How the picture gets the input's shape, unless told."""
    min_score: float
    """Objects and points with less are left out, unless told."""
    evidence: Callable[[Outputs, ModelFacts], Evidence | None]
    read: Callable[[Outputs, Scene], Finding]
    purpose: str


class Task(NamedTuple):
    """A task that was chosen for a model, and why."""

    name: str
    reader: Reader
    why: str
    others: tuple[str, ...] = ()
    """What else the model is for, as it seems."""


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
"""The most telling first: where several tasks are certain, that one is taken."""


def candidates(outputs: Outputs, facts: ModelFacts) -> list[tuple[str, Reader, Evidence]]:
    """Return the tasks that a model may be for, in the order of TASKS."""
    found = []
    for name, readers in TASKS.items():
        for reader in readers:
            seen = reader.evidence(outputs, facts)
            if seen:
                found.append((name, reader, seen))
                break
    return found


def choose(outputs: Outputs, facts: ModelFacts, requested: str | None) -> Task | None:
    """Return the task that was told, or the one that is certain; None where none is.

    Where several readers serve a task that was told, the one with evidence does.
    """
    possible = candidates(outputs, facts)
    if requested is not None:
        for name, reader, seen in possible:
            if name == requested:
                return Task(name, reader, seen.why)
        return Task(requested, TASKS[requested][0], "--task says so")
    certain = [each for each in possible if each[2].certain]
    if not certain:
        return None
    name, reader, seen = certain[0]
    return Task(name, reader, seen.why, tuple(n for n, _, _ in certain[1:]))


def unclear(outputs: Outputs, facts: ModelFacts) -> OptionsError:
    """Return the error for a model whose task is not certain: what it could be, how to choose."""
    shapes = ", ".join(f"'{each.name}' {list(each.values.shape)}" for each in outputs)
    possible = candidates(outputs, facts)
    guesses = [
        f"--task={name} ({TASKS[name][0].purpose}: {seen.why})" for name, _, seen in possible
    ]
    could = f"It could be {'; '.join(guesses)}." if guesses else "Nothing fits them."
    return OptionsError(
        f"What this model is for does not follow from its outputs, {shapes}. {could} "
        f"Choose one with --task={_listed(TASKS)}."
    )


def _listed(names: Iterable[str]) -> str:
    return "|".join(names)
