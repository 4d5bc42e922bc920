"""Results of segmentation models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.pycoral.adapters import common


def get_output(interpreter: Any) -> NDArray[np.uint8]:
    """Return the first output as uint8: the class of each pixel, (height, width)."""
    classes: NDArray[np.uint8] = common.output_tensor(interpreter, 0)[0].astype(np.uint8)
    return classes
