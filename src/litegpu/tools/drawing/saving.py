"""Writes drawings to files atomically, and checks output paths."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from litegpu.errors import FileError, OptionsError
from litegpu.tools.drawing.video import CODECS
from litegpu.tools.files import replacing, try_to_write

if TYPE_CHECKING:
    from PIL import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""File formats of drawings by suffix."""


_COMPRESSION = 3
"""Compression level of PNG files, from 1 to 9; higher levels are slow for little benefit."""
NEED_A_PICTURE = ("output", "task", "fit", "region", "min_score")
"""Flags that require a picture."""


def check_output(args: argparse.Namespace) -> None:
    """Check that there is a picture and that its drawing can be written.

    Raises:
        OptionsError: there is no picture, the output would overwrite it, or the suffix is unknown.
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


def check_folder(args: argparse.Namespace, paths: list[str]) -> dict[str, str | None]:
    """Create the output folder; return the path of each picture's drawing, None without --output.

    Raises:
        OptionsError: the output folder is the folder of the pictures.
        FileError: the output folder is a file, or cannot be created or written.
    """
    if args.output is None:
        return dict.fromkeys(paths)
    refuse_own_input("output", args.output, args.image)
    folder = Path(args.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise FileError(
            f"--output={args.output}: the drawings cannot be written there: "
            f"{error.strerror or error}. Name a folder that is writable or can be created."
        ) from error
    stems = Counter(Path(path).stem.lower() for path in paths)
    return {
        path: str(folder / f"{Path(path).stem if _is_single(path, stems) else Path(path).name}.png")
        for path in paths
    }


def _is_single(path: str, stems: Counter[str]) -> bool:
    return stems[Path(path).stem.lower()] == 1


def check_video(args: argparse.Namespace) -> None:
    """Check that a drawn video can be written.

    Raises:
        OptionsError: the output would overwrite its source, or its suffix is unknown.
        FileError: the video cannot be written.
    """
    if args.output is None:
        return
    if Path(args.output).suffix.lower() not in CODECS:
        raise OptionsError(
            f"--output={args.output}: a video is drawn into {', '.join(CODECS)}. "
            f"Give a name such as --output={Path(args.output).stem or 'drawn'}.mp4."
        )
    refuse_own_input("output", args.output, args.image)
    try_to_write("output", args.output)


def refuse_own_input(flag: str, output: str, image: str) -> None:
    """Raise OptionsError if an output would overwrite the input."""
    if os.path.exists(output) and os.path.exists(image) and os.path.samefile(output, image):
        raise OptionsError(
            f"--{flag}={output}: this is the file of --image, and would be overwritten. "
            "Give another path."
        )


def save_picture(flag: str, path: str, drawing: Image.Image) -> None:
    """Write a drawing in the format of the path's suffix. Raises FileError."""
    with replacing(flag, path) as part:
        drawing.save(part, FORMATS[Path(path).suffix.lower()], compress_level=_COMPRESSION)
