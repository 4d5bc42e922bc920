"""Small convolutions of the same value become one convolution, and slices of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph
from litegpu.ops.base import as_float32
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.exact.functions import in_body
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.passes import PassResult
from litegpu.passes.merge_siblings import merge_siblings
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 3, 2, 5)


def gate(builder: GraphBuilder, value: int) -> int:
    """Add what reads a value, and cannot become an epilogue op of its kernel."""
    n, _, _, c = builder.shape(value)
    mean = builder.node("MEAN", [value], (n, 1, 1, c))
    return builder.elementwise(builder.input(n, 7, 7, c), EpilogueOp("MUL", (mean,)))


def siblings(builder: GraphBuilder, *channels: int) -> list[int]:
    source = builder.input(*SHAPE)
    return [builder.conv(source, each) for each in channels]


def finished(builder: GraphBuilder, values: list[int]) -> Graph:
    return builder.graph(*(gate(builder, v) for v in values))


def test_they_become_one_and_slices_of_it() -> None:
    builder = GraphBuilder()
    output = siblings(builder, 8, 4, 12)
    graph = finished(builder, output)
    result = applied(merge_siblings, graph)
    merged, *slices = result.graph.nodes[:4]
    assert merged.op == "CONV_2D"
    assert merged.attributes.shape == (24, 1, 1, 5)
    assert merged.merged == (1, 2)
    assert result.graph.values[merged.outputs[0]].shape == (1, 3, 2, 24)
    assert [node.op for node in slices] == ["STRIDED_SLICE"] * 3
    assert [node.inputs for node in slices] == [merged.outputs] * 3
    assert [node.outputs[0] for node in slices] == output
    assert [node.attributes for node in slices] == [
        CopyAttributes(begin=(0, 0, 0, start)) for start in (0, 8, 12)
    ]
    weights = as_float32(result.graph.values[merged.attributes.weights])
    wanted = [as_float32(graph.values[node.attributes.weights]) for node in graph.nodes[:3]]
    np.testing.assert_array_equal(weights, np.concatenate(wanted))
    assert result.applied == ("CONV_2D 0, CONV_2D 1, CONV_2D 2",)


def test_what_ends_inside_a_slice_comes_last() -> None:
    builder = GraphBuilder()
    result = applied(merge_siblings, finished(builder, siblings(builder, 3, 8, 5, 4)))
    merged = [node for node in result.graph.nodes if node.op == "CONV_2D"]
    assert [node.attributes.shape[0] for node in merged] == [15, 5], "one more would not fit"
    starts = [n.attributes.begin[3] for n in result.graph.nodes if n.op == "STRIDED_SLICE"]
    assert starts == [12, 0, 8]


@pytest.mark.parametrize("dtypes", [("float16", "float16"), ("float16", "float32")])
def test_weights_keep_their_type_if_they_all_have_it(dtypes: tuple[str, str]) -> None:
    builder = GraphBuilder()
    output = siblings(builder, 4, 4)
    for index, dtype in enumerate(dtypes):
        node = builder.nodes[index]
        weights = builder.constant(4, 1, 1, 5, dtype=dtype)
        builder.nodes[index] = replace(node, attributes=replace(node.attributes, weights=weights))
    result = applied(merge_siblings, finished(builder, output))
    attached = result.graph.values[result.graph.nodes[0].attributes.weights]
    assert attached.dtype is (DType.FLOAT16 if dtypes[1] == "float16" else DType.FLOAT32)


def test_a_missing_bias_is_zero() -> None:
    builder = GraphBuilder()
    output = siblings(builder, 4, 8)
    node = builder.nodes[1]
    bias = builder.constant(8)
    builder.nodes[1] = replace(node, attributes=replace(node.attributes, bias=bias))
    result = applied(merge_siblings, finished(builder, output))
    attached = result.graph.values[result.graph.nodes[0].attributes.bias].data
    assert attached is not None
    assert attached.tolist() == [0.0] * 4 + [float(i) for i in range(1, 9)]


def test_rows_of_matrices_may_have_any_rank() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 7, 6)
    output = []
    for outputs in (4, 8):
        attributes = ConvAttributes(POINT, builder.constant(outputs, 6), ABSENT, (outputs, 1, 1, 6))
        output.append(
            builder.node("FULLY_CONNECTED", [source], (2, 7, outputs), attributes=attributes)
        )
    graph = builder.graph(*(builder.node("MEAN", [v], (2, 7, 1)) for v in output))
    merged = applied(merge_siblings, graph).graph.nodes[0]
    assert (merged.op, merged.attributes.shape) == ("FULLY_CONNECTED", (12, 1, 1, 6))


def test_different_windows_and_epilogue_ops_stay_apart() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    output = [
        builder.conv(source, 4),
        builder.conv(source, 4, 3),
        builder.conv(source, 4, 1, [RELU]),
    ]
    assert untouched(merge_siblings, finished(builder, output)).declined == ()


def test_equal_epilogue_ops_are_done_together() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    output = [builder.conv(source, 4, 1, [RELU]) for _ in range(2)]
    result = applied(merge_siblings, finished(builder, output))
    assert result.graph.nodes[0].epilogue == (RELU,)
    assert "CONV_2D" not in ops(result)[1:]


def test_constants_of_epilogues_are_joined() -> None:
    """A single number counts for all channels; what has one element per pixel is read by all."""
    builder = GraphBuilder()
    source, scale = builder.input(*SHAPE), builder.input(1, 3, 2, 1)
    each, one = builder.constant(8), builder.constant(1)
    output = [
        builder.conv(source, 8, 1, [EpilogueOp("ADD", (each,)), EpilogueOp("MUL", (scale,))]),
        builder.conv(source, 4, 1, [EpilogueOp("ADD", (one,)), EpilogueOp("MUL", (scale,))]),
    ]
    result = applied(merge_siblings, finished(builder, output))
    added, multiplied = result.graph.nodes[0].epilogue
    (joined,) = added.operands
    data = result.graph.values[joined].data
    assert data is not None
    assert data.tolist() == [*(float(i) for i in range(1, 9)), 1.0, 1.0, 1.0, 1.0]
    assert multiplied == EpilogueOp("MUL", (scale,))


def test_different_scales_of_pixels_stay_apart() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    scales = [builder.input(1, 3, 2, 1) for _ in range(2)]
    output = [builder.conv(source, 4, 1, [EpilogueOp("MUL", (v,))]) for v in scales]
    assert untouched(merge_siblings, finished(builder, output)).declined == ()


def test_products_of_quantized_rows_are_joined() -> None:
    builder = GraphBuilder()
    source, scale = builder.input(*SHAPE), builder.input(1, 3, 2, 1)
    output = []
    for outputs in (8, 12):
        weights = builder.constant(outputs, 1, 1, 5, dtype="int8")
        factors = builder.constant(outputs)
        attributes = QuantizedConvAttributes(POINT, weights, ABSENT, (outputs, 1, 1, 5), 1, 0, 0)
        epilogue = [EpilogueOp("SCALE_SUM", (scale, factors))]
        shape = (*SHAPE[:3], outputs)
        output.append(builder.node(QUANTIZED_CONV, [source], shape, epilogue, attributes))
    result = applied(merge_siblings, finished(builder, output))
    merged = result.graph.nodes[0]
    assert (merged.op, merged.attributes.shape) == (QUANTIZED_CONV, (20, 1, 1, 5))
    assert result.graph.values[merged.attributes.weights].dtype is DType.INT8
    assert [result.graph.values[v].elements for v in merged.epilogue[0].operands] == [6, 20]


def channels_of(result: PassResult) -> list[int]:
    """Return the channels of each convolution."""
    nodes = result.graph.nodes
    return [node.attributes.shape[0] for node in nodes if node.op == "CONV_2D"]


def test_many_weights_become_several_convolutions() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 1, 1, 1024)
    output = [builder.conv(source, 2048) for _ in range(4)]
    assert channels_of(applied(merge_siblings, finished(builder, output))) == [4096, 4096]


# From 2^21 values, 2^16 weights and 4e8 operations on, something is rounded.
@pytest.mark.parametrize(
    ("image", "channels"),
    [
        ((1, 128, 128, 1), (64, 128, 120)),
        ((1, 2, 2, 512), (64, 128, 120)),
        ((1, 125, 125, 64), (104, 208, 96)),
    ],
    ids=["values", "weights", "operations"],
)
def test_what_is_rounded_alone_is_none_of_what_is_not(
    image: tuple[int, int, int, int], channels: tuple[int, ...]
) -> None:
    builder = GraphBuilder()
    source = builder.input(*image)
    output = [builder.conv(source, each) for each in channels]
    first, rounded, last = (builder.nodes[i].outputs[0] for i in range(3))
    result = applied(merge_siblings, finished(builder, output))
    together = channels[0] + channels[2]
    assert sorted(channels_of(result)) == sorted([together, channels[1]])
    joined, *_ = (node for node in result.graph.nodes if node.op == "CONV_2D")
    assert result.graph.values[joined.outputs[0]].siblings == 2
    assert {first, last} <= {v for node in result.graph.nodes for v in node.outputs}
    assert rounded not in joined.outputs


def test_one_that_must_not_be_rounded_keeps_all() -> None:
    builder = GraphBuilder()
    output = siblings(builder, 4, 8)
    builder.values[output[1]] = replace(builder.values[output[1]], precise=True)
    result = applied(merge_siblings, finished(builder, output))
    assert result.graph.values[result.graph.nodes[0].outputs[0]].precise


def _with_heads(builder: GraphBuilder, channels: int, heads: int) -> Graph:
    source = builder.input(2, 7, 12)
    rows = (2, 7, channels)
    weights = [builder.constant(channels, 12) for _ in range(2)]
    parts = [ConvAttributes(POINT, each, ABSENT, (channels, 1, 1, 12)) for each in weights]
    output = [builder.node("FULLY_CONNECTED", [source], rows, attributes=each) for each in parts]
    split = [builder.reshape(v, 2, 7, heads, channels // heads) for v in output]
    return builder.graph(*(builder.node("MEAN", [v], (2, 7, heads, 1)) for v in split))


def test_heads_are_parts_of_parts() -> None:
    result = applied(merge_siblings, _with_heads(GraphBuilder(), 24, 3))
    assert result.graph.nodes[0].attributes.shape == (48, 1, 1, 12)


def test_heads_that_are_always_copied_are_copied_from_parts() -> None:
    result = applied(merge_siblings, _with_heads(GraphBuilder(), 24, 4))
    assert result.graph.nodes[0].attributes.shape == (48, 1, 1, 12)


def test_heads_that_would_be_copied_are_none() -> None:
    result = untouched(merge_siblings, _with_heads(GraphBuilder(), 20, 5))
    reason = "a reader determines where its result is stored"
    assert result.declined == (f"FULLY_CONNECTED 0: {reason}", f"FULLY_CONNECTED 1: {reason}")


def _an_output(builder: GraphBuilder) -> Graph:
    output = siblings(builder, 4, 4)
    return builder.graph(*output)


def _with_computed_weights(builder: GraphBuilder) -> Graph:
    output = siblings(builder, 4, 4)
    for node in builder.nodes:
        weights = node.attributes.weights
        builder.values[weights] = replace(builder.values[weights], data=None)
        builder.inputs.append(weights)
    return finished(builder, output)


def _with_groups(builder: GraphBuilder) -> Graph:
    output = siblings(builder, 4, 4)
    for position in (0, 1):
        node = builder.nodes[position]
        builder.nodes[position] = replace(node, attributes=replace(node.attributes, groups=5))
    return finished(builder, output)


def _with_operands(builder: GraphBuilder) -> Graph:
    source, other = builder.input(*SHAPE), builder.input(1, 1, 1, 4)
    output = [builder.conv(source, 4, 1, [EpilogueOp("ADD", (other,))]) for _ in range(2)]
    return finished(builder, output)


def _with_positions(builder: GraphBuilder) -> Graph:
    source, scale = builder.input(*SHAPE), builder.constant(4)
    body = EpilogueOp(in_body("SCALE_BY_WEIGHTS"), (scale, scale), 0, (("run", 4), ("end", 2)))
    output = [builder.conv(source, 4, 1, [body]) for _ in range(2)]
    return finished(builder, output)


def _of_bytes(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    output = [builder.conv(source, 4) for _ in range(2)]
    for v in output:
        builder.values[v] = replace(builder.values[v], dtype=DType.INT8)
    return finished(builder, output)


def _before_epilogues(builder: GraphBuilder) -> Graph:
    return builder.graph(*(builder.elementwise(v, RELU) for v in siblings(builder, 4, 4)))


def _before_a_sum(builder: GraphBuilder) -> Graph:
    first, second = siblings(builder, 4, 4)
    return builder.graph(builder.elementwise(first, EpilogueOp("ADD", (second,))))


def _before_a_concatenation(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.concat(3, *siblings(builder, 4, 4)))


def _before_an_output(builder: GraphBuilder) -> Graph:
    return builder.graph(*(builder.reshape(v, 6, 4) for v in siblings(builder, 4, 4)))


def _of_many_weights(builder: GraphBuilder) -> Graph:
    source = builder.input(1, 1, 1, 2048)
    return finished(builder, [builder.conv(source, 2052) for _ in range(2)])


DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_an_output, "the result is an output of the partition"),
    (_with_computed_weights, "the weights are computed or form groups"),
    (_with_groups, "the weights are computed or form groups"),
    (_with_operands, "the epilogue reads further values, or depends on the channel"),
    (_with_positions, "the epilogue reads further values, or depends on the channel"),
    (_of_bytes, "a part of the bytes would not begin at a whole vector"),
    (_before_epilogues, "COPY 2 becomes an epilogue op of it"),
    (_before_a_sum, "COPY 2 becomes an epilogue op of it"),
    (_before_a_concatenation, "a reader determines where its result is stored"),
    (_before_an_output, "a reader determines where its result is stored"),
    (_of_many_weights, "the node has so many weights that the time of launches hardly matters"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    lines = untouched(merge_siblings, make(GraphBuilder())).declined
    assert len(lines) == 2
    assert lines[0] == f"CONV_2D 0: {reason}"


def test_a_convolution_alone_is_left_alone() -> None:
    builder = GraphBuilder()
    assert untouched(merge_siblings, finished(builder, siblings(builder, 4))).declined == ()


def test_other_readers_of_its_input_are_no_siblings() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    output = builder.elementwise(builder.conv(source, 4), RELU)
    graph = builder.graph(output, builder.elementwise(source, EpilogueOp("NEG")))
    assert untouched(merge_siblings, graph).declined == ()


def _gated(model: Model, *channels: int) -> list[TensorRef]:
    source = model.input(2, 4, 3, 5)
    output = [model.conv(source, (each, 1, 1, 5)) for each in channels]
    return [model.max_pool(each) for each in output]


def _three(model: Model) -> list[TensorRef]:
    return _gated(model, 8, 3, 4)


def _two_groups(model: Model) -> list[TensorRef]:
    return _gated(model, 3, 8, 5, 16)


def _heads(model: Model) -> list[TensorRef]:
    """Sums of heads, which a permutation brings before the tokens."""
    source = model.input(2, 5, 12)
    found = []
    for channels in (24, 16, 32):
        weights = model.constant(channels, 12)
        rows = model.op("FULLY_CONNECTED", source, weights, keep_num_dims=True)
        split = model.reshape(rows, 2, 5, 2, channels // 2)
        turned = model.op("TRANSPOSE", split, model.integers(0, 2, 1, 3))
        found.append(model.op("SUM", turned, model.integers(3), keep_dims=True))
    return found


MODELS: list[tuple[Write, int]] = [(_three, 2), (_two_groups, 2), (_heads, 2)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_siblings", saved)
