"""A depthwise convolution is computed inside the pointwise one after it (on tensor cores)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.codegen.storage import Shape4
from litegpu.engine.target import DeviceTarget
from litegpu.graph import ABSENT, Graph, Stage
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP16
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.reduce import ReduceAttributes
from litegpu.ops.window import POINT, DepthwiseAttributes, PoolAttributes, Window
from litegpu.passes.base import PassResult
from litegpu.passes.depthwise_into_pointwise import depthwise_into_pointwise as merge
from paper_device import DEVICE
from passes.graphs import RELU, Maker, applied, untouched

CUDA = replace(DEVICE, backend="cuda")
AMPERE = Fusions(DeviceTarget(replace(CUDA, compute_capability=(8, 0)), FP16))
HOPPER = Fusions(DeviceTarget(replace(CUDA, compute_capability=(9, 0)), FP16))


def depthwise_into_pointwise(graph: Graph) -> PassResult:
    """Run the pass for tensor cores without groups of warps."""
    return merge(graph, AMPERE)


def _pair(maker: Maker, channels: int = 16) -> int:
    return maker.depthwise(maker.input(1, 6, 5, channels))


def test_the_pointwise_convolution_takes_the_depthwise_one_with_its_steps() -> None:
    maker = Maker()
    between = _pair(maker)
    slope = maker.constant(16)
    maker.nodes[0] = replace(maker.nodes[0], stages=(Stage("PRELU", (slope,)),))
    graph = maker.graph(maker.conv(between, 8, stages=[RELU]))
    result = applied(depthwise_into_pointwise, graph)
    (node,) = result.graph.nodes
    first, second = graph.nodes
    step = node.attributes.depthwise
    assert node.inputs == graph.inputs
    assert node.stages == (RELU,)
    assert node.merged == (0,)
    assert (step.attributes, step.stages) == (first.attributes, first.stages)
    assert step.shape == (1, 4, 3, 16)
    assert replace(node.attributes, depthwise=None) == second.attributes
    # The constants of both stay, those of the steps too: `applied` compares the values kept.
    assert slope in node.attributes.constants
    assert result.applied == ("DEPTHWISE_CONV_2D 0 into CONV_2D 1",)


def test_only_one_depthwise_convolution_fits_into_a_pointwise_one() -> None:
    maker = Maker()
    first = maker.depthwise(maker.input(1, 8, 8, 16))
    second = maker.depthwise(first)
    result = applied(depthwise_into_pointwise, maker.graph(maker.conv(second, 8)))
    assert result.applied == ("DEPTHWISE_CONV_2D 1 into CONV_2D 2",)
    assert result.declined == ("DEPTHWISE_CONV_2D 0: DEPTHWISE_CONV_2D 1 is no convolution",)


def _output(maker: Maker) -> Graph:
    between = _pair(maker)
    return maker.graph(maker.conv(between, 8), between)


def _two_readers(maker: Maker) -> Graph:
    between = _pair(maker)
    return maker.graph(maker.conv(between, 8), maker.conv(between, 8))


def _operand(maker: Maker) -> Graph:
    between = _pair(maker)
    other = maker.input(1, 4, 3, 16)
    return maker.graph(maker.conv(other, 16, stages=[Stage("ADD", (between,))]))


def _pool(maker: Maker) -> Graph:
    return maker.graph(maker.node("MAX_POOL_2D", [_pair(maker)], (1, 4, 3, 16)))


def _wide_kernel(maker: Maker) -> Graph:
    return maker.graph(maker.conv(_pair(maker), 8, kernel=3))


def _padded_at_the_end(maker: Maker) -> Graph:
    made = maker.conv(_pair(maker), 8)
    maker.values[made] = replace(maker.values[made], shape=(1, 5, 3, 8))
    return maker.graph(made)


def _twice(maker: Maker) -> Graph:
    between = _pair(maker)
    return maker.graph(maker.conv(between, 16, stages=[Stage("ADD", (between,))]))


def _few_inputs(maker: Maker) -> Graph:
    return maker.graph(maker.conv(_pair(maker, 7), 8))


def _few_outputs(maker: Maker) -> Graph:
    return maker.graph(maker.conv(_pair(maker), 4))


def _multiplied(maker: Maker) -> Graph:
    view, taps = Window((1, 1), (1, 1)), maker.constant(1, 1, 1, 32)
    held = DepthwiseAttributes(view, taps, ABSENT)
    source = maker.input(1, 4, 3, 16)
    between = maker.node("DEPTHWISE_CONV_2D", [source], (1, 4, 3, 32), attributes=held)
    return maker.graph(maker.conv(between, 8))


def _computed_operand(maker: Maker) -> Graph:
    between = _pair(maker)
    gate = maker.input(1, 1, 1, 16)
    maker.nodes[0] = replace(maker.nodes[0], stages=(Stage("MUL", (gate,)),))
    return maker.graph(maker.conv(between, 8))


def _computed_weights(maker: Maker) -> Graph:
    made, packed = maker.conv(_pair(maker), 16), maker.input(160, 16)
    pointwise = maker.nodes[-1]
    del maker.values[pointwise.attributes.weights]
    held = replace(pointwise.attributes, weights=packed)
    maker.nodes[-1] = replace(pointwise, inputs=(*pointwise.inputs, packed), attributes=held)
    return maker.graph(made)


def _large(maker: Maker) -> Graph:
    # 2 * 4 * 14 * 14 * 512 * 512 is just above 4e8.
    between = maker.depthwise(maker.input(4, 14, 14, 512), kernel=1)
    return maker.graph(maker.conv(between, 512))


_ALONE = "not read by one convolution alone"
_FEW = "too few channels for tensor cores"
DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_output, _ALONE),
    (_two_readers, _ALONE),
    (_operand, _ALONE),
    (_pool, "MAX_POOL_2D 1 is no convolution"),
    (_wide_kernel, "CONV_2D 1 is not pointwise"),
    (_padded_at_the_end, "CONV_2D 1 pads it"),
    (_twice, "CONV_2D 1 reads it twice"),
    (_few_inputs, _FEW),
    (_few_outputs, _FEW),
    (_multiplied, "it multiplies channels"),
    (_large, "its result is so large that each is better made by itself"),
    (_computed_weights, "CONV_2D 1 has computed weights"),
    (_computed_operand, "it reads computed weights, or its steps do computed values"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[Maker], Graph], reason: str) -> None:
    result = untouched(depthwise_into_pointwise, make(Maker()))
    assert result.declined == (f"DEPTHWISE_CONV_2D 0: {reason}",)


def _mean(maker: Maker, shape: tuple[int, int, int, int], pool: bool) -> int:
    """Add a mean over all pixels, in either spelling."""
    n, height, width, channels = shape
    held = PoolAttributes(Window((height, width), (1, 1))) if pool else ReduceAttributes((1, 2))
    op = "AVERAGE_POOL_2D" if pool else "MEAN"
    source = maker.input(*shape)
    return maker.node(op, [source], (n, 1, 1, channels), [RELU], attributes=held)


@pytest.mark.parametrize("pool", [False, True])
def test_means_are_computed_inside_too(pool: bool) -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(_mean(maker, (2, 7, 5, 16), pool), 8))
    (node,) = applied(depthwise_into_pointwise, graph).graph.nodes
    step = node.attributes.depthwise
    assert node.inputs == graph.inputs
    assert (step.attributes.window, step.stages) == (Window((7, 5), (1, 1)), (RELU,))
    assert (step.attributes.weights, step.shape) == (ABSENT, (2, 1, 1, 16))


def test_views_between_vanish() -> None:
    maker = Maker()
    view = maker.node("RESHAPE", [_mean(maker, (2, 7, 5, 16), False)], (2, 16))
    weights = maker.constant(8, 1, 1, 16)
    dense = ConvAttributes(POINT, weights, ABSENT, (8, 1, 1, 16))
    made = maker.node("FULLY_CONNECTED", [view], (2, 8), attributes=dense)
    graph = maker.graph(made)
    result = applied(depthwise_into_pointwise, graph)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs) == ("FULLY_CONNECTED", graph.inputs)
    assert result.applied == ("MEAN 0 into FULLY_CONNECTED 2",)


def test_a_view_that_cuts_rows_anew_is_no_such_view() -> None:
    maker = Maker()
    view = maker.node("RESHAPE", [_mean(maker, (1, 4, 4, 32), False)], (2, 16))
    graph = maker.graph(maker.node("SOFTMAX", [view], (2, 16)))
    assert untouched(depthwise_into_pointwise, graph).declined == (
        "MEAN 0: RESHAPE 1 is no convolution",
    )


@pytest.mark.parametrize("shape", [(1, 9, 8, 16), (17, 2, 2, 16)])
@pytest.mark.parametrize("pool", [False, True])
def test_means_that_are_too_many_or_too_large(shape: tuple[int, int, int, int], pool: bool) -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(_mean(maker, shape, pool), 8))
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert reason.endswith("each block would compute too many means, or means of too many pixels")


def test_pools_that_leave_the_image_and_other_means_are_left_alone() -> None:
    maker = Maker()
    padded = PoolAttributes(Window((3, 3), (1, 1), pads=(1, 1)))
    pool = maker.node(
        "AVERAGE_POOL_2D", [maker.input(1, 4, 4, 16)], (1, 4, 4, 16), attributes=padded
    )
    channels = ReduceAttributes((3,))
    mean = maker.node("MEAN", [maker.input(1, 4, 4, 16)], (1, 4, 4, 1), attributes=channels)
    graph = maker.graph(maker.conv(pool, 8), mean)
    assert untouched(depthwise_into_pointwise, graph).declined == ()


def test_other_nodes_are_left_alone() -> None:
    maker = Maker()
    made = maker.conv(maker.conv(maker.input(1, 4, 4, 16), 16), 16)
    assert untouched(depthwise_into_pointwise, maker.graph(made)).declined == ()


def on_hopper(graph: Graph) -> PassResult:
    """Run the pass for tensor cores with groups of warps."""
    return merge(graph, HOPPER)


def test_groups_of_warps_take_large_ones() -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(maker.depthwise(maker.input(8, 66, 66, 64)), 32))
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert "so large that each is better made by itself" in reason
    result = applied(on_hopper, graph)
    (node,) = result.graph.nodes
    assert node.attributes.depthwise.shape == (8, 64, 64, 64)
    assert result.applied == ("DEPTHWISE_CONV_2D 0 into CONV_2D 1",)


@pytest.mark.parametrize("shape", [(8, 66, 66, 300), (1, 40, 40, 768), (300000, 3, 3, 8)])
def test_what_does_not_suit_their_kernel_is_left(shape: Shape4) -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(maker.depthwise(maker.input(*shape)), 32))
    (reason,) = untouched(on_hopper, graph).declined
    assert "so large" in reason


@pytest.mark.parametrize(("channels", "merged"), [(64, True), (63, False)])
def test_their_kernel_reads_channels_in_fours(channels: int, merged: bool) -> None:
    """The runtime's tensors have no padding."""
    maker = Maker()
    graph = maker.graph(maker.conv(maker.depthwise(maker.input(8, 98, 98, channels)), 32))
    found = on_hopper(graph)
    assert (len(found.graph.nodes) == 1) is merged
    assert merged or "its input's channels do not lie in fours" in found.declined[0]


def test_what_was_undone_is_not_tried_again() -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(_pair(maker), 8))
    (first, _) = graph.nodes
    apart = replace(AMPERE, apart={first.outputs[0]})
    found = untouched(lambda given: merge(given, apart), graph)
    assert found.declined == ("DEPTHWISE_CONV_2D 0: no kernel takes its input from where it lies",)
