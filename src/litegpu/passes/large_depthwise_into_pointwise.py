"""Computes large depthwise convolutions inside the pointwise ones that read them.

For groups of warps: there a block makes all outputs of its pixels, so nothing is computed twice,
and the result of the depthwise convolution neither goes to memory nor comes back.
"""

from __future__ import annotations

from litegpu.graph import ABSENT, Graph
from litegpu.ops.separable import suits
from litegpu.ops.window import DepthwiseAttributes, Shape4
from litegpu.passes.base import PassResult
from litegpu.passes.depthwise_into_pointwise import merge_depthwise


def large_depthwise_into_pointwise(graph: Graph) -> PassResult:
    """Merge each depthwise convolution that fits the kernel and that one other alone reads."""
    return merge_depthwise(graph, _fits_on_chip)


def _fits_on_chip(made: Shape4, held: DepthwiseAttributes, _outputs: int) -> bool:
    return held.weights != ABSENT and suits(made, held.window)
