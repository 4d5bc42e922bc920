"""All formulas of normalizations are recognized, and similar graphs are not changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases.normalize import APPLIED, ROOTS, SQUARES, Normalization
from comparing import mismatch
from litegpu import backends
from litegpu.graph import DType, Graph, Quantization
from litegpu.ops.normalize import NormalizeAttributes, parts_of, sums_shape
from litegpu.passes.find_normalization import find_normalization
from op_runner import MODES, Mode, run
from passes.graphs import GraphBuilder, applied, ops, untouched

SHAPE = (2, 6, 5, 8)
SMALL = (2, 1, 1, 8)
NOT_SCALED = "the input of the deviation is not scaled"
READ = "nodes that would be removed have other readers"


class Writer(GraphBuilder):
    """Adds operations as they are before they are normalized."""

    def number(self, number: float) -> int:
        return self.value((), np.array(number, np.float32))

    def do(self, op: str, *inputs: int, activation: str = "none") -> int:
        shape = np.broadcast_shapes(*(self.shape(v) for v in inputs))
        output = self.node(op, inputs, shape)
        self.nodes[-1] = replace(self.nodes[-1], params={"activation": activation})
        return output

    def mean(self, source: int, *axes: int) -> int:
        reduced = tuple(1 if i in axes else n for i, n in enumerate(self.shape(source)))
        positions = self.value((len(axes),), np.array(axes, np.int32))
        output = self.node("MEAN", [source, positions], reduced)
        self.nodes[-1] = replace(self.nodes[-1], params={"keep_dims": True})
        return output

    def inverse(self, source: int, mean: int, *axes: int) -> int:
        """Add 1 / deviation."""
        variance = self.mean(self.do("SQUARED_DIFFERENCE", source, mean), *axes)
        return self.do("RSQRT", self.do("ADD", variance, self.number(0.25)))


def whole(writer: Writer, source: int, *axes: int) -> int:
    """Add a normalization without factors."""
    mean = writer.mean(source, *axes)
    scale = writer.inverse(source, mean, *axes)
    return writer.do("MUL", writer.do("SUB", source, mean), scale)


def test_a_normalization_becomes_one_node() -> None:
    writer = Writer()
    source = writer.input(*SHAPE)
    out = whole(writer, source, 1, 2)
    result = applied(find_normalization, writer.graph(out))
    (node,) = result.graph.nodes
    assert (node.op, node.inputs, node.outputs) == ("NORMALIZE", (source,), (out,))
    assert node.attributes == NormalizeAttributes((1, 2), 0.25, centred=True)
    assert node.merged == (0, 1, 2, 3, 4, 5)
    assert result.applied == ("7 operations up to MUL 6 become one",)
    assert result.declined == ()


def test_quantized_operations_are_computed_one_by_one() -> None:
    writer = Writer()
    graph = writer.graph(whole(writer, writer.input(*SHAPE), 1, 2))
    scale = Quantization((0.5,), (0,))
    values = {
        v: replace(value, dtype=DType.INT8, quantization=scale) for v, value in graph.values.items()
    }
    result = untouched(find_normalization, replace(graph, values=values))
    assert result.declined == ()


def test_factors_and_shift_follow_it_and_the_activation_comes_last() -> None:
    writer = Writer()
    source, factor, shift = writer.input(*SHAPE), writer.constant(8), writer.input(*SMALL)
    mean = writer.mean(source, 1, 2)
    scale = writer.do("MUL", writer.inverse(source, mean, 1, 2), factor)
    moved = writer.do("SUB", shift, writer.do("MUL", mean, scale))
    out = writer.do("ADD", writer.do("MUL", source, scale), moved, activation="relu")
    result = applied(find_normalization, writer.graph(out))
    assert ops(result) == ["NORMALIZE", "MUL", "ADD"]
    normalized, scaled, shifted = result.graph.nodes
    assert scaled.inputs == (normalized.outputs[0], factor)
    assert shifted.inputs == (scaled.outputs[0], shift)
    assert shifted.params == {"activation": "relu"}
    assert shifted.outputs == (out,)


def test_a_shift_may_be_subtracted() -> None:
    writer = Writer()
    source, shift = writer.input(*SHAPE), writer.constant(8)
    mean = writer.mean(source, 3)
    scale = writer.inverse(source, mean, 3)
    moved = writer.do("ADD", shift, writer.do("MUL", mean, scale))
    out = writer.do("SUB", writer.do("MUL", source, scale), moved)
    assert ops(applied(find_normalization, writer.graph(out))) == ["NORMALIZE", "SUB"]


def test_its_own_activation_becomes_a_epilogue_op() -> None:
    writer = Writer()
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 3)
    difference = writer.do("SUB", source, mean)
    out = writer.do("MUL", difference, writer.inverse(source, mean, 3), activation="relu6")
    (node,) = applied(find_normalization, writer.graph(out)).graph.nodes
    assert [epilogue_op.function for epilogue_op in node.epilogue] == ["RELU6"]


def test_many_pixels_are_summed_up_by_a_kernel_before() -> None:
    writer = Writer()
    source = writer.input(1, 96, 97, 10)
    out = whole(writer, source, 1, 2)
    result = applied(find_normalization, writer.graph(out))
    first, second = result.graph.nodes
    (sums,) = first.outputs
    assert (first.op, second.op) == ("STATISTICS", "NORMALIZE")
    assert second.inputs == (source, sums)
    assert first.attributes == second.attributes
    assert result.graph.values[sums].precise
    assert result.graph.values[sums].shape == (1, second.attributes.parts, 2, 10)


@pytest.mark.parametrize(
    ("shape", "axes", "parts"),
    [
        ((1, 32, 32, 64), (1, 2), 1),
        ((1, 96, 96, 32), (1, 2), 64),
        ((4, 96, 96, 32), (1, 2), 32),
        ((1, 96, 96, 2048), (1, 2), 2),
        ((1, 100, 100, 8), (1, 2), 64),
        ((200, 64, 64, 8), (1, 2), 1),
        ((1, 4096, 1024, 8), (1, 2), 512),
        ((1, 1, 512, 768), (3,), 1),
        ((1, 384, 384, 3), (1, 2, 3), 64),
    ],
)
def test_parts_suit_the_size(
    shape: tuple[int, int, int, int], axes: tuple[int, ...], parts: int
) -> None:
    assert parts_of(shape, axes) == parts
    assert sums_shape(shape, axes, parts)[1] == parts


def test_what_follows_may_be_normalized_again() -> None:
    writer = Writer()
    out = whole(writer, whole(writer, writer.input(*SHAPE), 1, 2), 3)
    result = applied(find_normalization, writer.graph(out))
    assert ops(result) == ["NORMALIZE", "NORMALIZE"]


def _of_another_value(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    scale = writer.inverse(source, mean, 1, 2)
    return writer.do("MUL", writer.do("SUB", writer.input(*SHAPE), mean), scale)


def _over_other_axes(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    variance = writer.mean(writer.do("SQUARED_DIFFERENCE", source, mean), 3)
    return writer.do("MUL", writer.do("SUB", source, mean), writer.do("RSQRT", variance))


def _around_another_mean(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    scale = writer.inverse(source, writer.mean(source, 1, 2), 1, 2)
    return writer.do("MUL", writer.do("SUB", source, writer.mean(source, 3)), scale)


def _with_a_computed_epsilon(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    variance = writer.mean(writer.do("SQUARED_DIFFERENCE", source, mean), 1, 2)
    scale = writer.do("RSQRT", writer.do("ADD", variance, writer.input(*SMALL)))
    return writer.do("MUL", writer.do("SUB", source, mean), scale)


def _scaled_twice(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    scale = writer.inverse(source, mean, 1, 2)
    return writer.do("MUL", writer.do("SUB", source, mean), writer.do("MUL", scale, scale))


def _with_the_mean_added(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    scale = writer.inverse(source, mean, 1, 2)
    return writer.do("MUL", writer.do("ADD", source, mean), scale)


def _cut_on_the_way(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    scale = writer.inverse(source, mean, 1, 2)
    return writer.do("MUL", writer.do("SUB", source, mean, activation="relu"), scale)


def _cubed(writer: Writer) -> int:
    source = writer.input(*SHAPE)
    mean = writer.mean(source, 1, 2)
    variance = writer.mean(writer.do("SQUARED_DIFFERENCE", source, mean), 1, 2)
    scale = writer.do("POW", variance, writer.number(-1.5))
    return writer.do("MUL", writer.do("SUB", source, mean), scale)


def _that_does_not_line_up(writer: Writer) -> int:
    """The mean of a row is taken from another row."""
    source = writer.input(1, 1, 4, 4)
    mean = writer.mean(source, 3)
    turned = writer.node("RESHAPE", [mean, writer.constant(4)], (1, 1, 1, 4))
    scale = writer.inverse(source, mean, 3)
    return writer.do("MUL", writer.do("SUB", source, turned), scale)


NOT_ONE: list[Callable[[Writer], int]] = [
    *(_of_another_value, _around_another_mean, _scaled_twice, _with_the_mean_added),
    *(_with_a_computed_epsilon, _cut_on_the_way, _cubed, _that_does_not_line_up),
]


@pytest.mark.parametrize("write", NOT_ONE)
def test_what_only_looks_like_one_is_left_alone(write: Callable[[Writer], int]) -> None:
    writer = Writer()
    out = write(writer)
    (line,) = untouched(find_normalization, writer.graph(out)).declined
    assert line.startswith("deviation MEAN ")
    assert line.endswith(f": {NOT_SCALED}")


def test_a_mean_over_other_axes_is_no_variance() -> None:
    writer = Writer()
    out = _over_other_axes(writer)
    assert untouched(find_normalization, writer.graph(out)).declined == ()


def _whose_mean_is_an_output(writer: Writer) -> Graph:
    source = writer.input(*SHAPE)
    out = whole(writer, source, 1, 2)
    return writer.graph(out, writer.nodes[0].outputs[0])


def _whose_scale_is_read(writer: Writer) -> Graph:
    source = writer.input(*SHAPE)
    out = whole(writer, source, 1, 2)
    scale = next(node for node in writer.nodes if node.op == "RSQRT").outputs[0]
    return writer.graph(out, writer.do("NEG", scale))


@pytest.mark.parametrize("write", [_whose_mean_is_an_output, _whose_scale_is_read])
def test_what_others_read_stays(write: Callable[[Writer], Graph]) -> None:
    (line,) = untouched(find_normalization, write(Writer())).declined
    assert line == f"normalization that ends in MUL 6: {READ}"


def test_five_dimensions_are_too_many() -> None:
    writer = Writer()
    out = whole(writer, writer.input(2, 3, 4, 5, 6), 4)
    (line,) = untouched(find_normalization, writer.graph(out)).declined
    assert line.endswith("the value has 5 dimensions, more than 4")


def test_factors_must_not_make_the_value_larger() -> None:
    writer = Writer()
    source = writer.input(1, 6, 5, 8)
    mean = writer.mean(source, 1, 2)
    scale = writer.do("MUL", writer.inverse(source, mean, 1, 2), writer.input(*SMALL))
    out = writer.do("MUL", writer.do("SUB", source, mean), scale)
    (line,) = untouched(find_normalization, writer.graph(out)).declined
    assert line.endswith("the factors broadcast the value to a larger shape")


@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_a_value_and_its_view_with_leading_ones_are_the_same(lead: tuple[int, ...]) -> None:
    writer = Writer()
    source = writer.input(6, 8)
    view = writer.node("RESHAPE", [source], (*lead, 6, 8))
    square = writer.mean(writer.do("MUL", source, view), len(lead) + 1)
    scale = writer.do("RSQRT", writer.do("ADD", square, writer.number(0.25)))
    out = writer.do("MUL", source, scale)
    result = applied(find_normalization, writer.graph(out))
    assert ops(result) == ["RESHAPE", "NORMALIZE"]
    assert result.graph.nodes[1].inputs == (view,)


def test_a_value_under_another_shape_is_another_one() -> None:
    writer = Writer()
    source = writer.input(6, 6)
    view = writer.node("RESHAPE", [writer.node("TRANSPOSE", [source], (6, 6))], (1, 6, 6))
    square = writer.mean(writer.do("MUL", source, view), 2)
    scale = writer.do("RSQRT", writer.do("ADD", square, writer.number(0.25)))
    untouched(find_normalization, writer.graph(writer.do("MUL", source, scale)))


def test_other_nodes_are_left_alone() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, 4, 4, 8), 8)
    assert untouched(find_normalization, builder.graph(output)).declined == ()


AXES = [(1, 2), (3,), (1, 2, 3), (2,), (0,), (2, 3), (0, 1, 2, 3), (-1,), (-3, -2)]


@st.composite
def spellings(draw: st.DrawFn) -> Normalization:
    """Draw a normalization: how it is spelled, of what and over which axes."""
    size = draw(st.sampled_from([9, 9, 9, 60]))
    shape = (*(draw(st.integers(1, n)) for n in (3, size, size)), draw(st.integers(1, 9)))
    axes = draw(st.sampled_from(AXES))
    squares = draw(st.sampled_from(SQUARES))
    return Normalization(
        shape=shape,
        axes=axes,
        squares=squares,
        root=draw(st.sampled_from(ROOTS)),
        applied=draw(st.sampled_from(APPLIED)),
        centred=draw(st.booleans()) or squares in ("SQUARED_DIFFERENCE", "moments"),
        affine=draw(st.sampled_from(["", "constant", "computed"])),
        keep=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from(["NONE", "RELU6"])),
        epsilon=0.125,
        items=draw(st.sampled_from([1, 1 << 16])),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(spellings(), st.sampled_from(MODES))
def test_all_spellings_become_one_and_keep_the_numbers(case: Normalization, mode: Mode) -> None:
    device = next(each for each in backends.list_devices() if each.backend == "opencl")
    outcome = run((case,), device, mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    limit = case.limit(mode.half)
    assert not mismatch(outcome.expected[0], outcome.got[0], limit)
    assert not outcome.faults
    assert {kernel.split("_")[0] for kernel in outcome.kernels} <= {"normalize", "copy"}
