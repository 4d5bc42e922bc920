"""Slices that kernels can read in place need no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.engine.layout import Layout, assign
from litegpu.engine.verify import verify
from litegpu.graph import DType, EpilogueOp
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.copy import CopyAttributes
from paper_device import build
from passes.graphs import RELU, GraphBuilder, Shape

SHAPE = (2, 4, 6, 16)


def launched(layout: Layout) -> list[str]:
    """Return the op of each kernel."""
    return [launch.node.op for launch in build(layout).launches]


def cut(builder: GraphBuilder, source: int, begin: Shape, shape: Shape, step: int = 1) -> int:
    n, y, x, c = begin
    attributes = CopyAttributes((n, y, x, c), (1, 1, step, 1))
    return builder.node("STRIDED_SLICE", [source], shape, attributes=attributes)


def read_part(begin: Shape, shape: Shape, source: Shape = SHAPE, step: int = 1) -> Layout:
    """Return the layout of a kernel, a slice of its result, and a kernel that reads the slice."""
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*source), RELU)
    part = cut(builder, output, begin, shape, step)
    return assign(builder.graph(builder.conv(part, 4)), FP32)


@pytest.mark.parametrize(
    ("begin", "shape", "offset"),
    [
        ((0, 0, 0, 0), (2, 4, 6, 8), 0),
        ((0, 0, 0, 4), (2, 4, 6, 8), 4),
        ((0, 0, 0, 12), (2, 4, 6, 4), 12),
        ((1, 0, 0, 0), (1, 4, 6, 16), 4 * 6 * 16),
        ((0, 1, 0, 0), (2, 2, 6, 16), 6 * 16),
        ((0, 0, 3, 0), (2, 4, 3, 16), 3 * 16),
        ((1, 2, 3, 8), (1, 1, 2, 8), ((4 + 2) * 6 + 3) * 16 + 8),
    ],
)
def test_a_slice_of_whole_slices_is_a_view(begin: Shape, shape: Shape, offset: int) -> None:
    layout = read_part(begin, shape)
    source, part = (node.outputs[0] for node in layout.graph.nodes[:2])
    assert launched(layout) == ["COPY", "CONV_2D"]
    assert layout.storages[part].base == source
    assert layout.storages[part].offset == offset
    assert layout.storages[part].padded_channels == shape[3]


def test_the_last_channels_have_the_padding_of_the_whole() -> None:
    layout = read_part((0, 0, 0, 4), (2, 4, 6, 3), source=(2, 4, 6, 7))
    assert launched(layout) == ["COPY", "CONV_2D"]
    part = layout.graph.nodes[1].outputs[0]
    assert (layout.storages[part].padded_channels, layout.storages[part].channels) == (4, 3)


@pytest.mark.parametrize(
    ("begin", "shape", "step"),
    [
        ((0, 0, 0, 2), (2, 4, 6, 4), 1),
        ((0, 0, 0, 0), (2, 4, 6, 7), 1),
        ((0, 0, 5, 0), (2, 4, 6, 16), -1),
    ],
    ids=["begins inside a slice", "ends inside a slice", "backwards"],
)
def test_other_slices_are_copied(begin: Shape, shape: Shape, step: int) -> None:
    assert launched(read_part(begin, shape, step=step)) == ["COPY", "STRIDED_SLICE", "CONV_2D"]


def test_pixels_that_lie_apart_are_a_view() -> None:
    layout = read_part((0, 1, 1, 8), (2, 2, 3, 8), step=2)
    assert launched(layout) == ["COPY", "CONV_2D"]
    source, part = (layout.storages[node.outputs[0]] for node in layout.graph.nodes[:2])
    assert part.base == source.base
    assert part.strides == (4 * 6 * 16, 6 * 16, 2 * 16)
    assert part.offset == (6 + 1) * 16 + 8


@pytest.mark.parametrize("step", [(2, 1, 1, 1), (1, 1, 1, 2)], ids=["images", "channels"])
def test_other_parts_that_lie_apart_are_copied(step: tuple[int, int, int, int]) -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    shape = tuple(size // each for size, each in zip(SHAPE, step, strict=True))
    attributes = CopyAttributes(step=step)
    part = builder.node("STRIDED_SLICE", [output], shape, attributes=attributes)
    layout = assign(builder.graph(builder.conv(part, 4)), FP32)
    assert launched(layout) == ["COPY", "STRIDED_SLICE", "CONV_2D"]


def test_a_slice_with_steps_is_a_kernel() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    attributes = CopyAttributes((0, 0, 0, 4))
    part = builder.node("STRIDED_SLICE", [output], (2, 4, 6, 8), [RELU], attributes)
    layout = assign(builder.graph(builder.conv(part, 4)), FP32)
    assert launched(layout) == ["COPY", "STRIDED_SLICE", "CONV_2D"]


def test_an_output_is_written_by_a_kernel() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    layout = assign(builder.graph(cut(builder, output, (0, 0, 0, 8), (2, 4, 6, 8))), FP32)
    assert launched(layout) == ["COPY", "STRIDED_SLICE"]


@pytest.mark.parametrize(
    ("channels", "kernels"), [(16, ["CONV_2D"]), (7, ["STRIDED_SLICE", "CONV_2D"])]
)
def test_a_slice_of_an_input_is_a_view_where_it_has_whole_slices(
    channels: int, kernels: list[str]
) -> None:
    builder = GraphBuilder()
    part = cut(builder, builder.input(1, 4, 6, channels), (0, 1, 0, 0), (1, 2, 6, channels))
    assert launched(assign(builder.graph(builder.conv(part, 4)), FP32)) == kernels


def test_a_part_of_a_concatenation_is_written_there() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    part = cut(builder, output, (0, 0, 0, 8), (2, 4, 6, 8))
    joined = builder.concat(3, builder.conv(output, 8), part)
    layout = assign(builder.graph(builder.conv(joined, 4)), FP32)
    assert layout.storages[part].base == joined
    assert launched(layout) == ["COPY", "STRIDED_SLICE", "CONV_2D", "CONV_2D"]


def test_a_slice_of_a_slice_and_one_inside_a_concatenation() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    whole = builder.concat(3, builder.conv(source, 8), builder.conv(source, 16))
    part = cut(builder, cut(builder, whole, (0, 0, 0, 8), SHAPE), (0, 2, 0, 4), (2, 2, 6, 8))
    layout = assign(builder.graph(builder.conv(part, 4), builder.conv(whole, 4)), FP32)
    assert layout.storages[part].base == whole
    assert layout.storages[part].offset == 2 * 6 * 24 + 12
    assert launched(layout) == ["CONV_2D"] * 4


def test_a_small_slice_of_a_value_stored_as_half_is_read_as_half() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    part = cut(builder, output, (0, 0, 0, 8), (2, 4, 6, 8))
    layout = assign(builder.graph(builder.conv(part, 4)), NumericPolicy(4 * 2 * 4 * 6 * 16))
    assert layout.storages[part].dtype is DType.FLOAT16


@pytest.mark.parametrize(("begin", "size", "copied"), [(8, 8, 0), (4, 8, 1), (0, 4, 1), (8, 4, 1)])
def test_half_is_read_eight_channels_at_a_time(begin: int, size: int, copied: int) -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    part = cut(builder, output, (0, 0, 0, begin), (2, 4, 6, size))
    layout = assign(builder.graph(builder.conv(part, 4)), FP16_ALL)
    assert launched(layout).count("STRIDED_SLICE") == copied


def test_what_kernels_round_anyway_is_stored_as_half_even_so() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    part = cut(builder, output, (0, 0, 0, 8), (2, 4, 6, 8))
    layout = assign(builder.graph(builder.conv(part, 4)), NumericPolicy(1 << 30), rounded=[part])
    assert layout.storages[part].dtype is DType.FLOAT16
    assert launched(layout) == ["COPY", "STRIDED_SLICE", "CONV_2D"]


def test_the_whole_lives_as_long_as_its_slices() -> None:
    builder = GraphBuilder()
    output = builder.elementwise(builder.input(*SHAPE), RELU)
    first, second = (cut(builder, output, (0, 0, 0, 8 * i), (2, 4, 6, 8)) for i in range(2))
    value = builder.conv(builder.conv(first, 8), 8)
    layout = assign(builder.graph(builder.elementwise(value, EpilogueOp("ADD", (second,)))), FP32)
    launches = build(layout).launches
    assert [launch.node.op for launch in launches] == ["COPY", "CONV_2D", "CONV_2D", "COPY"]
    assert output in launches[-1].bases


def heads(builder: GraphBuilder, split: int = 2, channels: int = 8) -> tuple[int, int, int]:
    """Return a value of 16 channels, its last channels, and these in heads."""
    whole = builder.elementwise(builder.input(2, 6, 16), RELU)
    part = cut(builder, whole, (0, 0, 0, 16 - channels), (2, 6, channels))
    return whole, part, builder.reshape(part, 2, 6, split, channels // split)


def test_what_a_slice_is_reshaped_to_is_a_view_of_the_whole() -> None:
    builder = GraphBuilder()
    whole, part, split = heads(builder)
    twice = builder.reshape(split, 12, 2, 4)
    layout = assign(builder.graph(builder.conv(split, 4), builder.conv(twice, 4)), FP32)
    assert launched(layout) == ["COPY", "CONV_2D", "CONV_2D"]
    assert {layout.storages[v].base for v in (part, split, twice)} == {whole}
    assert layout.storages[split].strides == (6 * 16, 16, 4)
    assert layout.storages[split].offset == layout.storages[part].offset == 8


def _to_an_output(builder: GraphBuilder) -> tuple[list[int], list[str]]:
    return [heads(builder)[2]], ["COPY", "STRIDED_SLICE"]


def _to_odd_channels(builder: GraphBuilder) -> tuple[list[int], list[str]]:
    split = heads(builder, 4)[2]
    return [builder.conv(split, 4)], ["COPY", "RESHAPE", "CONV_2D"]


def _across_rows(builder: GraphBuilder) -> tuple[list[int], list[str]]:
    """The slice is copied to where it lies as it is reshaped, and read there."""
    flat = builder.reshape(heads(builder)[1], 2, 48)
    return [builder.conv(builder.reshape(flat, 1, 1, 2, 48), 4)], ["COPY", "STRIDED_SLICE"]


def _into_a_concatenation(builder: GraphBuilder) -> tuple[list[int], list[str]]:
    split = heads(builder)[2]
    joined = builder.concat(3, split, builder.elementwise(builder.input(2, 6, 2, 4), RELU))
    return [builder.conv(joined, 4)], ["COPY", "RESHAPE", "COPY", "CONV_2D"]


@pytest.mark.parametrize(
    "write", [_to_an_output, _to_odd_channels, _across_rows, _into_a_concatenation]
)
def test_what_else_a_slice_is_reshaped_to_is_copied_once(
    write: Callable[[GraphBuilder], tuple[list[int], list[str]]],
) -> None:
    builder = GraphBuilder()
    outputs, expected = write(builder)
    assert launched(assign(builder.graph(*outputs), FP32))[: len(expected)] == expected


def joint(
    builder: GraphBuilder, count: int = 2, shape: Shape = SHAPE
) -> tuple[int, list[int], list[int]]:
    """Return a value of siblings, these, and what convolutions make of them."""
    whole = builder.elementwise(builder.input(*shape), RELU)
    builder.values[whole] = replace(builder.values[whole], siblings=count)
    size = shape[3] // count
    each = (*shape[:3], size)
    parts = [cut(builder, whole, (0, 0, 0, i * size), each) for i in range(count)]
    return whole, parts, [builder.conv(part, 4) for part in parts]


@pytest.mark.parametrize(("spare", "dtype"), [(1, DType.FLOAT32), (0, DType.FLOAT16)])
def test_siblings_are_halves_only_if_each_would_be(spare: int, dtype: DType) -> None:
    builder = GraphBuilder()
    whole, parts, outputs = joint(builder)
    layout = assign(builder.graph(*outputs), NumericPolicy(4 * 2 * 4 * 6 * 8 + spare))
    assert {layout.storages[v].dtype for v in (whole, *parts)} == {dtype}
    assert launched(layout) == ["COPY", "CONV_2D", "CONV_2D"]


@pytest.mark.parametrize(
    ("shape", "rounded", "dtype"),
    [
        (SHAPE, (0, 1), DType.FLOAT16),
        # One is read as it is; the other is rounded where it is read.
        (SHAPE, (1,), DType.FLOAT32),
        # The second one could not be read in place as half.
        ((2, 4, 6, 8), (0, 1), DType.FLOAT32),
    ],
)
def test_siblings_that_kernels_round_are_read_in_place(
    shape: Shape, rounded: tuple[int, ...], dtype: DType
) -> None:
    builder = GraphBuilder()
    whole, parts, outputs = joint(builder, shape=shape)
    layout = assign(
        builder.graph(*outputs), NumericPolicy(1 << 30), rounded=[parts[i] for i in rounded]
    )
    assert {layout.storages[v].dtype for v in (whole, *parts)} == {dtype}
    assert launched(layout) == ["COPY", "CONV_2D", "CONV_2D"]


@pytest.mark.parametrize(("channels", "kernels"), [(32, 1), (64, 1), (16, 2), (8, 4)])
def test_parts_of_a_value_share_kernels(channels: int, kernels: int) -> None:
    """Arguments begin at parts, as far as a device's alignment (here 128 bytes) permits."""
    builder = GraphBuilder()
    image = builder.input(1, 8, 1, channels)
    shape = (1, 1, 1, channels)
    parts = [cut(builder, image, (0, y, 0, 0), shape) for y in range(8)]
    whole = builder.concat(1, *(builder.elementwise(part, RELU) for part in parts))
    built = build(assign(builder.graph(whole), FP32))
    verify(built)
    program = built.program
    assert (len(program.launches), len(program.kernels)) == (8, kernels)
    first, second = program.inputs[0], program.outputs[0]
    row = 4 * channels
    for y, launch in enumerate(program.launches):
        assert [span.start for span in launch.reads] == [first.offset + y * row]
        assert [span.start for span in launch.writes] == [second.offset + y * row]
        begins = {launch.offset_in(second, 0), launch.offset_in(first, 1)}
        assert begins == {y * row // 128 * 128}
    assert len(program.readers[0]) == 8
