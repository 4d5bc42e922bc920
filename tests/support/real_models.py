"""Trained models and real pictures: where they are, and how a model is shown a picture.

Models are looked for where the tools look for them; pictures lie in a folder `images` beside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.pictures import images
from litegpu.tools.models import model_folders
from litegpu.tools.picture_flag import default_picture

SIGNED, UNIT = (127.5, 127.5), (0.0, 255.0)
"""Mean and standard deviation that bring pixels to [-1, 1] or [0, 1]."""


def shown_to(detail: Any, path: str, pixels: tuple[float, float]) -> npt.NDArray[Any]:
    """Return a picture for an input that takes one, and seeded numbers for any other."""
    if detail["shape"][-1] == 3:
        return images.to_tensor(images.open_picture(path), detail, *pixels)
    random = np.random.default_rng(0)
    return np.asarray(random.uniform(-1.0, 1.0, detail["shape"]), detail["dtype"])


def find(name: str) -> Path:
    """Return the file of a model; skip the test when it is not here."""
    found = [path for each in model_folders() if (path := each / f"{name}.tflite").is_file()]
    if not found:
        folders = ", ".join(map(str, model_folders())) or "any folder (LITEGPU_MODELS names one)"
        pytest.skip(f"the trained model {name}.tflite is not in {folders}")
    return found[0]


def picture_paths() -> list[str]:
    """Return the portrait, and a picture of ImageNet where there are any."""
    folders = [folder.parent / "images" for folder in model_folders()]
    portraits = [path for each in folders for path in each.glob("grace_hopper.bmp")]
    others = [path for each in folders for path in sorted(each.glob("imagenet/*.JPEG"))]
    portrait = str(portraits[0]) if portraits else default_picture()
    return [portrait, *map(str, others[:1])]
