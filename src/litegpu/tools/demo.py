"""`litegpu demo`: classifies and segments a picture on the GPU, and draws the result."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from litegpu.errors import FileError
from litegpu.pictures.framing import STRETCH, framed
from litegpu.pictures.images import (
    centre_crop,
)
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.drawing.masks import Masks
from litegpu.tools.drawing.names import PASCAL_VOC
from litegpu.tools.drawing.saving import save_picture
from litegpu.tools.files import cannot_write, try_to_write
from litegpu.tools.flags import Flag
from litegpu.tools.labels import NamedLabels, find_labels, read_labels
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.picture_flag import (
    default_picture,
    picture_of_flag,
)
from litegpu.tools.results import class_count, print_meaning
from litegpu.tools.run import MEASURE_FLAGS, compare_sides, print_comparison, print_result
from litegpu.tools.viewer import PICTURE_FLAGS

if TYPE_CHECKING:
    from PIL import Image

CLASSIFIER = "mobilenet_v2_1.0_224"
SEGMENTER = "deeplabv3_257_mv_gpu"
DRAWING_WIDTH = 640
_MAX_SECONDS = {"max_secs": 1.0}
"""Software devices would spend most of the demo on runs; a GPU needs less for all of them."""

ARGUMENTS: dict[str, str] = {}
OUTPUT = Flag("output", str, "out/segmentation.png", "output file", metavar="FILE")
FLAGS = (
    Flag("image", str, None, "input image, - is stdin (default: a bundled one)", metavar="FILE"),
    OUTPUT,
    *PICTURE_FLAGS,
    *DELEGATE_FLAGS,
    *(replace(each, default=_MAX_SECONDS.get(each.name, each.default)) for each in MEASURE_FLAGS),
)
EXAMPLES = ("litegpu demo", "litegpu demo --image=picture.jpg --precision=fp16")


def main(args: argparse.Namespace) -> int:
    """Run both models; return 1 if one of them did not run on the GPU."""
    path = args.image or default_picture()
    note(f"picture: {path}")
    picture = picture_of_flag(path)
    labels = read_labels(args.labels)
    args.output, args.signature = _writable_output(args), None
    classified = classify(picture, labels, args)
    segmented = segment(picture, args)
    return 0 if classified and segmented else 1


def classify(picture: Image.Image, labels: NamedLabels | None, args: argparse.Namespace) -> bool:
    """Classify the picture; return whether the model ran on the GPU."""
    model = _announce("Classification", CLASSIFIER)
    delegate = make_delegate(args)
    result = compare_sides(model, delegate, picture, args)
    names = find_labels(labels, model.content, class_count(result.outputs))
    print_result(result.outputs, names)
    print_meaning(model)
    print_comparison(result, args.num_threads)
    return result.ran_on_gpu


def segment(picture: Image.Image, args: argparse.Namespace) -> bool:
    """Segment the picture and write the PNG; return whether the model ran on the GPU."""
    model = _announce("Segmentation", SEGMENTER)
    delegate = make_delegate(args)
    result = compare_sides(model, delegate, picture, args)
    classes = result.outputs[0].values[0].argmax(-1).astype(np.int32)
    height, width = classes.shape
    drawing_size = (DRAWING_WIDTH, round(DRAWING_WIDTH * height / width))
    masks = Masks(classes, PASCAL_VOC, framed(drawing_size, (width, height), STRETCH))
    print_table(*masks.table())
    print_meaning(model)
    print_comparison(result, args.num_threads)
    if args.output is not None:
        cropped = centre_crop(picture, width, height).resize(drawing_size)
        save_picture(OUTPUT.name, args.output, masks.draw(cropped))
        print(f"The segmentation is in {args.output}")
    return result.ran_on_gpu


def _announce(task: str, name: str) -> FoundModel:
    model = find_model(name)
    print(f"\n{task} with {model.source}")
    return model


def _writable_output(args: argparse.Namespace) -> str | None:
    """Return the path of the drawing, and create its folder.

    The result is None if the default folder is not writable.

    Raises:
        FileError: the drawing cannot be written to the path of --output.
    """
    output: str = args.output
    try:
        try:
            Path(output).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(OUTPUT.name, output, error) from error
        try_to_write(OUTPUT.name, output)
    except FileError as error:
        if OUTPUT.name in args.given:
            raise
        note(f"No picture is drawn: {error}")
        return None
    return output
