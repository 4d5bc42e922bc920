"""The texts of fused elementwise ops: where they may be less accurate."""

from __future__ import annotations

import pytest

from litegpu.engine.layout import assign
from litegpu.graph import SELF, EpilogueOp
from litegpu.numeric_policy import FP16_ALL, FP32
from litegpu.ops.common.functions import FUNCTIONS, expressions, is_bounded, keeps_sum
from paper_device import build
from passes.graphs import RELU, GraphBuilder

RELU6 = EpilogueOp("RELU6")
DOUBLE = EpilogueOp("MUL", (SELF,))
TWICE = EpilogueOp("ADD", (SELF,))


def kernel_text(epilogue: list[EpilogueOp], *, of_sum: bool, half: bool) -> str:
    """Return the kernel of some steps, after a convolution or not; another kernel reads it."""
    builder = GraphBuilder()
    source = builder.input(1, 6, 6, 8)
    output = (
        builder.conv(source, 8, epilogue=epilogue)
        if of_sum
        else builder.elementwise(source, *epilogue)
    )
    graph = builder.graph(builder.conv(output, 8))
    return build(assign(graph, FP16_ALL if half else FP32)).launches[0].kernel.body


@pytest.mark.parametrize(
    ("epilogue", "of_sum", "word"),
    [
        ([RELU], True, "MAX_NAN4"),
        ([TWICE, RELU6], True, "MAX_NAN4"),
        # After a product, zeros have signs of their own, and so has what was never summed up.
        ([DOUBLE, RELU], True, "CLAMP_MIN4"),
        ([RELU], False, "CLAMP_MIN4"),
    ],
)
def test_a_bound_keeps_negative_zero_where_it_means_something(
    epilogue: list[EpilogueOp], of_sum: bool, word: str
) -> None:
    text = kernel_text(epilogue, of_sum=of_sum, half=False)
    assert word in text
    assert ({"MAX_NAN4", "CLAMP_MIN4"} - {word}).pop() not in text


@pytest.mark.parametrize(
    ("epilogue", "bounded"),
    [([RELU6], True), ([RELU6, DOUBLE], False), ([DOUBLE, EpilogueOp("TANH")], True), ([], False)],
)
def test_what_the_last_step_bounds_is_stored_as_it_is(
    epilogue: list[EpilogueOp], bounded: bool
) -> None:
    text = kernel_text(epilogue, of_sum=True, half=True)
    assert ("STORE4_F16_BOUNDED(" in text) == bounded
    assert ("STORE4_F16(" in text) != bounded
    assert "BOUNDED" not in kernel_text(epilogue, of_sum=True, half=False)


def test_words_of_steps() -> None:
    assert "MAX_NAN4" in expressions(RELU, of_sum=True)[0]
    assert "CLAMP_MIN4" in expressions(RELU)[0]
    assert keeps_sum(TWICE)
    assert not keeps_sum(DOUBLE)
    bounded = {name for name in FUNCTIONS if is_bounded(EpilogueOp(name))}
    limits = {"RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"}
    assert bounded == {"COS", "LOGISTIC", "LOGISTIC_OR_TANH", "SIN", "TANH", *limits}
