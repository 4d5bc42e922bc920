"""Small models that take a picture and have known results, and functions that read them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from litegpu.pictures.framing import Frame, framed
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.drawing.facts import POST_PROCESS, ModelFacts
from litegpu.tools.drawing.finding import Scene
from litegpu.tools.drawing.video import FilmWriter
from litegpu.tools.labels import NamedLabels
from litegpu.zoo.cuts import CuttableModel
from litegpu.zoo.ssd import _flexbuffer
from litegpu.zoo.writer import ModelWriter, TensorRef

Array = npt.NDArray[Any]
SIZE = 64
"""Width and height of the input."""


def saying(
    answers: Mapping[str, npt.ArrayLike], ops: Sequence[str] = (), size: int = SIZE
) -> bytes:
    """Return a model with these outputs, by name, whatever it sees; `ops` then change each."""
    writer = ModelWriter()
    nothing = _nothing(writer, size)
    for name, answer in answers.items():
        found = _say(writer, np.asarray(answer, np.float32), nothing, name if not ops else "")
        for index, op in enumerate(ops):
            last = name if index == len(ops) - 1 else f"{name}_{op}"
            found = writer.op(op, [found], [found.shape], name=last)
        writer.output(found)
    return writer.build()


def _nothing(writer: ModelWriter, size: int) -> TensorRef:
    """Return a zero that is computed from the picture."""
    picture = writer.input((1, size, size, 3))
    axes = writer.constant(np.array([1, 2, 3], np.int32), name="axes")
    mean = writer.op("MEAN", [picture, axes], [(1,)], options={"keep_dims": False})
    zero = writer.constant(np.zeros(1, np.float32), name="zero")
    return writer.op("MUL", [mean, zero], [(1,)])


def _say(writer: ModelWriter, answer: Array, nothing: TensorRef, name: str) -> TensorRef:
    constant_answer = writer.constant(answer, name=f"told {name}")
    return writer.op("ADD", [constant_answer, nothing], [answer.shape], name=name or None)


def detector(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    order: Sequence[int] = (0, 1, 2, 3),
    size: int = SIZE,
) -> bytes:
    """Return a detector that ends in TFLite_Detection_PostProcess and sees these boxes.

    Args:
        boxes: `[N, 4]`: top, left, bottom, right, from 0 to 1.
        scores: `[N, classes]`, the background first.
        order: of the model's outputs.
        size: of the input.
    """
    writer = ModelWriter()
    nothing = _nothing(writer, size)
    corners, sure = np.asarray(boxes, np.float32), np.asarray(scores, np.float32)
    anchors = np.hstack([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]])
    codes = _say(writer, np.zeros((1, len(corners), 4), np.float32), nothing, "codes")
    options = {
        "max_detections": len(corners),
        "max_classes_per_detection": 1,
        "num_classes": sure.shape[1] - 1,
        "nms_score_threshold": 1e-8,
        "nms_iou_threshold": 0.6,
        **{f"{axis}_scale": 1.0 for axis in "xywh"},
    }
    outputs = writer.custom(
        POST_PROCESS,
        [
            codes,
            _say(writer, sure[None], nothing, "sure"),
            writer.constant(anchors, name="anchors"),
        ],
        [(), (), (), ()],
        custom_options=_flexbuffer(options),
        names=["boxes", "classes", "scores", "count"],
    )
    writer.output(*(outputs[position] for position in order))
    return writer.build()


def finder(size: int = SIZE, cells: int = 8, points: int = 4) -> bytes:
    """Return a model of the kind of PoseNet: each of its points is where the picture is bright."""
    writer = ModelWriter()
    picture = writer.input((1, size, size, 3))
    step = size // cells
    maps = []
    for name, depth, gain, shift in (("scores", points, 10.0, 0.0), ("offsets", 2 * points, 0, 0)):
        weights = np.full((depth, step, step, 3), gain / (3 * step * step), np.float32)
        operands = [
            picture,
            writer.weights(weights, name=f"{name} weights"),
            writer.weights(np.full(depth, shift, np.float32), name=f"{name} bias"),
        ]
        options = {"padding": "VALID", "stride_h": step, "stride_w": step}
        options |= {"dilation_h_factor": 1, "dilation_w_factor": 1}
        shape = (1, cells, cells, depth)
        maps.append(writer.op("CONV_2D", operands, [shape], options=options, name=name))
    writer.output(*maps)
    return writer.build()


def seen(
    model: bytes,
    picture: tuple[int, int] = (SIZE, SIZE),
    fit: str = "stretch",
    min_score: float = 0.5,
    labels: Sequence[str] | None = None,
    frame: Frame | None = None,
) -> tuple[list[Output], Scene]:
    """Return what a model says about a grey picture of that size, and what reading it takes."""
    target = runtime.interpreter(model)
    details = target.get_input_details()
    height, width = (int(each) for each in details[0]["shape"][1:3])
    runtime.set_inputs(target, [np.zeros(each["shape"], each["dtype"]) for each in details])
    target.invoke()
    numbers = [
        tuple(int(each["index"]) for each in listed)
        for listed in (details, target.get_output_details())
    ]
    facts = ModelFacts(CuttableModel(model), numbers[0], numbers[1], (width, height))
    named = None if labels is None else NamedLabels("labels.txt", list(labels))
    shown = frame or framed(picture, (width, height), fit)
    return runtime.outputs(target), Scene(facts, shown, named, model, min_score)


def view_args(**settings: Any) -> argparse.Namespace:
    """Return the flags of `run` that a viewer reads."""
    flags = {
        "image": "picture.png",
        "output": None,
        "task": None,
        "fit": None,
        "region": None,
        "min_score": None,
        "input_mean": 127.5,
        "input_std": 127.5,
    }
    return argparse.Namespace(**{**flags, **settings}, given=tuple(settings))


def spot(number: int) -> tuple[int, int]:
    """Where the light of a clip is: it moves by one cell a frame."""
    return 20 + 20 * (number % 6), 30


def clip(path: str, frames: int = 6, size: tuple[int, int] = (160, 100), rate: int = 10) -> None:
    """Write a video of a light that moves."""
    writer = FilmWriter(Path(path), Fraction(rate), Fraction(1, rate))
    for number in range(frames):
        pixels = np.zeros((size[1], size[0], 3), np.uint8)
        x, y = spot(number)
        pixels[y - 9 : y + 9, x - 9 : x + 9] = 255
        writer.add(Image.fromarray(pixels), number)
    writer.close()
