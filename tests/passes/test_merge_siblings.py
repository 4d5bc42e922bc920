"""Small convolutions of the same value become one, and their results slices of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import ABSENT, DType, Graph, Stage
from litegpu.ops.base import as_float32
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.window import POINT
from litegpu.passes.merge_siblings import merge_siblings
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 3, 2, 5)


def gate(maker: Maker, value: int) -> int:
    """Add what reads a value, and cannot become a step of its kernel."""
    n, _, _, c = maker.shape(value)
    mean = maker.node("MEAN", [value], (n, 1, 1, c))
    return maker.steps(maker.input(n, 7, 7, c), Stage("MUL", (mean,)))


def siblings(maker: Maker, *channels: int) -> list[int]:
    source = maker.input(*SHAPE)
    return [maker.conv(source, each) for each in channels]


def finished(maker: Maker, values: list[int]) -> Graph:
    return maker.graph(*(gate(maker, v) for v in values))


def test_they_become_one_and_slices_of_it() -> None:
    maker = Maker()
    made = siblings(maker, 8, 4, 12)
    graph = finished(maker, made)
    result = applied(merge_siblings, graph)
    merged, *slices = result.graph.nodes[:4]
    assert merged.op == "CONV_2D"
    assert merged.attributes.shape == (24, 1, 1, 5)
    assert merged.merged == (1, 2)
    assert result.graph.values[merged.outputs[0]].shape == (1, 3, 2, 24)
    assert [node.op for node in slices] == ["STRIDED_SLICE"] * 3
    assert [node.inputs for node in slices] == [merged.outputs] * 3
    assert [node.outputs[0] for node in slices] == made
    assert [node.attributes for node in slices] == [
        CopyAttributes(begin=(0, 0, 0, start)) for start in (0, 8, 12)
    ]
    weights = as_float32(result.graph.values[merged.attributes.weights])
    wanted = [as_float32(graph.values[node.attributes.weights]) for node in graph.nodes[:3]]
    np.testing.assert_array_equal(weights, np.concatenate(wanted))
    assert result.applied == ("CONV_2D 0, CONV_2D 1, CONV_2D 2",)


def test_what_ends_inside_a_slice_comes_last() -> None:
    maker = Maker()
    result = applied(merge_siblings, finished(maker, siblings(maker, 3, 8, 5, 4)))
    merged = [node for node in result.graph.nodes if node.op == "CONV_2D"]
    assert [node.attributes.shape[0] for node in merged] == [15, 5], "one more would not fit"
    starts = [n.attributes.begin[3] for n in result.graph.nodes if n.op == "STRIDED_SLICE"]
    assert starts == [12, 0, 8]


@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("float16", "float32")])
def test_weights_keep_their_type_if_they_all_have_it(dtypes: tuple[str, str]) -> None:
    maker = Maker()
    made = siblings(maker, 4, 4)
    for place, dtype in enumerate(dtypes):
        node = maker.nodes[place]
        weights = maker.constant(4, 1, 1, 5, dtype=dtype)
        maker.nodes[place] = replace(node, attributes=replace(node.attributes, weights=weights))
    result = applied(merge_siblings, finished(maker, made))
    held = result.graph.values[result.graph.nodes[0].attributes.weights]
    assert held.dtype is (DType.FLOAT16 if dtypes[1] == "float16" else DType.FLOAT32)


def test_a_missing_bias_is_zero() -> None:
    maker = Maker()
    made = siblings(maker, 4, 8)
    node = maker.nodes[1]
    bias = maker.constant(8)
    maker.nodes[1] = replace(node, attributes=replace(node.attributes, bias=bias))
    result = applied(merge_siblings, finished(maker, made))
    held = result.graph.values[result.graph.nodes[0].attributes.bias].data
    assert held is not None
    assert held.tolist() == [0.0] * 4 + [float(i) for i in range(1, 9)]


def test_rows_of_matrices_may_have_any_rank() -> None:
    maker = Maker()
    source = maker.input(2, 7, 6)
    made = []
    for outputs in (4, 8):
        attributes = ConvAttributes(POINT, maker.constant(outputs, 6), ABSENT, (outputs, 1, 1, 6))
        made.append(maker.node("FULLY_CONNECTED", [source], (2, 7, outputs), attributes=attributes))
    graph = maker.graph(*(maker.node("MEAN", [v], (2, 7, 1)) for v in made))
    merged = applied(merge_siblings, graph).graph.nodes[0]
    assert (merged.op, merged.attributes.shape) == ("FULLY_CONNECTED", (12, 1, 1, 6))


def test_different_windows_and_steps_stay_apart() -> None:
    maker = Maker()
    source = maker.input(*SHAPE)
    made = [maker.conv(source, 4), maker.conv(source, 4, 3), maker.conv(source, 4, 1, [RELU])]
    assert untouched(merge_siblings, finished(maker, made)).declined == ()


def test_equal_steps_are_done_together() -> None:
    maker = Maker()
    source = maker.input(*SHAPE)
    made = [maker.conv(source, 4, 1, [RELU]) for _ in range(2)]
    result = applied(merge_siblings, finished(maker, made))
    assert result.graph.nodes[0].stages == (RELU,)
    assert "CONV_2D" not in ops(result)[1:]


def test_many_weights_become_several_convolutions() -> None:
    maker = Maker()
    source = maker.input(1, 1, 1, 100)
    made = [maker.conv(source, 300) for _ in range(4)]
    result = applied(merge_siblings, finished(maker, made))
    merged = [node.attributes.shape[0] for node in result.graph.nodes if node.op == "CONV_2D"]
    assert merged == [600, 600]


def _an_output(maker: Maker) -> Graph:
    made = siblings(maker, 4, 4)
    return maker.graph(*made)


def _with_computed_weights(maker: Maker) -> Graph:
    made = siblings(maker, 4, 4)
    for node in maker.nodes:
        weights = node.attributes.weights
        maker.values[weights] = replace(maker.values[weights], data=None)
        maker.inputs.append(weights)
    return finished(maker, made)


def _with_groups(maker: Maker) -> Graph:
    made = siblings(maker, 4, 4)
    for place in (0, 1):
        node = maker.nodes[place]
        maker.nodes[place] = replace(node, attributes=replace(node.attributes, groups=5))
    return finished(maker, made)


def _with_operands(maker: Maker) -> Graph:
    source, other = maker.input(*SHAPE), maker.constant(4)
    made = [maker.conv(source, 4, 1, [Stage("ADD", (other,))]) for _ in range(2)]
    return finished(maker, made)


def _before_steps(maker: Maker) -> Graph:
    return maker.graph(*(maker.steps(v, RELU) for v in siblings(maker, 4, 4)))


def _before_a_sum(maker: Maker) -> Graph:
    first, second = siblings(maker, 4, 4)
    return maker.graph(maker.steps(first, Stage("ADD", (second,))))


def _before_a_concatenation(maker: Maker) -> Graph:
    return maker.graph(maker.concat(3, *siblings(maker, 4, 4)))


def _of_a_large_image(maker: Maker) -> Graph:
    source = maker.input(1, 512, 512, 3)
    return finished(maker, [maker.conv(source, 4) for _ in range(2)])


DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_an_output, "its result is an output of the partition"),
    (_with_computed_weights, "its weights are computed or form groups"),
    (_with_groups, "its weights are computed or form groups"),
    (_with_operands, "its steps read values of their own"),
    (_before_steps, "COPY 2 becomes a step of it"),
    (_before_a_sum, "COPY 2 becomes a step of it"),
    (_before_a_concatenation, "a reader says where its result lies"),
    (_of_a_large_image, "it is so large that launches matter little"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[Maker], Graph], reason: str) -> None:
    lines = untouched(merge_siblings, make(Maker())).declined
    assert len(lines) == 2
    assert lines[0] == f"CONV_2D 0: {reason}"


def test_a_convolution_alone_is_left_alone() -> None:
    maker = Maker()
    assert untouched(merge_siblings, finished(maker, siblings(maker, 4))).declined == ()


def test_other_readers_of_its_input_are_no_siblings() -> None:
    maker = Maker()
    source = maker.input(*SHAPE)
    made = maker.steps(maker.conv(source, 4), RELU)
    graph = maker.graph(made, maker.steps(source, Stage("NEG")))
    assert untouched(merge_siblings, graph).declined == ()


def _gated(model: Model, *channels: int) -> list[TensorRef]:
    source = model.input(2, 4, 3, 5)
    made = [model.conv(source, (each, 1, 1, 5)) for each in channels]
    return [model.max_pool(each) for each in made]


def _three(model: Model) -> list[TensorRef]:
    return _gated(model, 8, 3, 4)


def _two_groups(model: Model) -> list[TensorRef]:
    return _gated(model, 3, 8, 5, 16)


MODELS: list[tuple[Write, int]] = [(_three, 2), (_two_groups, 2)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_siblings", saved)
