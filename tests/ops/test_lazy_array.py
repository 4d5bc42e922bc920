"""Constants that are packed in place after all kernels are rendered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.engine import lowering
from litegpu.engine.lowering import Constants
from litegpu.ops.common.lazy_array import LazyArray


@pytest.mark.parametrize("alone_below", [0, 1 << 60])
def test_a_lazy_array_is_filled_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, alone_below: int
) -> None:
    monkeypatch.setattr(lowering, "_ALONE_BELOW", alone_below)
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


@pytest.mark.parametrize("alone_below", [0, 1 << 60])
def test_what_cannot_be_packed_is_told(monkeypatch: pytest.MonkeyPatch, alone_below: int) -> None:
    def fill(_: npt.NDArray[np.int32]) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(lowering, "_ALONE_BELOW", alone_below)
    constants = Constants()
    constants.add(LazyArray(np.dtype(np.int32), 3, fill))
    with pytest.raises(MemoryError, match="no room for a copy"):
        constants.pack(32)
