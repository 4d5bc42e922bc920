"""Constants that are packed once all kernels are written, in the place where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.engine.lowering import Constants
from litegpu.ops.lazy_array import LazyArray


def test_a_lazy_array_is_filled_where_it_lies() -> None:
    filled: list[npt.NDArray[Any]] = []

    def fill(out: npt.NDArray[np.int32]) -> None:
        filled.append(out)
        out[1:] = 7

    constants = Constants()
    constants.add(np.arange(6, dtype=np.int16).reshape(2, 3).T)
    assert constants.add(LazyArray(np.dtype(np.int32), 3, fill)) == 1
    assert not filled
    block, (first, second) = constants.pack(32)
    assert (first.offset, first.size, second.offset, second.size) == (0, 12, 32, 12)
    assert block[:12].view(np.int16).tolist() == [0, 3, 1, 4, 2, 5]
    assert block[32:].view(np.int32)[:3].tolist() == [0, 7, 7]
    assert np.shares_memory(block, filled[0]), "no copy is made"
