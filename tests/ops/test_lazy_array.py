"""Constants that are packed in place after all kernels are rendered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.engine import lowering
from litegpu.engine.lowering import Constants
from litegpu.ops.common.lazy_array import LazyArray


def test_a_lazy_array_is_filled_where_it_lies() -> None:
    filled: list[npt.NDArray[Any]] = []

    def fill(out: npt.NDArray[np.int32]) -> None:
        filled.append(out)
        out[1:] = 7

    constants = Constants()
    constants.add(np.arange(6, dtype=np.int16).reshape(2, 3).T)
    assert constants.add(LazyArray(np.dtype(np.int32), 3, fill)) == 1
    assert not filled
    small, blocks, (first, second) = constants.pack(32)
    assert not blocks
    assert (first.offset, first.size, second.offset, second.size) == (0, 12, 32, 12)
    assert small[:12].view(np.int16).tolist() == [0, 3, 1, 4, 2, 5]
    assert small[32:].view(np.int32)[:3].tolist() == [0, 7, 7]
    assert np.shares_memory(small, filled[0]), "no copy is made"


@pytest.mark.parametrize("packed_ahead", [0, 1 << 30])
def test_large_arrays_have_blocks(monkeypatch: pytest.MonkeyPatch, packed_ahead: int) -> None:
    monkeypatch.setattr(lowering, "BLOCK_BYTES", 20)
    monkeypatch.setattr(lowering, "_PACKED_AHEAD", packed_ahead)
    filled: list[npt.NDArray[Any]] = []

    def fill(out: npt.NDArray[np.int32]) -> None:
        filled.append(out)
        out[1:] = 7

    constants = Constants()
    constants.add(np.arange(3, dtype=np.int16))
    constants.add(LazyArray(np.dtype(np.int32), 5, fill))
    constants.add(np.arange(3, dtype=np.int32))
    small, (block,), ranges = constants.pack(32)
    assert [(part.block, part.offset, part.size) for part in ranges] == [
        (None, 0, 6),
        (0, 0, 20),
        (None, 32, 12),
    ]
    assert len(filled) == (1 if packed_ahead else 0), "large constants are packed when needed"
    assert small[32:].view(np.int32)[:3].tolist() == [0, 1, 2]
    assert block.nbytes == 32
    assert block.read().view(np.int32).tolist() == [0, 7, 7, 7, 7, 0, 0, 0]
    assert len(filled) == 1


@pytest.mark.parametrize("block_bytes", [1, 1 << 60])
def test_what_cannot_be_packed_is_told(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    def fill(_: npt.NDArray[np.int32]) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(lowering, "BLOCK_BYTES", block_bytes)
    constants = Constants()
    constants.add(LazyArray(np.dtype(np.int32), 3, fill))
    with pytest.raises(MemoryError, match="no room for a copy"):
        constants.pack(32)
