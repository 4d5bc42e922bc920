"""NaN and infinities give the same results on a device as on the CPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from answering import answers
from cases.base import LARGE
from cases.elementwise import unary_options
from cases.logic import COMPARISONS
from litegpu.backends.base import DeviceInfo
from litegpu.graph import DType
from litegpu.ops.common.function import Function
from litegpu.ops.common.functions import BINARY, STABLEHLO, UNARY
from litegpu.ops.common.types import FLOATS
from litegpu.zoo.writer import ModelWriter
from op_runner import kept_busy_by

Floats = npt.NDArray[np.float32]

_NAN, _INF = float("nan"), float("inf")
FIRST = np.array([[_NAN, 1.0, -2.0, 0.0, _NAN], [3.0, _NAN, 3.0, _NAN, -0.0]], np.float32)
SECOND = np.array([[_NAN, _NAN, -2.0, 1.0, 0.0], [_NAN, 5.0, 3.0, _NAN, 0.0]], np.float32)
SPECIAL = np.array(
    [_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 7e4, -1e5], np.float32
)
_LARGEST = float(np.finfo(np.float32).max)
_CLAMPS = {"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
_LOSE_NAN = {"opengl": {*_CLAMPS, "L2_NORMALIZATION"}}
"""OpenGL lets compilers make maxima of comparisons with constants, and these ignore a NaN."""
_BY_ZERO = {"FLOOR_DIV", "FLOOR_MOD"}
"""Operations that the CPU's kernels refuse to do when a divisor is zero."""


def test_comparisons_and_what_rests_on_them(device: DeviceInfo) -> None:
    writer = ModelWriter()
    x, y = writer.input((2, 5)), writer.input((2, 5))
    truths = [writer.op(name, [x, y], [(2, 5)], dtype="bool") for name in COMPARISONS]
    chosen = writer.op("SELECT_V2", [truths[2], x, y], [(2, 5)])
    options = {"in_data_type": "FLOAT32", "out_data_type": "BOOL"}
    cast = writer.op("CAST", [x], [(2, 5)], options=options, dtype="bool")
    writer.output(*truths, chosen, cast)
    content = writer.build()
    expected = answers(content, None, FIRST, SECOND)
    for got, wanted in zip(answers(content, device, FIRST, SECOND), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def names_of(table: Mapping[str, Function]) -> list[str]:
    """Return those that take and give floats."""
    floats = {n for n, f in table.items() if DType.FLOAT32 in f.takes.dtypes}
    return [n for n in table if n in floats and table[n].gives in (FLOATS, None) and n != "PRELU"]


def check(names: list[str], inputs: list[Floats], device: DeviceInfo) -> None:
    """Compare operations that keep the shape, all in one model."""
    writer = ModelWriter()
    refs = [writer.input(values.shape) for values in inputs]
    for name in names:
        options = unary_options(name)[0]
        writer.output(writer.op(name, refs, [refs[0].shape], options=dict(options)))
    content = writer.build()
    expected, got = answers(content, None, *inputs), answers(content, device, *inputs)
    wrong = []
    for name, *pair in zip(names, expected, got, strict=True):
        # The CPU's fused activations, NONE too, make the largest float of an infinity.
        wanted, found = (np.clip(each, -_LARGEST, _LARGEST) for each in pair)
        for position in np.flatnonzero(~np.isclose(found, wanted, 1e-5, 1e-6, equal_nan=True)):
            operands = [float(values[position]) for values in inputs]
            if np.isnan(operands).any() and name in _LOSE_NAN.get(device.backend, ()):
                continue
            wrong.append(f"{name}{operands}: {found[position]} instead of {wanted[position]}")
    assert not wrong, "\n".join(wrong)


def test_operations_of_one_operand(device: DeviceInfo) -> None:
    check(names_of(UNARY), [SPECIAL], device)


def test_operations_of_two_operands(device: DeviceInfo) -> None:
    names = names_of({**BINARY, **STABLEHLO})
    first, second = np.stack(np.meshgrid(SPECIAL, SPECIAL)).reshape(2, -1)
    check([name for name in names if name not in _BY_ZERO], [first, second], device)
    nonzero = second != 0.0
    check(sorted(_BY_ZERO), [first[nonzero], second[nonzero]], device)


@pytest.mark.parametrize("repeats", [1, 334])
@pytest.mark.parametrize(
    ("name", "beta"),
    [("SOFTMAX", 1.0), ("SOFTMAX", -1.0), ("LOG_SOFTMAX", 1.0), ("L2_NORMALIZATION", 1.0)],
)
def test_rows_with_special_numbers(
    name: str, beta: float, repeats: int, device: DeviceInfo
) -> None:
    rows = np.array(
        [
            *([_NAN, 0.0, 1.0], [_INF, 0.0, 1.0], [-_INF, 0.0, 1.0], [-_INF, -_INF, -_INF]),
            *([1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [1e-20, 0.0, 0.0], [-3e38, -3e38, -3e38]),
            [-_INF, -_INF, 1.0],
        ],
        np.float32,
    )
    # Of many channels each work item has a few, perhaps nothing but -infinity.
    rows = np.repeat(rows, repeats, axis=1)
    if name in _LOSE_NAN.get(device.backend, ()):
        rows = rows[~np.isnan(rows).any(axis=1)]
    writer = ModelWriter()
    options = {"beta": beta} if name == "SOFTMAX" else {}
    source = writer.input(rows.shape)
    writer.output(writer.op(name, [source], [rows.shape], options=options))
    content = writer.build()
    with kept_busy_by(LARGE):
        expected, got = (answers(content, each, rows)[0] for each in (None, device))
    np.testing.assert_allclose(got, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 1), (7, 1)])
def test_maxima_of_windows_pass_over_nan(device: DeviceInfo, size: int, stride: int) -> None:
    """Small windows and large ones; of NaN alone, the maximum is that of nothing."""
    writer = ModelWriter()
    x, shape = writer.input((1, 4, 4, 1)), (1, 4 // stride, 4 // stride, 1)
    window = {"filter_height": size, "filter_width": size, "stride_h": stride, "stride_w": stride}
    options = {"padding": "SAME", "fused_activation_function": "NONE", **window}
    writer.output(writer.op("MAX_POOL_2D", [x], [shape], options=options))
    content, image = writer.build(), np.full((1, 4, 4, 1), _NAN, np.float32)
    image[0, :, :, 0][[0, 1, 2, 2, 3, 3, 3], [2, 3, 0, 1, 0, 1, 3]] = 1, 2, 3, -_INF, _INF, 4, -5
    (expected,), (got,) = answers(content, None, image), answers(content, device, image)
    # The CPU's kernel cuts what it has found to finite floats.
    np.testing.assert_array_equal(np.clip(got, -_LARGEST, _LARGEST), expected)
