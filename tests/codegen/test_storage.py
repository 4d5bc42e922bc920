"""Index arithmetic of storages and the kernel text for it, compared with NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_text import evaluate, execute, lanes
from litegpu.codegen import Position, Storage, TensorRef, round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import DType
from litegpu.ops.concatenation import regions

Array = npt.NDArray[Any]
property_test = settings(max_examples=150, deadline=None, derandomize=True)

sizes = st.integers(1, 4)
shapes = st.tuples(st.integers(1, 3), sizes, sizes, st.integers(1, 13))
alignments = st.sampled_from([1, 4, 8])


def indices(storage: Storage) -> Array:
    """Return the memory position of each element [N, H, W, C]."""
    n, y, x, c = np.indices(storage.shape)
    rows = sum(i * stride for i, stride in zip((n, y, x), storage.strides, strict=True))
    return np.asarray(storage.offset + rows + c)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def reshapes(draw: Any, shape: Shape4) -> Shape4:
    """Draw a shape of as many elements."""
    total = math.prod(shape)
    channels = draw(st.sampled_from([shape[3], *divisors(total)]))
    width = draw(st.sampled_from(divisors(total // channels)))
    height = draw(st.sampled_from(divisors(total // channels // width)))
    return total // channels // width // height, height, width, channels


@st.composite
def parts(draw: Any, storage: Storage) -> Storage:
    """Draw one part of a concatenation that writes into `storage`."""
    axis = draw(st.integers(0, 3))
    cuts = sorted(draw(st.sets(st.integers(1, max(storage.shape[axis] - 1, 1)), max_size=2)))
    bounds = [0, *(cut for cut in cuts if cut < storage.shape[axis]), storage.shape[axis]]
    each = []
    for start, end in itertools.pairwise(bounds):
        size = [*storage.shape]
        size[axis] = end - start
        each.append((size[0], size[1], size[2], size[3]))
    positions = regions(storage, each, axis)
    return storage if positions is None else draw(st.sampled_from(positions))


@st.composite
def steps(draw: Any, shape: Shape4) -> tuple[tuple[int, int], tuple[int, int]]:
    """Draw the strides of pixels in y and x, and the position of the first pixel."""
    step = (draw(sizes), draw(sizes))
    first = [draw(st.integers(0, min(step[i], shape[1 + i]) - 1)) for i in (0, 1)]
    return step, (first[0], first[1])


@st.composite
def storages(draw: Any) -> Storage:
    """Draw a new storage, a part or a view of one, strided pixels, or a combination of two."""
    dtype = draw(st.sampled_from([DType.FLOAT32, DType.FLOAT16]))
    storage = Storage.create(0, dtype, draw(shapes), draw(alignments))
    for _ in range(draw(st.integers(0, 2))):
        change = draw(st.sampled_from(["part", "view", "spread"]))
        if change == "part":
            storage = draw(parts(storage))
        elif change == "view":
            storage = storage.reshaped(draw(reshapes(storage.shape))) or storage
        else:
            storage = storage.every(*draw(steps(storage.shape)))
    return storage


@given(shape=shapes, alignment=alignments)
@property_test
def test_rows_are_padded_to_the_alignment(shape: Shape4, alignment: int) -> None:
    storage = Storage.create(7, DType.FLOAT16, shape, alignment)
    pitch = round_up(shape[3], alignment)
    expected = np.arange(math.prod(shape[:3]) * pitch).reshape(*shape[:3], pitch)
    np.testing.assert_array_equal(indices(storage), expected[..., : shape[3]])
    assert storage.elements == expected.size
    assert storage.nbytes == 2 * expected.size
    assert storage.contiguous
    assert (storage.base, storage.channels, storage.pitch) == (7, shape[3], pitch)
    assert storage.rows == math.prod(shape[:3])
    assert storage.vector == (pitch % 4 == 0)
    assert storage.padded_channels == pitch
    assert storage.channel_blocks == -(-pitch // 4)


@given(storage=storages())
@property_test
def test_contiguous_means_evenly_spaced_rows(storage: Storage) -> None:
    starts = indices(storage)[..., 0].ravel()
    expected = storage.offset + np.arange(storage.rows) * storage.pitch
    assert storage.contiguous == np.array_equal(starts, expected)


def has_steps(positions: Array) -> bool:
    """Whether elements [N, H, W, C] have constant strides, and channels are contiguous."""
    for axis, size in enumerate(positions.shape):
        gaps = np.diff(positions, axis=axis)
        if size > 1 and (gaps != (1 if axis == 3 else gaps.flat[0])).any():
            return False
    return True


@given(storage=storages(), data=st.data())
@property_test
def test_reshaped_is_a_view_in_row_major_order(storage: Storage, data: st.DataObject) -> None:
    shape = data.draw(reshapes(storage.shape))
    view = storage.reshaped(shape)
    wanted = indices(storage).reshape(shape)
    if view is None:
        padded = storage.padded_channels != storage.channels != shape[3]
        assert padded or not has_steps(wanted)
        return
    np.testing.assert_array_equal(indices(view), wanted)
    assert view.elements == storage.elements
    assert not view.vector or not (wanted[..., 0] % 4).any()
    assert (view.base, view.dtype) == (storage.base, storage.dtype)


@pytest.mark.parametrize("shape", [(1, 1, 12, 5), (1, 12, 1, 5), (3, 4, 1, 5)])
def test_rows_with_padding_may_be_arranged_otherwise(shape: Shape4) -> None:
    storage = Storage.create(0, DType.FLOAT32, (1, 4, 3, 5), 4)
    view = storage.reshaped(shape)
    assert view is not None
    assert (view.pitch, view.padded_channels) == (8, 8)


def test_heads_lie_in_rows_of_several_values() -> None:
    rows = Storage.create(0, DType.FLOAT32, (1, 2, 7, 72), 4).region((1, 2, 7, 24), 3, 24, 24)
    heads = rows.reshaped((2, 7, 3, 8))
    assert heads is not None
    assert (heads.strides, heads.offset) == ((7 * 72, 72, 8), 24)
    assert (heads.vector, heads.padded_channels, heads.contiguous) == (True, 8, False)
    assert rows.reshaped((2, 7, 4, 6)) is not None
    assert rows.reshaped((1, 2, 7 * 24, 1)) is None
    assert rows.reshaped((1, 14, 3, 8)) is not None


def test_rows_with_padding_cannot_be_cut_differently() -> None:
    assert Storage.create(0, DType.FLOAT32, (1, 4, 3, 5), 4).reshaped((1, 1, 5, 12)) is None


@given(shape=shapes, alignment=alignments, axis=st.integers(0, 3), data=st.data())
@property_test
def test_regions_tile_the_whole(
    shape: Shape4, alignment: int, axis: int, data: st.DataObject
) -> None:
    whole = Storage.create(0, DType.FLOAT32, shape, alignment)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(shape[axis] - 1, 1)), max_size=3)))
    cuts = [cut for cut in cuts if cut < shape[axis]]
    wanted = np.split(indices(whole), cuts, axis)
    positions = regions(whole, [part.shape for part in wanted], axis)
    if positions is None:
        assert axis == 3 and whole.vector and any(cut % 4 for cut in cuts)
        return
    for position, expected in zip(positions, wanted, strict=True):
        np.testing.assert_array_equal(indices(position), expected)
        assert position.vector <= whole.vector
    written = [
        position.shape[0] * position.shape[1] * position.shape[2] * position.padded_channels
        for position in positions
    ]
    assert sum(written) == whole.rows * whole.padded_channels, (
        "padding lanes belong to one part each"
    )


@given(storage=storages(), data=st.data())
@property_test
def test_every_takes_pixels_that_lie_apart(storage: Storage, data: st.DataObject) -> None:
    step, first = data.draw(steps(storage.shape))
    position = storage.every(step, first)
    wanted = indices(storage)[:, first[0] :: step[0], first[1] :: step[1]]
    np.testing.assert_array_equal(indices(position), wanted)
    assert (position.base, position.dtype, position.padded_channels) == (
        storage.base,
        storage.dtype,
        storage.padded_channels,
    )
    assert position.vector == storage.vector
    assert not position.vector or not (indices(position)[..., 0] % 4).any()
    assert position.elements == wanted[..., 0].max() - position.offset + position.padded_channels
    assert position.nbytes == position.elements * position.dtype.size
    assert position.rows == wanted[..., 0].size


@given(storage=storages(), step=st.tuples(sizes, sizes))
@property_test
def test_phases_share_a_value_out(storage: Storage, step: tuple[int, int]) -> None:
    _, height, width, _ = storage.shape
    firsts = itertools.product(range(min(step[0], height)), range(min(step[1], width)))
    chosen = [indices(storage.every(step, first)).ravel() for first in firsts]
    np.testing.assert_array_equal(np.sort(np.concatenate(chosen)), np.sort(indices(storage), None))


def test_pixels_apart_in_x_alone_may_still_be_evenly_spaced() -> None:
    storage = Storage.create(0, DType.FLOAT32, (2, 3, 6, 5), 4)
    assert storage.every((1, 2), (0, 0)).contiguous
    assert storage.every((1, 2), (0, 1)).reshaped((1, 1, 18, 5)) is not None
    assert not storage.every((1, 4), (0, 0)).contiguous
    assert not storage.every((2, 2), (0, 0)).contiguous
    assert storage.every((1, 2), (0, 0)).reshaped((1, 1, 1, 90)) is None


# Kernel text


def filled(storage: Storage) -> tuple[Array, Array]:
    """Return memory that holds a value (NaN elsewhere, padding channels zero), and the value."""
    size = storage.offset + storage.elements
    memory = np.full(size, np.nan)
    starts = indices(storage)[..., 0]
    if storage.vector:
        for lane in range(storage.padded_channels):
            memory[starts + lane] = 0.0
    value = 1.0 + np.arange(math.prod(storage.shape)).reshape(storage.shape)
    memory[indices(storage)] = value
    return memory, value


def quads(value: Array, channel_blocks: int) -> Array:
    """Return a value with its channels in blocks of 4, zeros beyond the last channel."""
    missing = channel_blocks * 4 - value.shape[3]
    padded = np.pad(value, [(0, 0)] * 3 + [(0, max(missing, 0))])
    return np.asarray(
        padded[..., : channel_blocks * 4].reshape(*value.shape[:3], channel_blocks, 4)
    )


@given(storage=storages(), by_row=st.booleans())
@property_test
def test_read_gives_every_slice(storage: Storage, by_row: bool) -> None:
    memory, value = filled(storage)
    ref = TensorRef("t", storage)
    at = Position.of_row("p", storage.shape) if by_row else Position("n", "y", "x")
    text = ref.read(at, "s")
    channel_blocks = -(-storage.channels // 4)
    expected = quads(value, channel_blocks)
    for p, (n, y, x) in enumerate(np.ndindex(storage.shape[:3])):
        for s in range(channel_blocks):
            got = evaluate(text, memory, {"p": p, "n": n, "y": y, "x": x, "s": s})
            np.testing.assert_array_equal(got, expected[n, y, x, s])


@given(storage=storages(), wider=st.integers(0, 9), data=st.data())
@property_test
def test_read_broadcasts_to_the_shape_it_is_asked_for(
    storage: Storage, wider: int, data: st.DataObject
) -> None:
    n, h, w, c = (size if size > 1 else data.draw(st.integers(1, 3)) for size in storage.shape)
    like = (n, h, w, c if c > 1 else 1 + wider)
    memory, value = filled(storage)
    at = Position.of_row("p", like)
    channel_blocks = -(-like[3] // 4)
    text = TensorRef("t", storage).read(at, "s", like, channel_blocks)
    rows = np.broadcast_to(value, (*like[:3], storage.channels))
    if storage.channels == 1 and like[3] > 1:
        rows = np.repeat(rows, 4 * channel_blocks, axis=3)
    expected = quads(rows, channel_blocks)
    for p, (n, y, x) in enumerate(np.ndindex(like[:3])):
        for s in range(channel_blocks):
            got = evaluate(text, memory, {"p": p, "s": s})
            np.testing.assert_array_equal(got, expected[n, y, x, s])


@given(storage=storages(), missing=st.integers(0, 9))
@property_test
def test_extended_operands_read_as_zero_beyond_their_channels(
    storage: Storage, missing: int
) -> None:
    like = (*storage.shape[:3], storage.channels + missing)
    memory, value = filled(storage)
    channel_blocks = -(-like[3] // 4)
    text = TensorRef("t", storage, extend=True).read(
        Position.of_row("p", like), "s", like, channel_blocks
    )
    expected = quads(value, channel_blocks)
    for p, (n, y, x) in enumerate(np.ndindex(like[:3])):
        for s in range(channel_blocks):
            got = evaluate(text, memory, {"p": p, "s": s})
            np.testing.assert_array_equal(got, expected[n, y, x, s])


@given(storage=storages())
@property_test
def test_single_channels_by_coordinates_and_by_number(storage: Storage) -> None:
    memory, value = filled(storage)
    ref = TensorRef("t", storage)
    by_place, by_number = ref.read1(Position("n", "y", "x"), "c"), ref.linear1("e")
    for e, (n, y, x, c) in enumerate(np.ndindex(storage.shape)):
        variables = {"n": n, "y": y, "x": x, "c": c, "e": e}
        assert evaluate(by_place, memory, variables) == value[n, y, x, c]
        assert evaluate(by_number, memory, variables) == value[n, y, x, c]


@given(storage=storages(), by_row=st.booleans())
@property_test
def test_write_fills_all_lanes_and_nothing_else(storage: Storage, by_row: bool) -> None:
    expected, value = filled(storage)
    memory = np.full_like(expected, np.nan)
    at = Position.of_row("p", storage.shape) if by_row else Position("n", "y", "x")
    text = TensorRef("t", storage).write(at, "s", "v")
    # Whatever a kernel computes beyond the last channel must not reach the memory.
    sources = np.where(np.arange(4 * storage.channel_blocks) < storage.channels, 0.0, 1e9)
    for p, (n, y, x) in enumerate(np.ndindex(storage.shape[:3])):
        row = sources.copy()
        row[: storage.channels] = value[n, y, x]
        for s in range(storage.channel_blocks):
            variables = {"p": p, "n": n, "y": y, "x": x, "s": s, "v": lanes(row[4 * s :][:4])}
            execute(text, memory, variables)
    np.testing.assert_array_equal(memory, expected)


@given(shape=shapes)
@property_test
def test_positions_decode_row_numbers(shape: Shape4) -> None:
    at = Position.of_row("p", shape)
    for p, index in enumerate(np.ndindex(shape[:3])):
        got = [evaluate(text, np.empty(0), {"p": p}) for text in (at.n, at.y, at.x)]
        assert tuple(got) == index
    assert at.row == "p"


@pytest.mark.parametrize("shape", [(2, 1, 5, 8), (2, 5, 1, 8)])
def test_origins_of_windows_count_axes_of_one_element(shape: Shape4) -> None:
    """A window may begin above the only row, which is then one stride after the window's start."""
    storage = Storage.create(0, DType.FLOAT32, shape, 4)
    ref = TensorRef("src", storage)
    at = Position(n="n", y="y", x="x")
    where = {"n": 1, "y": -1, "x": -2, "s": 1}

    def evaluated(text: Any) -> int:
        return int(eval(text(at, "s", 4), {}, where))

    strides = [stride // 4 for stride in storage.strides]
    expected = strides[0] - strides[1] - 2 * strides[2] + 1
    assert evaluated(ref.origin) == expected
    assert evaluated(ref.index) != expected
