"""The texts of fused steps: what they may do less carefully, and where."""

from __future__ import annotations

import pytest

from litegpu.engine.layout import assign
from litegpu.graph import SELF, Stage
from litegpu.numeric_policy import FP16_ALL, FP32
from litegpu.ops.functions import FUNCTIONS, expression, is_bounded, keeps_sum
from paper_device import build
from passes.graphs import RELU, Maker

RELU6 = Stage("RELU6")
DOUBLE = Stage("MUL", (SELF,))
TWICE = Stage("ADD", (SELF,))


def kernel_text(stages: list[Stage], *, of_sum: bool, half: bool) -> str:
    """Return the kernel of some steps, after a convolution or not; another kernel reads it."""
    maker = Maker()
    source = maker.input(1, 6, 6, 8)
    made = maker.conv(source, 8, stages=stages) if of_sum else maker.steps(source, *stages)
    graph = maker.graph(maker.conv(made, 8))
    return build(assign(graph, FP16_ALL if half else FP32)).launches[0].kernel.body


@pytest.mark.parametrize(
    ("stages", "of_sum", "word"),
    [
        ([RELU], True, "RAISE4"),
        ([TWICE, RELU6], True, "RAISE4"),
        # After a product, zeros have signs of their own, and so has what was never summed up.
        ([DOUBLE, RELU], True, "AT_LEAST4"),
        ([RELU], False, "AT_LEAST4"),
    ],
)
def test_a_bound_keeps_negative_zero_where_it_means_something(
    stages: list[Stage], of_sum: bool, word: str
) -> None:
    text = kernel_text(stages, of_sum=of_sum, half=False)
    assert word in text
    assert ({"RAISE4", "AT_LEAST4"} - {word}).pop() not in text


@pytest.mark.parametrize(
    ("stages", "bounded"),
    [([RELU6], True), ([RELU6, DOUBLE], False), ([DOUBLE, Stage("TANH")], True), ([], False)],
)
def test_what_the_last_step_bounds_is_stored_as_it_is(stages: list[Stage], bounded: bool) -> None:
    text = kernel_text(stages, of_sum=True, half=True)
    assert ("STORE4_F16_BOUNDED(" in text) == bounded
    assert ("STORE4_F16(" in text) != bounded
    assert "BOUNDED" not in kernel_text(stages, of_sum=True, half=False)


def test_words_of_steps() -> None:
    assert "RAISE4" in expression(RELU, of_sum=True)
    assert "AT_LEAST4" in expression(RELU)
    assert keeps_sum(TWICE)
    assert not keeps_sum(DOUBLE)
    bounded = {name for name in FUNCTIONS if is_bounded(Stage(name))}
    limits = {"RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
    assert bounded == {"COS", "LOGISTIC", "SIN", "TANH", *limits}
