"""A max pool is fused into the convolution that computes its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.engine.target import DeviceTarget
from litegpu.graph import EpilogueOp, Graph
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP16_ALL, FP32, NumericPolicy
from litegpu.ops.common.window import PoolAttributes, Window
from litegpu.ops.conv_2d import merged_values
from litegpu.ops.pooled_conv import POOLED_CONV
from litegpu.passes.base import PassResult
from litegpu.passes.pool_into_convolution import pool_into_convolution
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched

CUDA = replace(DEVICE, backend="cuda", compute_capability=(9, 0), compute_units=132)
POOL = Window((3, 3), (2, 2))
CLAMP = EpilogueOp("CLAMP", attributes=(("low", -1.0), ("high", 1.0)))


def merge(graph: Graph, policy: NumericPolicy = FP16_ALL) -> PassResult:
    """Run the pass for CUDA."""
    return pool_into_convolution(graph, Fusions(DeviceTarget(CUDA, policy)))


def _conv(
    builder: GraphBuilder, channels: int = 3, batch: int = 16, kernel: int = 5, size: int = 97
) -> int:
    return builder.conv(builder.input(batch, size, size, channels), 32, kernel, [RELU])


def _pool(builder: GraphBuilder, source: int, op: str = "MAX_POOL_2D") -> int:
    n, height, width, channels = builder.shape(source)
    size = (n, (height - 3) // 2 + 1, (width - 3) // 2 + 1, channels)
    return builder.node(op, [source], size, [CLAMP], PoolAttributes(POOL))


def _inside(builder: GraphBuilder, value: int) -> Graph:
    """Return the graph with more after a value: outputs lie as the runtime has them."""
    return builder.graph(builder.node("SOFTMAX", [value], builder.shape(value)))


def _both(builder: GraphBuilder, **given: int) -> Graph:
    return _inside(builder, _pool(builder, _conv(builder, **given)))


def test_the_convolution_takes_the_pool_and_both_keep_their_epilogues() -> None:
    graph = _both(GraphBuilder())
    result = applied(merge, graph)
    assert result.applied == ("MAX_POOL_2D 1 into CONV_2D 0",)
    assert ops(result) == [POOLED_CONV, "SOFTMAX"]
    conv, pool, _ = graph.nodes
    node = result.graph.nodes[0]
    assert (node.inputs, node.outputs) == (conv.inputs, pool.outputs)
    assert (node.index, node.merged, node.epilogue) == (1, (0,), (CLAMP,))
    attributes = node.attributes
    assert (attributes.conv, attributes.epilogue) == (conv.attributes, (RELU,))
    assert (attributes.pool, attributes.shape) == (pool.attributes, (16, 97, 97, 32))
    assert merged_values(node) == conv.outputs


def _output(builder: GraphBuilder) -> Graph:
    middle = _conv(builder)
    return builder.graph(_pool(builder, middle), middle)


def _two_readers(builder: GraphBuilder) -> Graph:
    middle = _conv(builder)
    return builder.graph(_pool(builder, middle), builder.elementwise(middle, RELU))


def _twice(builder: GraphBuilder) -> Graph:
    middle = _conv(builder)
    output = _pool(builder, middle)
    added = EpilogueOp("ADD", (middle,))
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(added,))
    return builder.graph(output)


def _computed_operand(builder: GraphBuilder) -> Graph:
    gate = builder.input(1, 1, 1, 32)
    middle = _conv(builder)
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(EpilogueOp("MUL", (gate,)),))
    return _inside(builder, _pool(builder, middle))


_ALONE = "not read by one pool alone"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_output, _ALONE),
    (_two_readers, _ALONE),
    (_twice, _ALONE),
    (_computed_operand, "the weights are computed, or the epilogue reads computed values"),
    (
        lambda builder: _both(builder, channels=5),
        "the rows of a window are not contiguous with few channels",
    ),
    (lambda builder: _both(builder, kernel=1), "the sums are too short for tensor cores"),
    (lambda builder: _both(builder, batch=1, size=17), "too few tiles to keep the device busy"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    assert untouched(merge, make(GraphBuilder())).declined == (f"CONV_2D 0: {reason}",)


def test_it_declines_where_nothing_may_be_rounded() -> None:
    graph = _both(GraphBuilder())
    (reason,) = untouched(lambda given: merge(given, FP32), graph).declined
    assert reason.endswith("the kernel multiplies float16, but float32 is requested")


def test_it_declines_where_two_kernels_are_as_fast() -> None:
    builder = GraphBuilder()
    middle = _conv(builder)
    wide = PoolAttributes(Window((9, 13), (1, 1)))
    graph = _inside(builder, builder.node("MAX_POOL_2D", [middle], (16, 89, 85, 32), (), wide))
    (reason,) = untouched(merge, graph).declined
    assert "not less than" in reason


def test_it_declines_on_other_devices() -> None:
    fusions = Fusions(DeviceTarget(replace(DEVICE, backend="opencl"), FP16_ALL))
    found = untouched(lambda given: pool_into_convolution(given, fusions), _both(GraphBuilder()))
    assert found.declined == ("CONV_2D 0: the kernel is for cuda devices",)


def test_what_was_undone_is_not_tried_again() -> None:
    graph = _both(GraphBuilder())
    fusions = Fusions(DeviceTarget(CUDA, FP16_ALL), apart={graph.nodes[0].outputs[0]})
    found = untouched(lambda given: pool_into_convolution(given, fusions), graph)
    assert found.declined == ("CONV_2D 0: no kernel can read the input from its storage",)


def test_other_pools_and_readers_are_left_alone() -> None:
    builder = GraphBuilder()
    mean = _pool(builder, _conv(builder), "AVERAGE_POOL_2D")
    graph = _inside(builder, mean)
    assert untouched(merge, graph).declined == ()
