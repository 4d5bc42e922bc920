"""`litegpu picture_input MODEL`: adds preprocessing of a picture's bytes to a model."""

from __future__ import annotations

import argparse

from litegpu.errors import OptionsError
from litegpu.pictures import with_picture_input
from litegpu.pictures.formats import COLORS, FORMATS, RESIZES
from litegpu.pictures.surgery import ANY
from litegpu.tools.files import try_to_write, write_bytes
from litegpu.tools.flags import Flag, one_of
from litegpu.tools.models import find_model


def numbers(text: str) -> float | tuple[float, ...]:
    """Parse a number, or several separated by commas. Raises ArgumentTypeError."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"'{text}' is neither a number nor numbers separated by commas"
        ) from error
    return found if len(found) > 1 else found[0]


def size(text: str) -> tuple[int, int] | str:
    """Parse height and width, or "any". Raises ArgumentTypeError for invalid texts."""
    height, _, width = text.lower().partition("x")
    if text.lower() == ANY:
        return ANY
    if not (height.isdecimal() and width.isdecimal()):
        raise argparse.ArgumentTypeError(f"'{text}' is neither HEIGHTxWIDTH nor {ANY}")
    return int(height), int(width)


def which(text: str) -> int | str:
    """Parse the index or the name of an input."""
    return int(text) if text.isdecimal() else text


ARGUMENTS = {"model": "a model file, a known name, or zoo:NAME"}
OUTPUT = Flag("output", str, None, "the .tflite file to write", metavar="FILE")
FLAGS = (
    Flag("input_format", one_of(FORMATS), "rgb8", ", ".join(FORMATS), metavar="FORMAT"),
    Flag(
        *("size", size, None),
        f"HEIGHTxWIDTH of the pictures; {ANY}: the model resizes pictures of any size (default: "
        "the input's own)",
        metavar="SIZE",
    ),
    Flag(
        *("mean", numbers, None),
        "subtracted from pixels (0 to 255): a number, or R,G,B; needs --std (default: 127.5)",
        metavar="NUMBERS",
    ),
    Flag("std", numbers, None, "divisor after the subtraction (default: 127.5)", metavar="NUMBERS"),
    Flag("resize", one_of(RESIZES), None, ", ".join(RESIZES), metavar="HOW"),
    Flag(
        "colors",
        one_of(COLORS),
        None,
        f"color space of nv12: {', '.join(COLORS)}",
        metavar="COLORS",
    ),
    Flag("input", which, 0, "number or name of the input that takes the picture"),
    OUTPUT,
)
EXAMPLES = (
    "litegpu picture_input model.tflite --input_format=rgba8 --output=rgba.tflite",
    "litegpu picture_input model.tflite --input_format=nv12 --size=720x1280 \\\n"
    "    --mean=0 --std=255 --output=camera.tflite",
)
NOTES = (
    "The new model runs in every interpreter. Its input is uint8; built-in operations select "
    "channels, resize, and compute (pixel - mean) / std. Without --mean and --std, a quantized "
    "input gets the pixels unchanged.",
)


def main(args: argparse.Namespace) -> int:
    """Write the model; raise OptionsError without --output."""
    if not args.output:
        raise OptionsError("The path of the new model is missing. Give --output=FILE.")
    try_to_write(OUTPUT.name, args.output)
    content = with_picture_input(
        find_model(args.model).content,
        args.input_format,
        size=args.size,
        mean=args.mean,
        std=args.std,
        resize=args.resize,
        colors=args.colors,
        input=args.input,
    )
    write_bytes(OUTPUT.name, args.output, content)
    return 0
