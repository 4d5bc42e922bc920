"""A depthwise convolution is fused into the following pointwise convolution (on tensor cores)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.codegen.storage import Shape4
from litegpu.engine.target import DeviceTarget
from litegpu.graph import ABSENT, DType, EpilogueOp, Graph
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP16
from litegpu.ops.common.window import POINT, DepthwiseAttributes, PoolAttributes, Window
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.reduce import ReduceAttributes
from litegpu.passes.base import PassResult
from litegpu.passes.depthwise_into_pointwise import depthwise_into_pointwise as merge
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder, applied, untouched

CUDA = replace(DEVICE, backend="cuda")
AMPERE = Fusions(DeviceTarget(replace(CUDA, compute_capability=(8, 0)), FP16))
HOPPER = Fusions(DeviceTarget(replace(CUDA, compute_capability=(9, 0)), FP16))


def depthwise_into_pointwise(graph: Graph) -> PassResult:
    """Run the pass for tensor cores without groups of warps."""
    return merge(graph, AMPERE)


def _pair(builder: GraphBuilder, channels: int = 16) -> int:
    return builder.depthwise(builder.input(1, 6, 5, channels))


def test_the_pointwise_convolution_takes_the_depthwise_one_with_its_epilogues() -> None:
    builder = GraphBuilder()
    between = _pair(builder)
    slope = builder.constant(16)
    builder.nodes[0] = replace(builder.nodes[0], epilogue=(EpilogueOp("PRELU", (slope,)),))
    graph = builder.graph(builder.conv(between, 8, epilogue=[RELU]))
    result = applied(depthwise_into_pointwise, graph)
    (node,) = result.graph.nodes
    first, second = graph.nodes
    operand = node.attributes.depthwise
    assert node.inputs == graph.inputs
    assert node.epilogue == (RELU,)
    assert node.merged == (0,)
    assert (operand.attributes, operand.epilogue) == (
        first.attributes,
        first.epilogue,
    )
    assert operand.shape == (1, 4, 3, 16)
    assert replace(node.attributes, depthwise=None) == second.attributes
    # The constants of both stay, those of the epilogues too: `applied` compares the values kept.
    assert slope in node.attributes.constants
    assert result.applied == ("DEPTHWISE_CONV_2D 0 into CONV_2D 1",)


def test_only_one_depthwise_convolution_fits_into_a_pointwise_one() -> None:
    builder = GraphBuilder()
    first = builder.depthwise(builder.input(1, 8, 8, 16))
    second = builder.depthwise(first)
    result = applied(depthwise_into_pointwise, builder.graph(builder.conv(second, 8)))
    assert result.applied == ("DEPTHWISE_CONV_2D 1 into CONV_2D 2",)
    assert result.declined == ("DEPTHWISE_CONV_2D 0: DEPTHWISE_CONV_2D 1 is no convolution",)


def _output(builder: GraphBuilder) -> Graph:
    between = _pair(builder)
    return builder.graph(builder.conv(between, 8), between)


def _two_readers(builder: GraphBuilder) -> Graph:
    between = _pair(builder)
    return builder.graph(builder.conv(between, 8), builder.conv(between, 8))


def _operand(builder: GraphBuilder) -> Graph:
    between = _pair(builder)
    other = builder.input(1, 4, 3, 16)
    return builder.graph(builder.conv(other, 16, epilogue=[EpilogueOp("ADD", (between,))]))


def _pool(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.node("MAX_POOL_2D", [_pair(builder)], (1, 4, 3, 16)))


def _wide_kernel(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_pair(builder), 8, kernel=3))


def _padded_at_the_end(builder: GraphBuilder) -> Graph:
    output = builder.conv(_pair(builder), 8)
    builder.values[output] = replace(builder.values[output], shape=(1, 5, 3, 8))
    return builder.graph(output)


def _twice(builder: GraphBuilder) -> Graph:
    between = _pair(builder)
    return builder.graph(builder.conv(between, 16, epilogue=[EpilogueOp("ADD", (between,))]))


def _few_inputs(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_pair(builder, 7), 8))


def _few_outputs(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_pair(builder), 4))


def _multiplied(builder: GraphBuilder) -> Graph:
    view, taps = Window((1, 1), (1, 1)), builder.constant(1, 1, 1, 32)
    attached = DepthwiseAttributes(view, taps, ABSENT)
    source = builder.input(1, 4, 3, 16)
    between = builder.node("DEPTHWISE_CONV_2D", [source], (1, 4, 3, 32), attributes=attached)
    return builder.graph(builder.conv(between, 8))


def _computed_operand(builder: GraphBuilder) -> Graph:
    between = _pair(builder)
    gate = builder.input(1, 1, 1, 16)
    builder.nodes[0] = replace(builder.nodes[0], epilogue=(EpilogueOp("MUL", (gate,)),))
    return builder.graph(builder.conv(between, 8))


def _computed_weights(builder: GraphBuilder) -> Graph:
    output, packed = builder.conv(_pair(builder), 16), builder.input(160, 16)
    pointwise = builder.nodes[-1]
    del builder.values[pointwise.attributes.weights]
    attached = replace(pointwise.attributes, weights=packed)
    builder.nodes[-1] = replace(pointwise, inputs=(*pointwise.inputs, packed), attributes=attached)
    return builder.graph(output)


def _large(builder: GraphBuilder) -> Graph:
    # 2 * 4 * 14 * 14 * 512 * 512 is just above 4e8.
    between = builder.depthwise(builder.input(4, 14, 14, 512), kernel=1)
    return builder.graph(builder.conv(between, 512))


_ALONE = "not read by one convolution alone"
_FEW = "too few channels for tensor cores"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_output, _ALONE),
    (_two_readers, _ALONE),
    (_operand, _ALONE),
    (_pool, "MAX_POOL_2D 1 is no convolution"),
    (_wide_kernel, "CONV_2D 1 is not pointwise"),
    (_padded_at_the_end, "CONV_2D 1 pads the value"),
    (_twice, "CONV_2D 1 reads the result twice"),
    (_few_inputs, _FEW),
    (_few_outputs, _FEW),
    (_multiplied, "the depthwise convolution multiplies the number of channels"),
    (_large, "the result is so large that two kernels are faster"),
    (_computed_weights, "CONV_2D 1 has computed weights"),
    (_computed_operand, "the weights are computed, or the epilogue reads computed values"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(depthwise_into_pointwise, make(GraphBuilder()))
    assert result.declined == (f"DEPTHWISE_CONV_2D 0: {reason}",)


def _mean(builder: GraphBuilder, shape: tuple[int, int, int, int], pool: bool) -> int:
    """Add a mean over all pixels, in either spelling."""
    n, height, width, channels = shape
    attached = PoolAttributes(Window((height, width), (1, 1))) if pool else ReduceAttributes((1, 2))
    op = "AVERAGE_POOL_2D" if pool else "MEAN"
    source = builder.input(*shape)
    return builder.node(op, [source], (n, 1, 1, channels), [RELU], attributes=attached)


@pytest.mark.parametrize("pool", [False, True])
def test_means_are_computed_inside_too(pool: bool) -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_mean(builder, (2, 7, 5, 16), pool), 8))
    (node,) = applied(depthwise_into_pointwise, graph).graph.nodes
    operand = node.attributes.depthwise
    assert node.inputs == graph.inputs
    assert (operand.attributes.window, operand.epilogue) == (
        Window((7, 5), (1, 1)),
        (RELU,),
    )
    assert (operand.attributes.weights, operand.shape) == (ABSENT, (2, 1, 1, 16))


@pytest.mark.parametrize("pool", [False, True])
def test_means_of_integers_are_left_alone(pool: bool) -> None:
    """Their epilogue may end in floats, which a table or a product with the scale gives."""
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_mean(builder, (2, 7, 5, 16), pool), 8))
    (source,) = graph.inputs
    integers = replace(graph.values[source], dtype=DType.INT8)
    graph = replace(graph, values={**graph.values, source: integers})
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert reason.endswith("the depthwise convolution sums integers")


def test_views_between_vanish() -> None:
    builder = GraphBuilder()
    view = builder.node("RESHAPE", [_mean(builder, (2, 7, 5, 16), False)], (2, 16))
    weights = builder.constant(8, 1, 1, 16)
    dense = ConvAttributes(POINT, weights, ABSENT, (8, 1, 1, 16))
    output = builder.node("FULLY_CONNECTED", [view], (2, 8), attributes=dense)
    graph = builder.graph(output)
    result = applied(depthwise_into_pointwise, graph)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs) == ("FULLY_CONNECTED", graph.inputs)
    assert result.applied == ("MEAN 0 into FULLY_CONNECTED 2",)


def test_a_view_that_cuts_rows_anew_is_no_such_view() -> None:
    builder = GraphBuilder()
    view = builder.node("RESHAPE", [_mean(builder, (1, 4, 4, 32), False)], (2, 16))
    graph = builder.graph(builder.node("SOFTMAX", [view], (2, 16)))
    assert untouched(depthwise_into_pointwise, graph).declined == (
        "MEAN 0: RESHAPE 1 is no convolution",
    )


@pytest.mark.parametrize("shape", [(1, 9, 8, 16), (17, 2, 2, 16)])
@pytest.mark.parametrize("pool", [False, True])
def test_means_that_are_too_many_or_too_large(shape: tuple[int, int, int, int], pool: bool) -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_mean(builder, shape, pool), 8))
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert reason.endswith("a block would compute too many means, or each mean has too many pixels")


def test_pools_that_leave_the_image_and_other_means_are_left_alone() -> None:
    builder = GraphBuilder()
    padded = PoolAttributes(Window((3, 3), (1, 1), pads=(1, 1)))
    pool = builder.node(
        "AVERAGE_POOL_2D", [builder.input(1, 4, 4, 16)], (1, 4, 4, 16), attributes=padded
    )
    channels = ReduceAttributes((3,))
    mean = builder.node("MEAN", [builder.input(1, 4, 4, 16)], (1, 4, 4, 1), attributes=channels)
    graph = builder.graph(builder.conv(pool, 8), mean)
    assert untouched(depthwise_into_pointwise, graph).declined == ()


def test_other_nodes_are_left_alone() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.conv(builder.input(1, 4, 4, 16), 16), 16)
    assert untouched(depthwise_into_pointwise, builder.graph(output)).declined == ()


def on_hopper(graph: Graph) -> PassResult:
    """Run the pass for tensor cores with groups of warps."""
    return merge(graph, HOPPER)


def test_groups_of_warps_take_large_ones() -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(builder.depthwise(builder.input(8, 66, 66, 64)), 32))
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert "so large that two kernels are faster" in reason
    result = applied(on_hopper, graph)
    (node,) = result.graph.nodes
    assert node.attributes.depthwise.shape == (8, 64, 64, 64)
    assert result.applied == ("DEPTHWISE_CONV_2D 0 into CONV_2D 1",)


@pytest.mark.parametrize("shape", [(8, 66, 66, 300), (1, 40, 40, 768), (300000, 3, 3, 8)])
def test_what_does_not_suit_their_kernel_is_left(shape: Shape4) -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(builder.depthwise(builder.input(*shape)), 32))
    (reason,) = untouched(on_hopper, graph).declined
    assert "so large" in reason


@pytest.mark.parametrize(("channels", "merged"), [(64, True), (63, False)])
def test_their_kernel_reads_channels_in_fours(channels: int, merged: bool) -> None:
    """The runtime's tensors have no padding."""
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(builder.depthwise(builder.input(8, 98, 98, channels)), 32))
    found = on_hopper(graph)
    assert (len(found.graph.nodes) == 1) is merged
    assert merged or "the number of input channels is not a multiple of four" in found.declined[0]


def test_what_was_undone_is_not_tried_again() -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_pair(builder), 8))
    (first, _) = graph.nodes
    apart = replace(AMPERE, apart={first.outputs[0]})
    found = untouched(lambda given: merge(given, apart), graph)
    assert found.declined == ("DEPTHWISE_CONV_2D 0: no kernel can read the input from its storage",)
