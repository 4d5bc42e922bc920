"""Drawings as files: what a name may be, and that none is written half."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from litegpu.errors import OptionsError
from litegpu.tools.files import replacing, try_to_write

if TYPE_CHECKING:
    from PIL import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""What a drawing is written as, by the suffix of its name."""


NEED_A_PICTURE = ("output", "task", "fit", "region", "min_score")
"""Flags that mean nothing without one."""


def check_output(args: argparse.Namespace) -> None:
    """Check that a picture is there and its drawing can be written; nothing is left behind.

    Raises:
        OptionsError: there is no picture, it would be overwritten, or the suffix is unknown.
        FileError: the file cannot be written.
    """
    if args.image is None:
        for name in (flag for flag in args.given if flag in NEED_A_PICTURE):
            value = getattr(args, name)
            raise OptionsError(f"--{name}={value}: there is no picture to show. Give --image.")
    if args.output is None:
        return
    if Path(args.output).suffix.lower() not in FORMATS:
        raise OptionsError(
            f"--output={args.output}: a drawing is written as {', '.join(FORMATS)}. "
            f"Give a name such as --output={Path(args.output).stem or 'drawing'}.png."
        )
    refuse_own_input("output", args.output, args.image)
    try_to_write("output", args.output)


def refuse_own_input(flag: str, output: str, image: str) -> None:
    """Raise OptionsError where an output would be written over the input."""
    if os.path.exists(output) and os.path.exists(image) and os.path.samefile(output, image):
        raise OptionsError(
            f"--{flag}={output}: this is what --image names, and would be overwritten. "
            "Name another place."
        )


def save_picture(flag: str, path: str, drawing: Image.Image) -> None:
    """Write a drawing in the format of its suffix. Raises FileError when that is impossible."""
    with replacing(flag, path) as part:
        drawing.save(part, FORMATS[Path(path).suffix.lower()])
