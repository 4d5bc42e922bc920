"""The picture of the flag `--image`, and the one that ships with litegpu."""

from __future__ import annotations

import importlib.resources
import io
import sys
from typing import TYPE_CHECKING

from litegpu.pictures.images import decode_picture, open_picture, require_pillow

if TYPE_CHECKING:
    from PIL import Image

STDIN = "-"
"""The value of the flag for a picture on standard input."""


def default_picture() -> str:
    """Return the path of the photograph that ships with litegpu."""
    return str(importlib.resources.files("litegpu.tools") / "data" / "grace_hopper.jpg")


def picture_of_flag(path: str) -> Image.Image:
    """Return the picture that `--image` names as `open_picture` does; `-` is standard input."""
    if path != STDIN:
        return open_picture(path)
    require_pillow()
    return decode_picture(io.BytesIO(sys.stdin.buffer.read()), "(standard input)")
