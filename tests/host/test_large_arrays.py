"""Facts of large arrays: all elements count, and only facts of read-only arrays are remembered."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from litegpu.host import large_arrays
from litegpu.host.large_arrays import LEAST, PIECE, ArrayFact


def counted() -> tuple[ArrayFact[int], list[int]]:
    """Return a fact (the sum), and the list of the sizes of all pieces that were processed."""
    sizes: list[int] = []

    def of_piece(piece: Any) -> int:
        sizes.append(piece.size)
        return int(piece.sum())

    return ArrayFact(of_piece, sum), sizes


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.complex64])
def test_the_smallest_element_anywhere(dtype: Any) -> None:
    itemsize = np.dtype(dtype).itemsize
    for size in (1, PIECE // itemsize - 1, PIECE // itemsize, 2 * PIECE // itemsize + 3):
        for position in (0, size // 2, size - 1):
            array = np.zeros(size, dtype)
            array[position] = -5
            assert LEAST.of(array) == -5
    assert LEAST.of(np.zeros((0, 3), dtype)) == 0


def test_pieces_are_in_row_major_order() -> None:
    fact = ArrayFact(lambda piece: piece.copy(), np.concatenate)
    whole = np.arange(PIECE, dtype=np.int32).reshape(1024, -1)
    np.testing.assert_array_equal(fact.of(whole.T), whole.T.reshape(-1))


def test_facts_of_read_only_arrays_are_remembered() -> None:
    fact, sizes = counted()
    first, second = read_only(np.ones(2 * PIECE, np.uint8)), read_only(np.ones(3, np.uint8))
    assert fact.of_all([first, second, first]) == [2 * PIECE, 3, 2 * PIECE]
    assert sorted(sizes) == [3, PIECE, PIECE] and fact.knows(first)
    assert fact.of(first) == 2 * PIECE and len(sizes) == 3
    assert fact.computed([first]) == [2 * PIECE] and len(sizes) == 5


def test_facts_of_arrays_that_may_change_are_not_remembered() -> None:
    fact, _ = counted()
    array = np.ones(5, np.uint8)
    assert fact.of(array) == 5
    array[0] = 9
    assert fact.of(array) == 13 and not fact.knows(array)


def test_nothing_is_remembered_of_arrays_that_are_gone() -> None:
    """A new array may have the identity of one that is gone."""
    fact, _ = counted()
    for number in range(100):
        assert fact.of(read_only(np.full(7, number, np.uint8))) == 7 * number
    gc.collect()
    assert not fact._known


def test_results_have_the_order_of_their_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_arrays, "_threads", lambda: 3)
    assert large_arrays.in_parallel(str, range(50)) == [*map(str, range(50))]
