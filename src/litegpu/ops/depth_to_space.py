"""DEPTH_TO_SPACE and SPACE_TO_DEPTH: move channels to blocks of pixels, and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import MixedRadix, Source, index_map_node, plain


class _Depth(Op):
    """Code shared by DEPTH_TO_SPACE and SPACE_TO_DEPTH."""

    max_version = 2
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: self._check_block(graph, node),
        )

    def _check_block(self, graph: Graph, node: Node) -> str:
        shape, block = graph.values[node.inputs[0]].shape, node.params["block_size"]
        if len(shape) == 4 and block >= 1 and self.divides(shape, block):
            return ""
        return (
            f"The shape {list(shape)} is not divisible into blocks: {self.name} block_size = "
            f"{block}."
        )

    @abstractmethod
    def divides(self, shape: Shape, block: int) -> bool:
        """Whether an input consists of whole blocks."""


@register
class DepthToSpace(_Depth):
    """Rearranges channels into blocks of pixels."""

    name = "DEPTH_TO_SPACE"

    def divides(self, shape: Shape, block: int) -> bool:
        return shape[3] % block**2 == 0

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        n, h, w, c = graph.values[node.inputs[0]].shape
        block = node.params["block_size"]
        return ((n, h * block, w * block, c // block**2),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        n, h, w, c = graph.values[node.inputs[0]].shape
        block = node.params["block_size"]
        channels = c // block**2
        digits = (
            MixedRadix((n,)),
            MixedRadix((h, block)),
            MixedRadix((w, block)),
            MixedRadix((channels,)),
        )
        channel = Source(((2, block * channels), (4, channels), (5, 1)))
        sources = (Source(((0, 1),)), Source(((1, 1),)), Source(((3, 1),)), channel)
        return (index_map_node(graph, node, digits, sources),)


@register
class SpaceToDepth(_Depth):
    """Rearranges blocks of pixels into channels."""

    name = "SPACE_TO_DEPTH"

    def divides(self, shape: Shape, block: int) -> bool:
        return shape[1] % block == 0 and shape[2] % block == 0

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        n, h, w, c = graph.values[node.inputs[0]].shape
        block = node.params["block_size"]
        return ((n, h // block, w // block, c * block**2),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        n, h, w, c = graph.values[node.inputs[0]].shape
        block = node.params["block_size"]
        digits = (*plain((n, h // block, w // block)), MixedRadix((block, block, c)))
        sources = (
            Source(((0, 1),)),
            Source(((1, block), (3, 1))),
            Source(((2, block), (4, 1))),
            Source(((5, 1),)),
        )
        return (index_map_node(graph, node, digits, sources),)
