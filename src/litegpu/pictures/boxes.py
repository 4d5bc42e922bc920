"""The overlap (IoU) of boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-12


def overlaps(box: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the intersection over the union of a box `[4]` with others `[N, 4]`.

    The elements of a box are left, top, right and bottom.
    """
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(1)
    areas = np.clip(others[:, 2:] - others[:, :2], 0, None).prod(1)
    own = np.clip(box[2:] - box[:2], 0, None).prod()
    found: NDArray[Any] = shared / np.maximum(areas + own - shared, _SMALLEST)
    return found
