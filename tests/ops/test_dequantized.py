"""Constants that are dequantized when they are read have the elements of an eager conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.engine.target import DeviceTarget
from litegpu.graph import Quantization
from litegpu.kernels.base import outline
from litegpu.kernels.cuda.halves import halves_of
from litegpu.kernels.cuda.packing import pack_halves, pack_tf32, pack_tiles
from litegpu.numeric_policy import FP16
from litegpu.ops.common import dequantized
from litegpu.ops.common.dequantized import address_of, as_dequantized, real_numbers
from litegpu.ops.common.halves import largest_of
from litegpu.ops.common.lazy_array import LazyArray
from paper_device import DEVICE

TARGET = DeviceTarget(DEVICE, FP16)
RANDOM = np.random.default_rng(1)
STORED = RANDOM.integers(-128, 128, (6, 5, 4), np.int8)
ROWS = tuple(RANDOM.uniform(0.1, 2, 6))
ZEROS = tuple(range(-3, 3))
KINDS = {
    "one scale": Quantization((0.3,), (0,)),
    "zero point": Quantization((0.3,), (7,)),
    "no zero points": Quantization((0.3,), ()),
    "rows": Quantization(ROWS, (0,) * 6),
    "rows with zero points": Quantization(ROWS, ZEROS),
    "columns": Quantization(ROWS[:4], ZEROS[:4], 2),
    "negative scales": Quantization(tuple(-each for each in ROWS), ZEROS),
    "infinite scale": Quantization((*ROWS[:5], float("inf")), ZEROS),
    "huge scales": Quantization((3e38,) * 6, ZEROS),
}


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A constant that is dequantized when it is read, and an ordinary array."""
    eager = real_numbers(STORED, KINDS[request.param])
    assert isinstance(eager, np.ndarray)
    monkeypatch.setattr(dequantized, "_MIN_ELEMENTS", 1)
    monkeypatch.setattr(dequantized, "_AT_ONCE", 41)
    return real_numbers(STORED, KINDS[request.param]), eager


def assert_equal(found: Any, expected: Any) -> None:
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.filterwarnings("ignore:invalid value|overflow")
def test_elements_are_those_of_an_ordinary_array(pair: tuple[Any, Any]) -> None:
    found, eager = pair
    assert as_dequantized(eager) is None
    assert id(as_dequantized(found)) == id(found)
    assert_equal(found, eager)
    for shape in ((6, 1, 1, 20), (6, -1), (120,), (3, 40)):
        for each in (found.reshape(shape), found.reshape(*shape), np.reshape(found, shape)):
            assert each.shape == eager.reshape(shape).shape
            assert_equal(each, eager.reshape(shape))
            assert_equal(each[2:5], eager.reshape(shape)[2:5])
            assert_equal(each[::2], eager.reshape(shape)[::2])
            assert_equal(each[1:3, ...], eager.reshape(shape)[1:3, ...])
    assert_equal(found[3], eager[3])
    assert [each.tobytes() for each in found] == [each.tobytes() for each in eager]


@pytest.mark.filterwarnings("ignore:invalid value|overflow")
def test_operations_return_ordinary_arrays(pair: tuple[Any, Any]) -> None:
    found, eager = pair
    facts = "dtype", "shape", "ndim", "size", "nbytes", "itemsize"
    assert [getattr(found, each) for each in facts] == [getattr(eager, each) for each in facts]
    assert len(found) == 6
    assert_equal(found * np.float32(2) - found, eager * np.float32(2) - eager)
    assert_equal(np.clip(found, -1, 1).astype(np.float16), np.clip(eager, -1, 1).astype(np.float16))
    assert_equal(np.concatenate([found, eager]), np.concatenate([eager, eager]))
    assert_equal(found.transpose(2, 0, 1), eager.transpose(2, 0, 1))
    assert_equal(found.view(np.uint32), eager.view(np.uint32))
    target = np.zeros((6, 5, 8), np.float32)
    target[..., :4] = found
    assert_equal(target[..., :4], eager)
    with pytest.raises(ValueError, match="dequantized elements are always a copy"):
        found.__array__(copy=False)
    with pytest.raises(AttributeError, match="__array_interface__"):
        getattr(found, "__array_interface__")  # noqa: B009


@pytest.mark.filterwarnings("ignore:invalid value|overflow")
@pytest.mark.parametrize("shape", [(6, 5, 4), (6, 1, 1, 20), (120,)])
def test_the_largest_magnitudes(pair: tuple[Any, Any], shape: tuple[int, ...]) -> None:
    found, eager = (each.reshape(shape) for each in pair)
    for axes in (None, tuple(range(1, len(shape)))):
        assert_equal(largest_of(found, axes), largest_of(eager, axes))


def test_the_largest_magnitudes_need_no_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequantized, "_MIN_ELEMENTS", 1)
    found = real_numbers(STORED, KINDS["rows with zero points"])
    lazy = as_dequantized(found)
    assert lazy is not None

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the whole constant was dequantized")

    monkeypatch.setattr(dequantized.Dequantized, "__array__", fail)
    assert lazy.largest(None) is not None and lazy.largest((1, 2)) is not None
    assert lazy.largest((0, 1)) is None
    assert found[1:3].shape == (2, 5, 4)


@pytest.mark.filterwarnings("ignore:invalid value|overflow")
def test_kernels_and_budgets_know_them(pair: tuple[Any, Any]) -> None:
    found, eager = pair
    assert outline(found) == outline(eager)
    assert address_of(found) == address_of(found.reshape(-1)) == STORED.ctypes.data
    assert address_of(eager) == eager.ctypes.data


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", ["rows with zero points", "one scale", "columns"])
@pytest.mark.parametrize(
    "pack",
    [
        lambda weights: pack_halves([weights], 8, 32),
        lambda weights: pack_halves(halves_of(weights, TARGET).parts, 8, 32, in_fours=True),
        lambda weights: pack_tf32(weights, 8, 32),
        lambda weights: pack_tiles(weights, 4, 32),
        lambda weights: pack_tiles(weights, 8, 32, floats=True, split=True),
        lambda weights: pack_tiles(weights, 4, 32, grouped=True),
    ],
    ids=["halves", "scaled", "tf32", "tiles", "floats", "grouped"],
)
def test_layouts_of_matrix_instructions(
    name: str, pack: Callable[[Any], LazyArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = {"columns": 128, "one scale": 1}.get(name, 24)
    scales = tuple(RANDOM.uniform(0.1, 2e5, count))
    kind = Quantization(scales, (1,) * count, 3 if name == "columns" else 0)
    stored = RANDOM.integers(-128, 128, (24, 1, 1, 128), np.int8)
    eager = real_numbers(stored, kind)
    monkeypatch.setattr(dequantized, "_MIN_ELEMENTS", 1)
    found = real_numbers(stored, kind)
    assert as_dequantized(found) is not None
    assert pack(found).make().tobytes() == pack(eager).make().tobytes()
