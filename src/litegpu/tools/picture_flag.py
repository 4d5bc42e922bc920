"""Opens the picture of the flag `--image`, or the bundled picture."""

from __future__ import annotations

import importlib.resources
import io
import sys
from typing import TYPE_CHECKING

from litegpu.pictures.images import decode_picture, open_picture, require_pillow

if TYPE_CHECKING:
    from PIL import Image

STDIN = "-"
"""The value of `--image` for a picture on standard input."""


def default_picture() -> str:
    """Return the path of the bundled photograph."""
    return str(importlib.resources.files("litegpu.tools") / "data" / "grace_hopper.jpg")


def picture_of_flag(path: str) -> Image.Image:
    """Open the picture of `--image` with `open_picture`; `-` means standard input."""
    if path != STDIN:
        return open_picture(path)
    require_pillow()
    return decode_picture(io.BytesIO(sys.stdin.buffer.read()), "(standard input)")
