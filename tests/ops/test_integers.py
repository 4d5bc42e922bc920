"""Integers are computed as integers: casts between all types, and indices of embeddings."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from answering import answers
from cases.base import LARGE
from litegpu.backends.base import DeviceInfo
from litegpu.graph import Quantization
from litegpu.zoo.writer import ModelWriter
from op_runner import kept_busy_by

Array = npt.NDArray[Any]

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "int64", "bool", "float16", "float32")
_INF, _NAN = float("inf"), float("nan")
_FLOATS = (
    *(0.0, -0.0, 0.5, -0.5, -1.5, 1.99, 127.6, 128.0, -128.9, -129.0, 255.9, 256.0, -300.0),
    *(2049.0, 2051.0, 32767.5, 32768.0, -32769.0, 65504.0, 65519.0, 65520.0, 65536.0, -7e4),
    *(6e-8, 3e-8, 2.98e-8, 6.1e-5, -1e-3, 1e-7),
    *(2.0**24 + 2, 2147483520.0, 2.0**31, -(2.0**31), -2147483904.0, 3e9, 2.0**32, -5e9, 1.5e10),
    *(1e18, 9.2e18, 9.3e18, -(2.0**63), -9.3e18, 1e30, _INF, -_INF, _NAN),
)
_LONGS = (
    *(0, 1, -1, 255, -129, 65519, 65520, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1),
    *(2**32 - 1, 2**32 + 5, (1 << 40) + (1 << 16) + 1, (1 << 40) + (1 << 15), 2**53 + 1, 2**62 + 1),
    *(2**63 - 1, -(2**63), -(2**40) - 3),
)


def elements(dtype: str) -> Array:
    """Return what may go wrong in a type, 3 x 17 elements and more."""
    kind = np.dtype(dtype)
    with np.errstate(over="ignore"):
        if kind.kind == "f":
            return np.resize(np.array(_FLOATS, kind), (3, 17))
        if kind.kind == "b":
            return np.array(np.arange(51).reshape(3, 17) % 3 == 0)
        ends = np.iinfo(kind)
        whole = [n for n in (*_LONGS, *range(-9, 9)) if ends.min <= n <= ends.max]
        return np.resize(np.array([ends.min, ends.max, *whole], kind), (3, 17))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_items_that_share_a_sum_agree_with_the_cpu(dtype: str, device: DeviceInfo) -> None:
    """As on a GPU: a CPU that plays one has too few cores for that."""
    given = np.resize(elements(dtype), (1, 7, 9, 6))
    writer = ModelWriter()
    x, axes = writer.input(given.shape, dtype), writer.constant([0, 1, 2, 3], "int32")
    for op in ("SUM", "REDUCE_MAX", "REDUCE_MIN"):
        writer.output(writer.op(op, [x, axes], [()], dtype=dtype))
    content = writer.build()
    with kept_busy_by(LARGE):
        got = answers(content, device, given)
    assert [each.item() for each in got] == [each.item() for each in answers(content, None, given)]


@pytest.mark.parametrize("source", TYPES)
def test_casts_are_those_of_the_cpu(source: str, device: DeviceInfo) -> None:
    """To the last bit, whatever does not fit."""
    given = elements(source)
    writer = ModelWriter()
    x = writer.input(given.shape, source)
    for target in TYPES:
        writer.output(writer.op("CAST", [x], [given.shape], dtype=target, version=5))
    content = writer.build()
    expected, got = answers(content, None, given), answers(content, device, given)
    wrong = [
        f"{before} to {target}: {b} instead of {a}"
        for target, first, second in zip(TYPES, expected, got, strict=True)
        for before, a, b in zip(given.flat, first.flat, second.flat, strict=True)
        if not (a == b or (a != a and b != b)) or np.signbit(float(a)) != np.signbit(float(b))
    ]
    assert not wrong


VOCABULARY, WIDTH, SIZES = 40, 12, 6


def text_model(dtype: str) -> bytes:
    """Return a model of ids, of which those below 0 count from the end, and their sum's class."""
    random = np.random.default_rng(5)
    writer = ModelWriter()
    ids, times = writer.input((2, 7), dtype), writer.input((2, 7), dtype)
    zero, size = (writer.constant(n, dtype) for n in (0, VOCABULARY))
    below = writer.op("LESS", [ids, zero], [(2, 7)], dtype="bool")
    moved = writer.op("ADD", [ids, size], [(2, 7)], dtype=dtype)
    found = writer.op("SELECT_V2", [below, moved, ids], [(2, 7)], dtype=dtype)
    table = writer.constant(random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    words = writer.op("GATHER", [table, found], [(2, 7, WIDTH)], options={"axis": 0})
    weights = writer.constant(random.normal(size=(SIZES, WIDTH)).astype(np.float32))
    flat = writer.constant((14, WIDTH), "int32")
    rows = writer.op("RESHAPE", [words, flat], [(14, WIDTH)])
    result = writer.op("FULLY_CONNECTED", [rows, weights, None], [(14, SIZES)])
    # What is counted on: beyond what float32 holds.
    stamps = writer.op("MUL", [times, writer.constant(3, dtype)], [(2, 7)], dtype=dtype)
    known = writer.op("EQUAL", [stamps, times], [(2, 7)], dtype="bool")
    writer.output(result, found, stamps, known)
    return writer.build()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_text_model_is_one_partition(dtype: str, device: DeviceInfo) -> None:
    random = np.random.default_rng(3)
    ids = random.integers(-VOCABULARY, VOCABULARY, (2, 7)).astype(dtype)
    times = (2**24 + np.arange(14).reshape(2, 7)).astype(dtype)
    content = text_model(dtype)
    expected, got = answers(content, None, ids, times), answers(content, device, ids, times)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)
    for whole, wanted in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(whole, wanted)


def test_by_zero_is_no_reason_to_stop(device: DeviceInfo) -> None:
    """The CPU refuses to divide by zero: a device has some number there, and goes on."""
    writer = ModelWriter()
    x, y = (writer.input((9,), "int32") for _ in range(2))
    writer.output(
        *(writer.op(op, [x, y], [(9,)], dtype="int32") for op in ("DIV", "FLOOR_DIV", "FLOOR_MOD"))
    )
    pairs = list(product((-(2**31), -7, 5), (0, -1, 2)))
    first, second = (np.array(each, np.int32) for each in zip(*pairs, strict=True))
    quotients, floors, rests = answers(writer.build(), device, first, second)
    np.testing.assert_array_equal(quotients, [-(2**31)] * 2 + [-(2**30), -7, 7, -3, 5, -5, 2])
    np.testing.assert_array_equal(floors, [-(2**31)] * 2 + [-(2**30), -7, 7, -4, 5, -5, 2])
    np.testing.assert_array_equal(rests, [0, 0, 0, 0, 0, 1, 0, 0, 1])


def test_an_int8_resize_repeats_the_last_pixel(device: DeviceInfo) -> None:
    """A step that is rounded up leads beyond it, where the CPU reads the next row's pixels."""
    writer, scale = ModelWriter(), Quantization((1.0,), (0,))
    x = writer.input((1, 2, 2, 3), "int8", quantization=scale)
    inputs = [x, writer.constant([2, 195], "int32")]
    y = writer.op(
        "RESIZE_BILINEAR", inputs, [(1, 2, 195, 3)], dtype="int8", version=2, quantization=scale
    )
    writer.output(y)
    content, given = writer.build(), np.arange(-6, 6, dtype=np.int8).reshape(1, 2, 2, 3)
    (expected,), (got,) = answers(content, None, given), answers(content, device, given)
    np.testing.assert_array_equal(got[:, :, :187], expected[:, :, :187])
    np.testing.assert_array_equal(got[:, :, 187:], np.repeat(given[:, :, 1:], 8, 2))
