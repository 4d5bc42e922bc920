"""Fits pictures to a model's input, and interprets the outputs by the model's task."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import MissingDependencyError, OptionsError
from litegpu.pictures.framing import CROP, FITS, Frame, framed, parse_region
from litegpu.pictures.images import Scale, is_image_input, random_tensor, to_tensor
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.console import note
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Finding, Scene
from litegpu.tools.drawing.tasks import TASKS, Task, choose, unclear
from litegpu.tools.flags import Flag, divisor, number, one_of, share
from litegpu.tools.labels import NamedLabels
from litegpu.zoo.cuts import CuttableModel

if TYPE_CHECKING:
    from PIL import Image

PICTURE_FLAGS = (
    Flag("labels", str, None, "text file with one class name per line"),
    Flag("input_mean", number, 127.5, "float inputs get (pixel - input_mean) / input_std"),
    Flag("input_std", divisor, 127.5, "see input_mean"),
)
VIEW_FLAGS = (
    Flag("task", one_of(TASKS), None, f"task of the model: {', '.join(TASKS)}", metavar="TASK"),
    Flag(
        *("fit", one_of(FITS), None),
        f"how an image is fitted to the input's shape: {', '.join(FITS)} (default: by the task)",
        metavar="HOW",
    ),
    Flag("region", str, None, "the part of the image to use", metavar="LEFT,TOP,RIGHT,BOTTOM"),
    Flag(
        *("min_score", share, None),
        "minimum score of objects and points (default: 0.5; points 0.3)",
    ),
)


class Shown(NamedTuple):
    """The values of a model's inputs for a picture, and the frame of the picture."""

    values: list[NDArray[Any]]
    frame: Frame


class Viewer:
    """Converts pictures to a model's inputs, and interprets the model's outputs.

    The attribute `task` is None before `begin`, and remains None if the task is uncertain.
    """

    def __init__(self, content: bytes, args: argparse.Namespace, named: NamedLabels | None) -> None:
        self.task: Task | None = None
        self._content, self._args, self._named = content, args, named
        self._facts: ModelFacts | None = None
        self._outputs: list[Output] = []
        self._frame: Frame | None = None
        self._memory: dict[tuple[str, int], Any] = {}

    def begin(self, target: Any, picture: Image.Image, needed: bool = False) -> None:
        """Determine the model's task by running the model once on a picture.

        The task must be certain if `needed` is true, or if the flags request a drawing or a task.

        Raises:
            OptionsError: the model has no picture input, or the task is uncertain but must be
                certain.
            MissingDependencyError: the task must be certain, and a required package is missing.
        """
        self._details = target.get_input_details()
        position = self._place()
        self._details[position] = _sized(self._details[position], picture)
        height, width = (int(size) for size in self._details[position]["shape"][1:3])
        inputs = tuple(int(detail["index"]) for detail in self._details)
        outputs = tuple(int(detail["index"]) for detail in target.get_output_details())
        wanted = needed or self._args.output is not None or self._args.task is not None
        if getattr(target, "subgraph", 0):
            if wanted:
                raise OptionsError(
                    f"--signature={self._args.signature}: the task can be determined only for the "
                    "model's first graph, and this signature has another. Give one picture, "
                    "without --output and --task."
                )
            return
        try:
            model = CuttableModel(self._content)
        except MissingDependencyError:
            if wanted:
                raise
            return
        self._facts = ModelFacts(model, inputs, outputs, (width, height))
        runtime.set_inputs(target, self.inputs(picture))
        runtime.invoke(target)
        found = runtime.outputs(target)
        self.task = choose(found, self._facts, self._args.task)
        if self.task is None and wanted:
            raise unclear(found, self._facts)
        if self.task and self.task.others and self._args.output is not None:
            others = ", ".join(f"--task={each}" for each in self.task.others)
            note(f"task: {self.task.name}, because {self.task.why}; also possible: {others}")
        if self._args.output is not None and not self._scaling_is_known(position):
            note(_SCALING)

    @property
    def fit(self) -> str:
        """The method to fit pictures to the input's shape."""
        requested: str | None = self._args.fit
        return requested or (self.task.reader.fit if self.task else CROP)

    def inputs(self, picture: Image.Image) -> list[NDArray[Any]]:
        """Return the model inputs for a picture, and store the picture's frame for `read`.

        Raises:
            OptionsError: --region is not inside the picture.
        """
        shown = self.show(picture)
        self._frame = shown.frame
        return shown.values

    def show(self, picture: Image.Image) -> Shown:
        """Return a value per input: the picture for the first picture input, noise for others.

        After `begin`, any thread may call this method.

        Raises:
            OptionsError: --region is not inside the picture.
        """
        position = self._place()
        detail = self._details[position]
        height, width = (int(size) for size in detail["shape"][1:3])
        region = parse_region(self._args.region, picture.size)
        frame = framed(picture.size, (width, height), self.fit, region)
        mean, std = self._scaling(position)
        values = [
            to_tensor(picture, each, mean, std, frame)
            if number == position
            else random_tensor(each)
            for number, each in enumerate(self._details)
        ]
        return Shown(values, frame)

    def read(self, outputs: list[Output], frame: Frame | None = None) -> Finding | None:
        """Return the interpreted outputs for a picture; None without a task.

        Args:
            outputs: the outputs of the model.
            frame: the frame of the picture; by default the frame of the last call of `inputs`.

        Raises:
            ModelError: the outputs do not match the task.
            FileError: the number of lines of the user's labels file differs from the number of
                classes.
        """
        seen = frame or self._frame
        if self.task is None or self._facts is None or seen is None:
            return None
        scene = Scene(self._facts, seen, self._named, self._content, self._min_score, self._memory)
        return self.task.reader.read([_first(each) for each in outputs], scene)

    def to_dict(self) -> dict[str, Any] | None:
        """Return the task for JSON."""
        if self.task is None:
            return None
        return {"name": self.task.name, "why": self.task.why, "fit": self.fit}

    @property
    def _min_score(self) -> float:
        requested: float | None = self._args.min_score
        if requested is not None or self.task is None:
            return requested or 0.0
        return self.task.reader.min_score

    def _place(self) -> int:
        return picture_input(self._details, self._args.image)

    def _scaling(self, position: int) -> tuple[Scale, Scale]:
        """Return mean and standard deviation of pixels, from flags, model file, or default."""
        if not self._has_scaling_flags():
            known = self._facts.scaling(position) if self._facts else None
            if known:
                return known
        return self._args.input_mean, self._args.input_std

    def _has_scaling_flags(self) -> bool:
        return bool({"input_mean", "input_std"} & set(self._args.given))

    def _scaling_is_known(self, position: int) -> bool:
        floats = np.dtype(self._details[position]["dtype"]).kind == "f"
        known = self._facts is not None and self._facts.scaling(position) is not None
        return not floats or known or self._has_scaling_flags()


_SCALING = (
    "The model's file does not say how pixels are scaled; they are from -1 to 1. "
    "For 0 to 1 give --input_mean=0 --input_std=255."
)


def make_inputs(
    details: list[dict[str, Any]], picture: Image.Image | None, args: argparse.Namespace
) -> list[NDArray[Any]]:
    """Return a value for each input: the picture for the first picture input, noise for others."""
    values = [random_tensor(detail) for detail in details]
    if picture:
        position = picture_input(details, args.image)
        values[position] = to_tensor(picture, details[position], args.input_mean, args.input_std)
    return values


def picture_input(details: list[dict[str, Any]], image: str) -> int:
    """Return the index of the first picture input. Raises OptionsError if there is none."""
    for index, detail in enumerate(details):
        if is_image_input(detail):
            return index
    shapes = ", ".join(str(detail["shape"].tolist()) for detail in details)
    raise OptionsError(
        f"--image={image}: no input of this model takes a picture; their shapes are "
        f"{shapes}, a picture needs [N, H, W, 1, 3 or 4]. Run it without --image."
    )


def _sized(detail: dict[str, Any], picture: Image.Image) -> dict[str, Any]:
    """Return an input with fixed sizes; a dynamic size becomes about that of the picture.

    The size is a multiple of 32, and at most 1024, which most networks support.
    """
    shape, signature = detail["shape"].copy(), detail["shape_signature"]
    shrunk = min(_MAX_SIDE / max(picture.size), 1.0)
    for axis, extent in ((1, picture.height), (2, picture.width)):
        if signature[axis] < 0:
            shape[axis] = max(round(extent * shrunk / _STEP), 1) * _STEP
    return {**detail, "shape": shape}


_STEP, _MAX_SIDE = 32, 1024


def _first(output: Output) -> Output:
    """Return the first entry of an output's batch."""
    values = output.values
    return Output(output.name, values[:1] if values.ndim > 1 else values)
