"""MIRROR_PAD: pads the input with its reflection."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.pad import check_paddings, padded_shape, paddings

_EDGES = {"reflect": 0, "symmetric": -1}
"""The value of `mirror` for each mode: see litegpu.ops.index_map.Source."""


@register
class MirrorPad(Op):
    """Pads with the input's reflection, which repeats the edge element in symmetric mode."""

    name = "MIRROR_PAD"
    max_version = 3
    cpu_bytes_per_second = 1e9
    shape_operands = (1,)
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The paddings"),
            lambda: check_paddings(graph, node),
            lambda: _check_mode(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (padded_shape(graph, node),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        edge = _EDGES[node.params["mode"]]
        sources = [
            Source(((axis, 1),), -before, mirror=edge if before or after else None)
            for axis, (before, after) in enumerate(paddings(graph, node))
        ]
        digits = plain(graph.values[node.outputs[0]].shape)
        return (index_map_node(graph, node, digits, sources),)


def _check_mode(graph: Graph, node: Node) -> str:
    mode = node.params["mode"]
    if mode not in _EDGES:
        return f"Mirror Pad mode {mode} is unknown."
    shape = graph.values[node.inputs[0]].shape
    for size, pair in zip(shape, paddings(graph, node), strict=True):
        if max(pair) > size - 1 - _EDGES[mode]:
            return f"The paddings {list(pair)} are wider than the mirror image of {size} elements."
    return ""
