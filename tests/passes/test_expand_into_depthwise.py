"""A convolution that expands channels is fused into the depthwise convolution that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.engine import partition
from litegpu.engine.selected import place
from litegpu.engine.target import DeviceTarget
from litegpu.graph import EpilogueOp, Graph
from litegpu.kernels.cuda import inverted
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import FP16
from litegpu.ops.conv_2d import merged_values
from litegpu.passes.base import PassResult
from litegpu.passes.depthwise_into_pointwise import depthwise_into_pointwise
from litegpu.passes.expand_into_depthwise import expand_into_depthwise
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder, applied, untouched

CUDA = replace(DEVICE, backend="cuda", compute_units=132, local_memory_bytes=227 << 10)
TARGET = DeviceTarget(replace(CUDA, compute_capability=(9, 0)), FP16)
HOPPER = Fusions(TARGET)
RELU6 = EpilogueOp("RELU6")


def merge(graph: Graph) -> PassResult:
    """Run the pass on a device with groups of warps."""
    return expand_into_depthwise(graph, HOPPER)


def block(
    change: Callable[[GraphBuilder], None] = lambda _: None,
    inputs: int = 16,
    size: int = 66,
    kernel: int = 1,
    activation: EpilogueOp = RELU6,
) -> Graph:
    """Return a block whose last two convolutions are one, after something in memory."""
    builder = GraphBuilder()
    source = builder.elementwise(builder.input(40, size, size, inputs), RELU)
    expanded = builder.conv(source, 96, kernel, [activation])
    between = builder.depthwise(expanded)
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(RELU6,))
    # Half holds none of the large weights that the builder numbers.
    for v in (node.attributes.weights for node in builder.nodes[1:]):
        value = builder.values[v]
        builder.values[v] = replace(value, data=np.asarray(value.data) % 7)
    output = builder.conv(between, 24)
    change(builder)
    graph = builder.graph(output)
    return applied(lambda given: depthwise_into_pointwise(given, HOPPER), graph).graph


def test_it_is_merged_with_its_epilogue() -> None:
    graph = block()
    result = applied(merge, graph)
    _, node = result.graph.nodes
    operand = node.attributes.depthwise.expand
    first = graph.nodes[1]
    assert node.inputs == first.inputs
    assert node.merged == (1, 2)
    assert (operand.attributes, operand.epilogue) == (first.attributes, (RELU6,))
    assert operand.shape == (40, 66, 66, 96)
    # Should the image come to lie as floats, only this is undone.
    assert merged_values(node) == first.outputs
    assert result.applied == ("CONV_2D 1 into CONV_2D 3",)


def test_it_is_one_kernel_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)
    kernels = [
        place(partition.rewrite(block(), TARGET, Fusions(TARGET, set(apart))), TARGET, True)
        for apart in ((), block().nodes[1].outputs)
    ]
    names = [
        [s.name for node in each.layout.graph.nodes for s in each.selections(node)]
        for each in kernels
    ]
    assert names == [["cuda/inverted"], ["cuda/conv_tile", "cuda/separable"]]


def _gated(builder: GraphBuilder) -> None:
    gate = EpilogueOp("MUL", (builder.input(1, 1, 1, 96),))
    builder.nodes[1] = replace(builder.nodes[1], epilogue=(gate, RELU6))


def _grouped(builder: GraphBuilder) -> None:
    node = builder.nodes[1]
    builder.nodes[1] = replace(node, attributes=replace(node.attributes, groups=2))


def _read_twice(builder: GraphBuilder) -> None:
    builder.elementwise(builder.nodes[1].outputs[0], RELU)


def _two_scales(builder: GraphBuilder) -> None:
    weights = builder.nodes[2].attributes.weights
    value = builder.values[weights]
    builder.values[weights] = replace(value, data=np.asarray(value.data) * np.float32(1e6))


_UNBOUNDED = "the intermediate values are not bounded by RELU6 or a similar activation"


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            lambda: block(kernel=3),
            "the expansion is not a pointwise convolution, or pads the image",
        ),
        (lambda: block(_grouped), "the node is not a convolution with one group"),
        (lambda: block(_gated), "the epilogue reads computed values"),
        (lambda: block(_read_twice), "other nodes also read the result"),
        (lambda: block(_two_scales), "float16 cannot represent the weights"),
        (lambda: block(activation=RELU), _UNBOUNDED),
        (lambda: block(inputs=72), "the input or the output has too many channels"),
        # Its image has fewer bytes than is stored as half
        (lambda: block(inputs=8), "the input is not stored as float16"),
    ],
)
def test_declines(graph: Callable[[], Graph], reason: str) -> None:
    result = untouched(merge, graph())
    assert any(reason in each for each in result.declined), result.declined


def test_it_must_be_expected_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted, "_MARGIN", 100.0)
    (reason,) = untouched(merge, block()).declined
    assert "the estimate is" in reason
    assert "but two kernels take" in reason


def test_what_was_undone_is_not_tried_again() -> None:
    graph = block()
    apart = replace(HOPPER, apart=set(graph.nodes[1].outputs))
    found = untouched(lambda given: expand_into_depthwise(given, apart), graph)
    assert found.declined == ("CONV_2D 1: no kernel can read the input from its storage",)
