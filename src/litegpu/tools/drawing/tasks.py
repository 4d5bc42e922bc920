"""The task of a model: from its outputs, operations and metadata, or given by the user."""

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
    """One way to interpret the outputs for a task."""

    fit: str
    """How the picture is fitted to the input by default."""
    min_score: float
    """Default minimum score of objects and points."""
    evidence: Callable[[Outputs, ModelFacts], Evidence | None]
    read: Callable[[Outputs, Scene], Finding]
    purpose: str


class Task(NamedTuple):
    """A task chosen for a model, and why."""

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
"""The most specific first: of several certain tasks, the first one is chosen."""


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
    """Return the requested task, or the one that is certain; None if none is.

    If several readers serve a requested task, the one with evidence is used.
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
    """Return the error for a model with an uncertain task: the candidates, and how to choose."""
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
