"""Large depthwise convolutions are computed inside the pointwise ones after them (warp groups)."""

from __future__ import annotations

import pytest

from litegpu.codegen.storage import Shape4
from litegpu.passes.depthwise_into_pointwise import depthwise_into_pointwise
from litegpu.passes.large_depthwise_into_pointwise import large_depthwise_into_pointwise
from passes.graphs import Maker, applied, untouched


def test_a_large_result_is_merged_that_the_other_pass_leaves() -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(maker.depthwise(maker.input(8, 66, 66, 64)), 32))
    (reason,) = untouched(depthwise_into_pointwise, graph).declined
    assert "so large that each is better made by itself" in reason
    result = applied(large_depthwise_into_pointwise, graph)
    (node,) = result.graph.nodes
    assert node.attributes.depthwise.shape == (8, 64, 64, 64)
    assert result.applied == ("DEPTHWISE_CONV_2D 0 into CONV_2D 1",)


@pytest.mark.parametrize("shape", [(8, 66, 66, 300), (1, 40, 40, 64), (300000, 3, 3, 8)])
def test_what_does_not_suit_the_kernel_is_left(shape: Shape4) -> None:
    maker = Maker()
    graph = maker.graph(maker.conv(maker.depthwise(maker.input(*shape)), 32))
    (reason,) = untouched(large_depthwise_into_pointwise, graph).declined
    assert "so large" in reason
