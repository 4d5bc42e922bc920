"""The minimum work of a kernel, counted by hand, and the floors that follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from litegpu.engine.facts import LaunchFacts
from litegpu.engine.layout import Layout, assign
from litegpu.engine.lowering import KernelLaunch
from litegpu.engine.peaks import Peaks
from litegpu.engine.program import build_program
from litegpu.graph import ABSENT, EpilogueOp
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import Window
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from paper_device import DEVICE, build
from passes.graphs import RELU, GraphBuilder

TENSOR_CORES = replace(DEVICE, backend="cuda", compute_capability=(8, 0))


def launches(layout: Layout) -> tuple[KernelLaunch, ...]:
    return build(layout).launches


def test_inputs_and_outputs_are_counted_as_they_lie() -> None:
    """Unpadded on the partition's borders, padded to whole channel blocks inside."""
    builder = GraphBuilder()
    inside = builder.elementwise(builder.input(1, 5, 3, 7), RELU)
    out = builder.conv(inside, 6)
    first, second = launches(assign(builder.graph(out), FP32))
    assert first.nbytes == 15 * (7 + 8) * 4
    assert first.shape == (1, 5, 3, 7)
    weights = 8 * 8 * 4
    assert second.nbytes == 15 * (8 + 6) * 4 + weights
    assert LaunchFacts.of(second).flops == 2 * 15 * 7 * 6
    assert (first.template, second.template) == ("copy", "conv_2d")


def test_half_storage_is_half_the_bytes() -> None:
    builder = GraphBuilder()
    inside = builder.elementwise(builder.input(1, 5, 3, 16), RELU)
    other = builder.elementwise(inside, EpilogueOp("NEG"))
    out = builder.elementwise(other, RELU)
    sizes = [launch.nbytes for launch in launches(assign(builder.graph(out), FP16_ALL))]
    value = 15 * 16
    assert sizes == [value * (4 + 2), value * (2 + 2), value * (2 + 4)]


def test_parts_of_a_concatenation_count_only_themselves() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 8)
    joined = builder.concat(3, builder.elementwise(source, RELU), builder.conv(source, 12))
    out = builder.conv(joined, 4)
    layout = assign(builder.graph(out), FP32)
    assert len({layout.storages[v].base for v in layout.graph.nodes[2].inputs}) == 1
    first, second, whole = launches(layout)
    assert first.nbytes == 16 * (8 + 8) * 4
    assert second.nbytes == 16 * (8 + 12) * 4 + 8 * 12 * 4
    assert whole.nbytes == 16 * (20 + 4) * 4 + 20 * 4 * 4


def test_a_value_that_is_read_twice_is_counted_once() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 8)
    scale = builder.constant(8)
    out = builder.elementwise(source, EpilogueOp("MUL", (source,)), EpilogueOp("ADD", (scale,)))
    (launch,) = launches(assign(builder.graph(out), FP32))
    assert len(launch.bindings) == 4
    assert launch.nbytes == 16 * (8 + 8) * 4 + 8 * 4


def test_a_slice_needs_only_what_it_takes() -> None:
    builder = GraphBuilder()
    attributes = CopyAttributes(begin=(0, 6, 0, 4))
    out = builder.node("STRIDED_SLICE", [builder.input(1, 8, 8, 16)], (1, 2, 8, 8), (), attributes)
    (launch,) = launches(assign(builder.graph(out), FP32))
    assert launch.nbytes == 2 * 16 * 8 * 4


def test_a_convolution_that_skips_pixels_needs_only_the_others() -> None:
    """But operands of fused steps are needed in full."""
    builder = GraphBuilder()
    weights = builder.constant(32, 1, 1, 8)
    attributes = ConvAttributes(Window((1, 1), (2, 2)), weights, ABSENT, (32, 1, 1, 8))
    other = builder.input(1, 4, 4, 32)
    source = builder.input(1, 8, 8, 8)
    epilogue = (EpilogueOp("ADD", (other,)),)
    out = builder.node("CONV_2D", [source], (1, 4, 4, 32), epilogue, attributes)
    (launch,) = launches(assign(builder.graph(out), FP32))
    assert launch.nbytes == 16 * (8 + 32 + 32) * 4 + 8 * 32 * 4


@pytest.mark.parametrize(
    ("template", "policy", "size", "each"),
    [
        ("conv_mma", FP32, 16, (Unit.TF32_MATRIX, 3)),
        ("conv_mma", FP16_ALL, 16, (Unit.FP16_MATRIX, 1)),
        ("conv_tile", FP32, 64, (Unit.TF32_MATRIX, 3)),
        ("conv_tile", FP16_ALL, 64, (Unit.FP16_MATRIX, 1)),
    ],
)
def test_products_are_counted_by_the_unit_that_makes_them(
    template: str, policy: NumericPolicy, size: int, each: tuple[Unit, int]
) -> None:
    builder = GraphBuilder()
    inside = builder.elementwise(builder.input(1, size, size, 32), RELU)
    layout = assign(builder.graph(builder.conv(inside, 64)), policy)
    graph = layout.graph
    built = build_program(layout, TENSOR_CORES, graph.inputs, graph.outputs)
    plain, conv = built.launches
    assert (plain.template, conv.template) == ("copy", f"cuda/{template}")
    facts = LaunchFacts.of(conv)
    assert facts.flops == 2 * size**2 * 32 * 64
    unit, products = each
    assert facts.operations == {unit: products * facts.flops}
    assert not LaunchFacts.of(plain).operations
    for launch in built.launches:
        assert ("multiply" in launch.kernel.body) == bool(launch.work)


# Floors

PEAKS = Peaks(
    {Unit.FP32: 1e12, Unit.FP16_MATRIX: 1e14, Unit.TF32_MATRIX: 5e13},
    ((1 << 20, 4e11), (1 << 24, 8e11), (1 << 28, 1e11)),
)


def test_the_floor_is_what_takes_longest() -> None:
    assert PEAKS.floor({Unit.FP32: 10**9}, 4) == pytest.approx(1e-3)
    assert PEAKS.floor({Unit.FP32: 4}, 8 * 10**6) == pytest.approx(1e-5)
    assert PEAKS.floor({}, 8 * 10**6) == pytest.approx(1e-5)


def test_matrix_instructions_have_a_rate_of_their_own() -> None:
    assert PEAKS.floor({Unit.TF32_MATRIX: 3 * 10**9}, 4) == pytest.approx(6e-5)
    assert PEAKS.floor({Unit.FP16_MATRIX: 3 * 10**9}, 4) == pytest.approx(3e-5)


def test_units_work_side_by_side() -> None:
    both = {Unit.FP16_MATRIX: 3 * 10**9, Unit.FP32: 10**9}
    assert PEAKS.floor(both, 4) == pytest.approx(1e-3)


def test_what_is_done_by_a_unit_without_a_ceiling_has_no_floor() -> None:
    assert PEAKS.floor({Unit.INT8_MATRIX: 1, Unit.FP32: 10**9}, 4) is None


def test_the_bandwidth_is_the_best_of_copies_as_large() -> None:
    """The smallest copies mostly wait for their launch: the rate of a larger one stands."""
    assert PEAKS.bandwidth(1) == PEAKS.bandwidth(1 << 24) == 8e11
    assert PEAKS.bandwidth((1 << 24) + 1) == PEAKS.bandwidth(1 << 30) == 1e11
