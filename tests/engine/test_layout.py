"""The layout of values: views, unpadded and padded storages, values stored as half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from litegpu.codegen import Storage
from litegpu.engine.layout import Layout, assign
from litegpu.graph import SELF, DType, EpilogueOp, Graph
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.base import COPY
from litegpu.ops.normalize import NORMALIZE, NormalizeAttributes
from litegpu.ops.softmax import SoftmaxAttributes
from paper_device import build
from passes.graphs import RELU, GraphBuilder


def launched(layout: Layout) -> list[str]:
    """Return the op of each kernel."""
    return [launch.node.op for launch in build(layout).launches]


def nested(layout: Layout, parts: Sequence[int], whole: int) -> list[int]:
    """Return where parts begin in the whole that they are part of."""
    base = layout.storages[whole].base
    assert all(layout.storages[part].base == base for part in parts)
    return [layout.storages[part].offset - layout.storages[whole].offset for part in parts]


def softmax(builder: GraphBuilder, source: int) -> int:
    return builder.node(
        "SOFTMAX", [source], builder.shape(source), attributes=SoftmaxAttributes(1.0)
    )


def normalized(builder: GraphBuilder, source: int) -> int:
    attributes = NormalizeAttributes((3,), 1e-6, centred=True)
    return builder.node(NORMALIZE, [source], builder.shape(source), attributes=attributes)


# The boundary and the padding


@pytest.mark.parametrize("policy", [FP32, FP16_ALL])
def test_inputs_and_outputs_are_dense_floats(policy: NumericPolicy) -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 3, 5)
    out = builder.conv(source, 7)
    layout = assign(builder.graph(out), policy)
    assert layout.storages[source] == Storage.create(source, DType.FLOAT32, (1, 4, 3, 5), 1)
    assert layout.storages[out] == Storage.create(out, DType.FLOAT32, (1, 4, 3, 7), 1)
    assert set(layout.bases) == {source, out}, "constants lie elsewhere"


def test_small_types_are_converted_at_the_boundary() -> None:
    builder = GraphBuilder()
    source, indices = builder.input(1, 4, 3, 4), builder.input(3, 4)
    builder.values[indices] = replace(builder.values[indices], dtype=DType.INT32)
    truth = builder.node(COPY, [source], (1, 4, 3, 4), epilogue=(RELU,))
    between = builder.node(COPY, [indices], (3, 4))
    positions = builder.node(COPY, [between], (3, 4), epilogue=(EpilogueOp("CAST_I32_INT64"),))
    for v, dtype in ((truth, DType.BOOL), (between, DType.INT16), (positions, DType.INT64)):
        builder.values[v] = replace(builder.values[v], dtype=dtype)
    layout = assign(builder.graph(truth, positions), FP16_ALL)
    kinds = {v: (layout.storages[v].dtype, layout.storages[v].vector) for v in (indices, positions)}
    assert kinds == {indices: (DType.INT32, True), positions: (DType.INT64, True)}
    assert layout.storages[truth] == Storage.create(truth, DType.BOOL, (1, 1, 1, 48), 4)
    assert launched(layout) == [COPY, "RESHAPE", COPY, COPY], "bytes are written in words"
    inside = {
        v: s for v, s in layout.storages.items() if v not in (source, indices, truth, positions)
    }
    assert {s.dtype for s in inside.values()} == {DType.FLOAT16, DType.INT32}


def test_bools_are_transferred_to_the_byte() -> None:
    builder = GraphBuilder()
    truth = builder.node(COPY, [builder.input(5)], (5,), epilogue=(RELU,))
    builder.values[truth] = replace(builder.values[truth], dtype=DType.BOOL)
    (part,) = build(assign(builder.graph(truth), FP32)).program.outputs
    assert part.size == 5


@pytest.mark.parametrize(
    ("policy", "dtype", "padded_channels"), [(FP32, DType.FLOAT32, 8), (FP16_ALL, DType.FLOAT16, 8)]
)
def test_values_in_between_are_padded(
    policy: NumericPolicy, dtype: DType, padded_channels: int
) -> None:
    builder = GraphBuilder()
    between = builder.conv(builder.input(1, 4, 3, 5), 5)
    layout = assign(builder.graph(builder.conv(between, 7)), policy)
    storage = layout.storages[between]
    assert (storage.dtype, storage.padded_channels, storage.vector) == (
        dtype,
        padded_channels,
        True,
    )


def test_what_is_rounded_anyway_is_stored_as_half() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 3, 5)
    between, other = builder.conv(source, 5), builder.conv(source, 5)
    graph = builder.graph(builder.conv(between, 7), builder.conv(other, 7))
    layout = assign(graph, NumericPolicy(1 << 20), rounded={source, between})
    kinds = [layout.storages[v].dtype for v in (source, between, other)]
    assert kinds == [DType.FLOAT32, DType.FLOAT16, DType.FLOAT32]


def test_half_storage_begins_at_a_size() -> None:
    builder = GraphBuilder()
    small = builder.conv(builder.input(1, 4, 4, 4), 15)
    large = builder.conv(small, 16)
    scale = builder.constant(1, 4, 4, 16)
    layout = assign(
        builder.graph(builder.elementwise(builder.conv(large, 3), RELU), scale),
        NumericPolicy(4 * 4 * 16 * 4),
    )
    assert layout.storages[small].dtype is DType.FLOAT32
    assert layout.storages[large].dtype is DType.FLOAT16
    assert layout.storages[small].padded_channels == 16
    assert layout.storages[large].padded_channels == 16


def test_what_must_be_precise_is_never_half() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 3, 4)
    exact, rounded = builder.conv(source, 4), builder.conv(source, 4)
    builder.values[exact] = replace(builder.values[exact], precise=True)
    layout = assign(
        builder.graph(builder.concat(1, builder.elementwise(exact, RELU), rounded)), FP16_ALL
    )
    assert layout.storages[exact].dtype is DType.FLOAT32


@pytest.mark.parametrize("policy", [NumericPolicy(4), FP16_ALL])
def test_sums_through_layers_are_float32_unless_all_is_to_be_half(policy: NumericPolicy) -> None:
    builder = GraphBuilder()
    stream = builder.conv(builder.input(1, 4, 3, 8), 8)
    streams, layers = [stream], []
    for _ in range(2):
        layers.append(normalized(builder, stream))
        layers.append(builder.conv(layers[-1], 8))
        stream = builder.conv(layers[-1], 8, epilogue=[EpilogueOp("ADD", (stream,))])
        streams.append(stream)
    layers.append(builder.conv(normalized(builder, stream), 8))
    added_first = builder.elementwise(stream, EpilogueOp("ADD", (layers[-1],)))
    layers.append(builder.conv(normalized(builder, added_first), 8))
    stream = builder.elementwise(added_first, EpilogueOp("ADD", (layers[-1],)))
    streams += [added_first, stream]
    last = streams.pop()  # nothing is added to it any more
    layout = assign(builder.graph(builder.conv(normalized(builder, last), 8)), policy)
    expected = DType.FLOAT16 if policy is FP16_ALL else DType.FLOAT32
    assert [layout.storages[v].dtype for v in streams] == [expected] * 4
    assert {layout.storages[v].dtype for v in [*layers, last]} == {DType.FLOAT16}


def test_a_sum_that_is_not_normalized_may_be_half() -> None:
    builder = GraphBuilder()
    stream = builder.conv(builder.input(1, 4, 3, 8), 8)
    twice = EpilogueOp("ADD", (SELF,))
    added = builder.conv(builder.conv(stream, 8), 8, epilogue=[EpilogueOp("ADD", (stream,)), twice])
    layout = assign(builder.graph(builder.conv(added, 8)), NumericPolicy(4))
    assert layout.storages[stream].dtype is layout.storages[added].dtype is DType.FLOAT16


def test_constants_are_half_by_their_size_too() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 4), 8)
    large, small = builder.constant(4, 4, 8), builder.constant(8)
    out = builder.elementwise(output, EpilogueOp("MUL", (large,)), EpilogueOp("ADD", (small,)))
    layout = assign(builder.graph(out), NumericPolicy(4 * 4 * 8 * 4))
    assert layout.storages[large].dtype is DType.FLOAT16
    assert layout.storages[small].dtype is DType.FLOAT32


def test_low_ranks_get_leading_ones() -> None:
    builder = GraphBuilder()
    between = builder.elementwise(builder.input(3, 6), RELU)
    layout = assign(builder.graph(builder.elementwise(between, RELU)), FP32)
    assert layout.storages[between].shape == (1, 1, 3, 6)


# Concatenation


def test_producers_write_in_place() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    parts = [builder.conv(source, channels) for channels in (8, 4, 5)]
    joined = builder.concat(3, *parts)
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    assert nested(layout, parts, joined) == [0, 8, 12]
    assert launched(layout) == ["CONV_2D"] * 4
    # The last part also writes the zeros that pad the whole.
    assert [layout.storages[part].padded_channels for part in parts] == [8, 4, 8]


@pytest.mark.parametrize(("axis", "step"), [(0, 4 * 4 * 8), (1, 4 * 8), (2, 8)])
def test_in_place_along_other_axes(axis: int, step: int) -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    parts = [builder.conv(source, 5) for _ in range(3)]
    joined = builder.concat(axis, *parts)
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    size = builder.shape(parts[0])[axis]
    assert nested(layout, parts, joined) == [0, size * step, 2 * size * step]
    assert launched(layout) == ["CONV_2D"] * 4


def test_in_place_inside_a_part_that_is_in_place() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    first, second, third = (builder.conv(source, 4) for _ in range(3))
    inner = builder.concat(3, first, second)
    outer = builder.concat(3, third, inner)
    layout = assign(builder.graph(builder.conv(outer, 2)), FP32)
    assert nested(layout, [third, first, second], outer) == [0, 4, 8]
    assert launched(layout) == ["CONV_2D"] * 4


def test_parts_that_begin_inside_a_slice_are_gathered() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    parts = [builder.conv(source, 3), builder.conv(source, 5)]
    joined = builder.concat(3, *parts)
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    assert [layout.storages[part].base for part in parts] == parts
    assert launched(layout) == ["CONV_2D", "CONV_2D", "CONCATENATION", "CONV_2D"]


def test_a_repeated_part_is_copied_once() -> None:
    builder = GraphBuilder()
    part = builder.conv(builder.input(1, 4, 4, 3), 4)
    joined = builder.concat(3, part, part)
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    assert nested(layout, [part], joined) == [0]
    assert launched(layout) == ["CONV_2D", "CONCATENATION", "CONV_2D"]


def test_a_part_of_two_wholes_is_copied_into_one() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    shared, other = builder.conv(source, 4), builder.conv(source, 4)
    wholes = [builder.concat(3, shared, other), builder.concat(3, other, shared)]
    outputs = [builder.conv(whole, 2) for whole in wholes]
    layout = assign(builder.graph(*outputs), FP32)
    assert launched(layout).count("CONCATENATION") == 2
    assert {layout.storages[v].base for v in (shared, other)} == {wholes[1]}


def test_inputs_and_outputs_are_copied_into_a_whole() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 4)
    output = builder.conv(source, 4)
    layout = assign(builder.graph(builder.conv(builder.concat(3, source, output), 2), output), FP32)
    assert layout.storages[source].base == source
    assert layout.storages[output].base == output
    assert launched(layout).count("CONCATENATION") == 2


def test_constants_are_copied_into_a_whole() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 4), 4)
    joined = builder.concat(3, output, builder.constant(1, 4, 4, 4))
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    assert launched(layout) == ["CONV_2D", "CONCATENATION", "CONV_2D"]


def test_a_part_read_elsewhere_is_in_place_where_it_can_be_read_in_slices() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    shared, other = builder.conv(source, 4), builder.conv(source, 4)
    joined = builder.concat(3, shared, other)
    layout = assign(builder.graph(builder.conv(joined, 2), builder.conv(shared, 2)), FP32)
    assert nested(layout, [shared], joined) == [0]


def test_a_part_read_elsewhere_stays_out_of_a_dense_output_of_odd_channels() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    shared, other = builder.conv(source, 4), builder.conv(source, 5)
    joined = builder.concat(3, shared, other)
    layout = assign(builder.graph(joined, builder.conv(shared, 2)), FP32)
    assert layout.storages[shared].base == shared
    # Only the joined output reads the other: it is written straight into it.
    assert nested(layout, [other], joined) == [4]


# Reshape


def test_a_reshape_of_whole_slices_is_a_view() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 8)
    flat = builder.node("RESHAPE", [output], (1, 128))
    layout = assign(builder.graph(softmax(builder, flat)), FP32)
    assert layout.storages[output].base == flat
    assert launched(layout) == ["CONV_2D", "SOFTMAX"]


def test_a_reshape_that_cuts_padded_rows_costs_a_kernel() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 5)
    outputs = [
        softmax(builder, builder.node("RESHAPE", [output], (1, 80))),
        builder.conv(output, 2),
    ]
    layout = assign(builder.graph(*outputs), FP32)
    assert layout.storages[output].base == output
    assert launched(layout) == ["CONV_2D", "RESHAPE", "SOFTMAX", "CONV_2D"]


def test_a_producer_whose_only_reader_cuts_rows_writes_without_padding() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 5)
    flat = builder.node("RESHAPE", [output], (1, 80))
    layout = assign(builder.graph(softmax(builder, flat)), FP32)
    assert (layout.storages[output].base, layout.storages[output].vector) == (flat, False)
    assert launched(layout) == ["CONV_2D", "SOFTMAX"]


def test_a_producer_may_write_an_output_through_a_reshape() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 5)
    flat = builder.node("RESHAPE", [output], (1, 80))
    layout = assign(builder.graph(flat), FP32)
    assert layout.storages[output].base == flat
    assert launched(layout) == ["CONV_2D"]


def test_reshaped_inputs_are_views() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    once = builder.node("RESHAPE", [source], (1, 1, 12, 4))
    twice = builder.node("RESHAPE", [once], (1, 1, 6, 8))
    layout = assign(builder.graph(builder.conv(twice, 2)), FP16_ALL)
    assert [layout.storages[v].base for v in (once, twice)] == [source, source]
    assert layout.storages[twice].vector
    assert launched(layout) == ["CONV_2D"]


def test_reshaped_outputs_are_views_of_them() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 8)
    flat = builder.node("RESHAPE", [output], (1, 1, 16, 8))
    layout = assign(builder.graph(output, builder.conv(flat, 2)), FP32)
    assert layout.storages[flat].base == output
    assert launched(layout) == ["CONV_2D", "CONV_2D"]


def test_an_input_reshaped_into_an_output_is_copied() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    flat = builder.node("RESHAPE", [source], (1, 48))
    layout = assign(builder.graph(flat), FP32)
    assert set(layout.bases) == {source, flat}
    assert launched(layout) == ["RESHAPE"]


def test_reshaped_parts_are_written_in_place() -> None:
    """The heads of a detector: each is reshaped, then joined."""
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 3)
    heads = [builder.conv(source, 12) for _ in range(2)]
    flat = [builder.node("RESHAPE", [head], (1, 1, 48, 4)) for head in heads]
    joined = builder.concat(2, *flat)
    layout = assign(builder.graph(builder.conv(joined, 2)), FP32)
    assert nested(layout, heads, joined) == [0, 192]
    assert launched(layout) == ["CONV_2D"] * 3


# Values that exist twice


def test_an_odd_output_that_is_read_inside_is_stored_twice() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 5)
    out = builder.conv(output, 2)
    layout = assign(builder.graph(output, out), FP32)
    assert launched(layout) == ["CONV_2D", COPY, "CONV_2D"]
    first, copy, second = layout.graph.nodes
    assert first.outputs == second.inputs == copy.inputs
    assert copy.outputs == (output,)
    assert layout.storages[first.outputs[0]].vector
    layout.graph.verify()


@pytest.mark.parametrize(("channels", "read"), [(8, True), (5, False)])
def test_other_outputs_are_stored_once(channels: int, read: bool) -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), channels)
    outputs = [output, builder.conv(output, 2)] if read else [output]
    layout = assign(builder.graph(*outputs), FP32)
    assert COPY not in launched(layout)
    assert not layout.storages[output].padded_channels % 4 or not read


def test_the_epilogue_op_boundary_keeps_inputs_and_outputs_away_from_the_kernels() -> None:
    builder = GraphBuilder()
    source, other = builder.input(1, 4, 4, 3), builder.input(1, 4, 4, 5)
    unread = builder.input(2, 2)
    out = builder.conv(source, 5, epilogue=[EpilogueOp("ADD", (other,))])
    layout = assign(builder.graph(out), FP32, stage_boundary=True)
    layout.graph.verify()
    assert launched(layout) == [COPY, COPY, "CONV_2D", COPY]
    node = layout.graph.nodes[2]
    assert not set(node.operands) & {source, other}
    assert node.outputs != (out,)
    assert all(layout.storages[v].vector for v in (*node.operands, *node.outputs))
    assert layout.graph.inputs == (source, other, unread)
    assert layout.graph.outputs == (out,)


def test_the_graph_that_was_given_stays_as_it_is() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 3), 5)
    graph: Graph = builder.graph(output, builder.conv(output, 2))
    nodes, values = graph.nodes, dict(graph.values)
    assign(graph, FP16_ALL, stage_boundary=True)
    assert graph.nodes == nodes
    assert graph.values == values


# The memory behind it


def test_nothing_that_is_live_shares_memory() -> None:
    """Launch by launch: what is read or written lies apart from all that is still needed."""
    builder = GraphBuilder()
    source = builder.input(1, 8, 8, 4)
    value = source
    skipped = builder.conv(source, 8)
    for _ in range(4):
        value = builder.conv(value, 8)
    out = builder.conv(builder.concat(3, value, skipped), 8)
    layout = assign(builder.graph(out), FP32)
    built = build(layout)
    life: dict[int, list[int]] = {v: [0] for v in layout.graph.inputs}
    for number, launch in enumerate(built.launches):
        for base in launch.bases:
            life.setdefault(base, []).append(number)
    life[out].append(len(built.launches) - 1)
    spans = [
        (min(at), max(at), built.offsets[v], built.offsets[v] + layout.bases[v].nbytes)
        for v, at in life.items()
    ]
    for i, (first, last, start, end) in enumerate(spans):
        for other_first, other_last, other_start, other_end in spans[:i]:
            apart_in_time = last < other_first or other_last < first
            assert apart_in_time or end <= other_start or other_end <= start
    assert built.program.memory_bytes < sum(s.nbytes for s in layout.bases.values())
