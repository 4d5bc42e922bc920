"""Operations with attributes, shapes and operands beyond the op table, against the CPU's kernels.

`--hypothesis-profile=many` draws thousands. A failure prints the cases: add them to
`tests/support/cases/`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases.base import LARGE, SMALL, Case, Scale, Sheet
from dice import Drawn, Seeded
from every_backend import first_devices
from litegpu.ops.base import all_ops
from litegpu.ops.variables import VARIABLES
from magnitudes import SCALES, problems
from op_runner import MODES, Mode, problem_of, run
from random_cases import CUSTOM_FAMILIES, FAMILIES, Family

FIXED = {
    *("LargeCast.target", "LargeCast.moved", "LargeCast.then"),
    *(
        "Quantize.at_end",
        "QuantizedConv.pads",
        "QuantizedConv.magnitude",
        "DequantizeStored.axis",
        "QuantizedLookup.options",
    ),
    *("QuantizedDepthwise.batch", "QuantizedPool.pads"),
    *("HybridConv.has_bias", "HybridMatrix.batch", "IntegerLstm.floats"),
    *("QuantizedTransposeConv.bits", "Arithmetic.activation", "Arithmetic.positive"),
    "Arithmetic.scaled",
    *("HybridConv.dtype", "HybridMatrix.dtype"),
    *("HybridTransposeConv.dtype", "HybridTransposeConv.bits"),
    *("Detections.scores", "Detections.least", "Detections.labels", "Detections.regular"),
    *("Detections.per_class", "Detections.quantized", "Suppression.scores", "Suppression.corners"),
    *(
        "HybridConv.bias",
        "HybridMatrix.bias",
        "HybridTransposeConv.bias",
        "QuantizedConv.bias",
        "QuantizedMatrix.states_bias",
    ),
    *("QuantizedDepthwise.bias", "QuantizedMatrix.bias", "QuantizedTransposeConv.bias"),
    *("QuantizedMatmul.dtype", "QuantizedSvdf.kind", "Svdf.values", "Resize.values"),
}
"""What a case has from another class and must not change, or has cases of its own."""
OF_GRAPHS = {"WHILE", "IF", "STABLEHLO_CASE", *VARIABLES}
"""Operations whose graphs are tested in tests/ops/test_while_loop.py and test_variables.py."""
OF_THE_TABLE = {
    *("STABLEHLO_ADD", "STABLEHLO_AND", "STABLEHLO_GATHER", "STABLEHLO_MAXIMUM"),
    *("STABLEHLO_MINIMUM", "STABLEHLO_MULTIPLY", "STABLEHLO_PAD", "STABLEHLO_REDUCE_WINDOW"),
    *("STABLEHLO_SCATTER", "STABLEHLO_SHIFT_LEFT", "SPARSE_TO_DENSE"),
}
"""Operations that have cases in the op table, and are not drawn yet."""
ITEMS = (None, SMALL, LARGE)
MANY = 150
"""Draws of each family in which every attribute changes."""


@st.composite
def batches(draw: Any) -> tuple[Case, ...]:
    """Draw a few cases that can share a model."""
    dice = Drawn(draw)
    custom = dice.number(0, 7) == 0
    families = CUSTOM_FAMILIES if custom else FAMILIES
    items = dice.one_of(*ITEMS)
    drawn = [dice.one_of(*families)(dice) for _ in range(dice.number(1, 3))]
    found = [dataclasses.replace(case, items=items) for case in drawn]
    return tuple({case.name: case for case in found}.values())


@pytest.mark.slow
@given(batch=batches(), mode=st.sampled_from(MODES))
def test_drawn_cases_agree_with_the_cpu(batch: tuple[Case, ...], mode: Mode) -> None:
    outcomes = run(batch, first_devices()[0], mode)
    for case in batch:
        outcome = outcomes[case.name]
        if isinstance(outcome, Exception):
            raise AssertionError(repr(case)) from outcome
        assert not problem_of(case, outcome, mode), repr(case)


@pytest.mark.slow
@given(batch=batches(), mode=st.sampled_from(MODES[2:]), scale=st.sampled_from(SCALES))
def test_drawn_cases_agree_at_other_magnitudes(
    batch: tuple[Case, ...], mode: Mode, scale: Scale
) -> None:
    assert not problems(batch, first_devices()[0], mode, scale), repr(batch)


def drawn(families: Sequence[Family]) -> dict[type[Case], list[Case]]:
    """Return many cases of each class."""
    found: dict[type[Case], list[Case]] = {}
    for family in dict.fromkeys(families):
        for seed in range(MANY):
            dice = Seeded(seed)
            case = dataclasses.replace(family(dice), items=dice.one_of(*ITEMS))
            found.setdefault(type(case), []).append(case)
    return found


@pytest.fixture(scope="module")
def everything() -> dict[type[Case], list[Case]]:
    """Many cases of each class that is drawn."""
    return drawn((*FAMILIES, *CUSTOM_FAMILIES))


def test_every_attribute_of_a_case_is_drawn(everything: dict[type[Case], list[Case]]) -> None:
    fixed = {
        f"{kind.__name__}.{each.name}"
        for kind, found in everything.items()
        for each in dataclasses.fields(kind)
        if len({repr(getattr(case, each.name)) for case in found}) == 1
    }
    assert fixed == FIXED


def ops_of(found: Sequence[Case]) -> list[str]:
    """Return the operations of cases, of which no model is built."""
    sheet = Sheet()
    for case in found:
        sheet.add(case)
    return sheet.ops


def test_every_op_is_drawn(everything: dict[type[Case], list[Case]]) -> None:
    covered = {op for found in everything.values() for op in ops_of(found)}
    missing = {op.name for op in all_ops() if not op.internal} - covered
    assert missing <= OF_GRAPHS | OF_THE_TABLE
