"""`litegpu demo`: a picture is classified and segmented on the GPU, and the result drawn."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from litegpu.errors import OptionsError
from litegpu.tools import segmentation
from litegpu.tools.console import note, print_table
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.flags import Flag
from litegpu.tools.images import centre_crop, default_picture, open_picture
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.run import MEASURE_FLAGS, compare_sides, print_comparison, print_result

if TYPE_CHECKING:
    from PIL import Image

CLASSIFIER = "mobilenet_v2_1.0_224"
SEGMENTER = "deeplabv3_257_mv_gpu"
DRAWING_WIDTH = 640

ARGUMENTS: dict[str, str] = {}
FLAGS = (
    Flag("image", str, None, "the picture (default: one that ships with litegpu)"),
    Flag("output", str, "out/segmentation.png", "where the segmentation is written"),
    Flag("labels", str, None, "text file with the name of one class a line, for the classifier"),
    Flag("input_mean", float, 127.5, "float inputs get (pixel - input_mean) / input_std"),
    Flag("input_std", float, 127.5, "see input_mean"),
    *DELEGATE_FLAGS,
    *MEASURE_FLAGS,
)
EXAMPLES = ("litegpu demo", "litegpu demo --image=picture.jpg --precision=fp16")


def main(args: argparse.Namespace) -> int:
    """Run both models; the exit status is 1 when either did not run on the GPU."""
    args.image = args.image or default_picture()
    note(f"picture: {args.image}")
    classified = classify(args)
    segmented = segment(args)
    return 0 if classified and segmented else 1


def classify(args: argparse.Namespace) -> bool:
    """Classify the picture; return whether it ran on the GPU."""
    model = _announce("Classification", CLASSIFIER)
    delegate = make_delegate(args)
    applied, result = compare_sides(model, delegate, args)
    print_result(result.outputs, model, args.labels)
    print_comparison(result, delegate, args.num_threads)
    return applied


def segment(args: argparse.Namespace) -> bool:
    """Segment the picture and write the PNG; return whether it ran on the GPU."""
    model = _announce("Segmentation", SEGMENTER)
    delegate = make_delegate(args)
    applied, result = compare_sides(model, delegate, args)
    scores = result.outputs[0].values
    classes = segmentation.class_map(scores)
    print_table(
        ("class", ">share of the picture"),
        [
            (segmentation.class_name(number), f"{share:.1%}")
            for number, share in segmentation.shares(classes)
        ],
    )
    print_comparison(result, delegate, args.num_threads)
    height, width = classes.shape
    cropped = centre_crop(open_picture(args.image), width, height)
    drawing_size = (DRAWING_WIDTH, round(DRAWING_WIDTH * height / width))
    _save(segmentation.draw(cropped.resize(drawing_size), classes), Path(args.output))
    return applied


def _announce(task: str, name: str) -> FoundModel:
    model = find_model(name)
    print(f"\n{task} with {model.source}")
    if model.is_stand_in:
        print("Its weights are random, so the speed is real and the answer means nothing.")
    return model


def _save(drawing: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.save(path, "PNG")
    except OSError as error:
        raise OptionsError(
            f"--output={path}: the picture cannot be written: {error}. Name a writable place."
        ) from error
    print(f"The segmentation is in {path}")
