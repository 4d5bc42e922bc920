"""`litegpu imagenet_image_classification MODEL`: evaluates the accuracy of an image classifier."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.errors import FileError, ModelError
from litegpu.files.wire import message, repeated
from litegpu.tools.engines.jobs import Arrays, BatchPlan
from litegpu.tools.evaluation import FAILED as TASK_FAILED
from litegpu.tools.evaluation import pictures as evaluation
from litegpu.tools.evaluation.preprocessing import CENTRAL_FRACTION, Preprocessing, for_input
from litegpu.tools.flags import Flag
from litegpu.tools.lines import warn
from litegpu.tools.reports.evaluations import Guessed, classification_sections
from litegpu.tools.stats import figure

ARGUMENTS = {"model": "a model file (also --model_file=FILE), a known name, or zoo:NAME"}
GROUND_TRUTH = Flag(
    *("ground_truth_labels", str, ""),
    "text file with the label of each picture, one per line, in the order of the pictures",
    metavar="FILE",
)
FLAGS = (
    evaluation.PICTURES,
    GROUND_TRUTH,
    evaluation.LABELS,
    Flag(
        *("denylist_file_path", str, ""),
        "text file with the numbers of pictures to skip, counted from 1, one per line",
        metavar="FILE",
    ),
    *evaluation.TASK_FLAGS,
)
FAILED = TASK_FAILED
EXAMPLES = (
    "litegpu imagenet model.tflite --delegate=gpu \\\n"
    "    --ground_truth_images_path=images --ground_truth_labels=truth.txt \\\n"
    "    --model_output_labels=labels.txt --num_images=1000",
)
NOTES = (
    "Pictures are cropped to the central 87.5 % of a square and resized to the model's input "
    "without half-pixel centers. TensorFlow Lite's tool does the same, so the figures are "
    "comparable. A picture counts for top-k accuracy if its label is among the k best classes.",
)

RANKS = 10


@dataclass(frozen=True)
class Guess:
    """The top classes of a picture, the highest score first, and their scores."""

    classes: tuple[int, ...]
    scores: tuple[float, ...]


def best_classes(_: str, outputs: Arrays) -> Guess:
    """Return the classes with the highest scores; ties are in the order of the classes.

    The scores are the model's values, in the type of the output.
    """
    scores = outputs[0].reshape(-1).astype(np.float32)
    order = np.argsort(-scores, kind="stable")[:RANKS]
    return Guess(tuple(order.tolist()), tuple(scores[order].tolist()))


def top_accuracies(ranks: Sequence[int | None]) -> list[float]:
    """Return the top-1 to top-10 accuracies; the ranks of the true classes count from 0."""
    hits = np.zeros(RANKS, np.int64)
    for rank in ranks:
        if rank is not None:
            hits[rank:] += 1
    return [float(each) for each in hits / max(len(ranks), 1)]


@dataclass(frozen=True)
class Classification:
    """The pictures to evaluate, their labels, and the names of the model's classes."""

    paths: tuple[str, ...]
    truth: tuple[str, ...]
    labels: tuple[str, ...]

    def check(self, plan: BatchPlan) -> Preprocessing:
        """Return the preprocessing. Raises ModelError if the model is not a classifier."""
        if len(plan.inputs) != 1 or len(plan.outputs) != 1:
            raise ModelError(
                f"Model must have 1 input & 1 output, not {len(plan.inputs)} and "
                f"{len(plan.outputs)}. Use a classifier."
            )
        prepare = for_input(plan.inputs[0], plan.batched, CENTRAL_FRACTION)
        output = plan.outputs[0]
        if not plan.batched or output.shape != (len(self.labels),):
            shape = [1, *output.shape] if plan.batched else list(output.shape)
            raise ModelError(
                f"Invalid model_output_shape_: '{output.name}' is {shape}, and "
                f"--{evaluation.LABELS.name} has {len(self.labels)} lines. "
                f"Use a model with an output of [1, {len(self.labels)}], or its own labels."
            )
        if output.dtype.name not in ("float32", "uint8", "int8"):
            raise ModelError(
                f"model_output_type_ not supported: '{output.name}' is {output.dtype.name}. "
                "Use a model with an output of float32, uint8 or int8."
            )
        return prepare

    def take(self, path: str, value: Guess) -> None:
        """Do nothing: the evaluation prints no lines for single pictures."""

    def result(self, values: Sequence[Guess | None]) -> evaluation.Figures:
        """Return the top-k accuracies, also as TopkAccuracyEvalMetrics."""
        accuracies = top_accuracies(
            [
                self._rank(guess, truth)
                for guess, truth in zip(values, self.truth, strict=True)
                if guess
            ]
        )
        return evaluation.Figures(
            [f"Top-{index} Accuracy: {figure(each)}" for index, each in enumerate(accuracies, 1)],
            message(*repeated(1, map(np.float32, accuracies))),
            {"top_k_accuracies": accuracies},
            [(f"top-{k} accuracy", figure(accuracies[k - 1])) for k in (1, 5)],
            lambda: classification_sections(accuracies, self._guessed(values)),
        )

    def _guessed(self, values: Sequence[Guess | None]) -> list[Guessed]:
        pictures = zip(self.paths, self.truth, values, strict=True)
        return [
            Guessed(path, truth, self.labels[guess.classes[0]], guess.scores[0])
            for path, truth, guess in pictures
            if guess
        ]

    def _rank(self, guess: Guess, truth: str) -> int | None:
        names = (self.labels[each] for each in guess.classes)
        return next((rank for rank, name in enumerate(names) if name == truth), None)


def classification(args: argparse.Namespace) -> Classification:
    """Return the evaluation task for the flags. Raises FileError if the files do not match."""
    folder, truth_file, labels_file = (
        evaluation.needed(args, flag)
        for flag in (evaluation.PICTURES, GROUND_TRUTH, evaluation.LABELS)
    )
    paths = evaluation.files_in(folder, (truth_file, labels_file, args.denylist_file_path))
    truth = evaluation.read_lines(truth_file, "ground truth labels")
    if len(paths) != len(truth):
        others = [path for path in paths if not path.lower().endswith((".jpg", ".jpeg", ".rgb8"))]
        note = f", of which {len(others)} are not pictures, such as '{others[0]}'" if others else ""
        raise FileError(
            f"Number of images and ground truth labels is not same: '{folder}' has {len(paths)} "
            f"files{note}, and '{truth_file}' {len(truth)} lines. "
            "Give a folder of pictures only, and one line for each."
        )
    labels = evaluation.read_lines(labels_file, "model output labels")
    if len(labels) < RANKS:
        raise FileError(
            f"k is too large: there are {RANKS} ranks, and '{labels_file}' has {len(labels)} "
            "lines. Give the labels of a model with more classes."
        )
    denied = _denied(args.denylist_file_path, len(paths))
    chosen = [index for index in range(len(paths)) if index + 1 not in denied]
    chosen = chosen[: args.num_images or None]
    names = frozenset(labels)
    unknown = [truth[index] for index in chosen if truth[index] not in names]
    if unknown:
        warn(
            f"{len(unknown)} of {len(chosen)} ground truth labels are not the model's, such as "
            f"'{unknown[0]}': these pictures count as wrong."
        )
    return Classification(
        tuple(paths[index] for index in chosen),
        tuple(truth[index] for index in chosen),
        tuple(labels),
    )


def _denied(path: str, count: int) -> set[int]:
    """Return the numbers of the pictures on the denylist."""
    if not path:
        return set()
    found = set()
    for line in evaluation.read_lines(path, "denylist"):
        if not line.strip():
            continue
        if not line.strip().isdecimal() or not 1 <= int(line) <= count:
            raise FileError(
                f"The denylist '{path}' has the line '{line}', which is not a picture's number. "
                f"Give numbers from 1 to {count}, one a line."
            )
        found.add(int(line))
    return found


KIND = evaluation.Kind(
    "imagenet_image_classification", "Evaluated", 4, classification, best_classes
)


def main(args: argparse.Namespace) -> int:
    """Evaluate the model, print the figures, and write the files."""
    return evaluation.run(args, KIND)
