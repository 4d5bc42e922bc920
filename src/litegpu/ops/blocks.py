"""Ops that trade blocks of pixels for channels or batches, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.move import Digits, Source, move_node, plain
from litegpu.ops.types import HELD


class _Depth(Op):
    """What DEPTH_TO_SPACE and SPACE_TO_DEPTH share."""

    max_version = 2
    takes = (HELD,)
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
        return f"{list(shape)} does not divide into blocks: {self.name} block_size = {block}."

    def divides(self, shape: Shape, block: int) -> bool:
        """Whether an input consists of whole blocks."""
        raise NotImplementedError


@register
class DepthToSpace(_Depth):
    """Channels become blocks of pixels."""

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
        digits = (Digits((n,)), Digits((h, block)), Digits((w, block)), Digits((channels,)))
        channel = Source(((2, block * channels), (4, channels), (5, 1)))
        sources = (Source(((0, 1),)), Source(((1, 1),)), Source(((3, 1),)), channel)
        return (move_node(graph, node, digits, sources),)


@register
class SpaceToDepth(_Depth):
    """Blocks of pixels become channels."""

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
        digits = (*plain((n, h // block, w // block)), Digits((block, block, c)))
        sources = (
            Source(((0, 1),)),
            Source(((1, block), (3, 1))),
            Source(((2, block), (4, 1))),
            Source(((5, 1),)),
        )
        return (move_node(graph, node, digits, sources),)


class _Batch(Op):
    """What SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND share."""

    max_version = 4
    takes = (HELD,)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The block shape"),
            checks.integers(graph, node, 2, "The paddings or crops"),
            lambda: self._check_blocks(graph, node),
        )

    def _check_blocks(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        table = graph.values[node.inputs[2]].shape
        blocks, edges = self.blocks(graph, node)
        fitting = len(blocks) == len(shape) - 2 and table == (len(blocks), 2)
        signs = min((*blocks, *(edge + 1 for pair in edges for edge in pair)), default=0) > 0
        if len(shape) in (3, 4) and fitting and signs and self.divides(shape, blocks, edges):
            return ""
        return f"{list(shape)} does not divide: blocks {blocks}, paddings or crops {edges}."

    def blocks(self, graph: Graph, node: Node) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the block sizes, and what is added or cut off before and after."""
        edges = constant_list(graph, node.inputs[2])
        return constant_list(graph, node.inputs[1]), [*zip(edges[::2], edges[1::2], strict=True)]

    def divides(self, shape: Shape, blocks: list[int], edges: list[tuple[int, int]]) -> bool:
        """Whether an input consists of whole blocks."""
        raise NotImplementedError


@register
class SpaceToBatch(_Batch):
    """Each pixel of a block goes to a batch of its own; zeros are added at the edges first."""

    name = "SPACE_TO_BATCH_ND"

    def divides(self, shape: Shape, blocks: list[int], edges: list[tuple[int, int]]) -> bool:
        sizes = zip(shape[1:], blocks, edges, strict=False)
        return all((size + sum(pair)) % block == 0 for size, block, pair in sizes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        sizes = zip(shape[1:], blocks, edges, strict=False)
        inner = ((size + sum(pair)) // block for size, block, pair in sizes)
        return ((shape[0] * math.prod(blocks), *inner, shape[-1]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        count = len(blocks)
        (out,) = self.infer(graph, node)
        digits = (Digits((*blocks, shape[0])), *plain(out[1:]))
        inner = (
            Source(((count + 1 + i, block), (i, 1)), -before, bounded=True)
            for i, (block, (before, _)) in enumerate(zip(blocks, edges, strict=True))
        )
        sources = (Source(((count, 1),)), *inner, Source(((2 * count + 1, 1),)))
        return (move_node(graph, node, digits, sources),)


@register
class BatchToSpace(_Batch):
    """Pixels from several batches form blocks; the edges are cut off afterwards."""

    name = "BATCH_TO_SPACE_ND"

    def divides(self, shape: Shape, blocks: list[int], edges: list[tuple[int, int]]) -> bool:
        sizes = zip(shape[1:], blocks, edges, strict=False)
        kept = all(size * block > sum(pair) for size, block, pair in sizes)
        return kept and shape[0] % math.prod(blocks) == 0

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        sizes = zip(shape[1:], blocks, edges, strict=False)
        inner = (size * block - sum(pair) for size, block, pair in sizes)
        return ((shape[0] // math.prod(blocks), *inner, shape[-1]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        batches = shape[0] // math.prod(blocks)
        pixels = [
            Digits((size, block), begin=before)
            for size, block, (before, _) in zip(shape[1:], blocks, edges, strict=False)
        ]
        steps = [batches * math.prod(blocks[i + 1 :]) for i in range(len(blocks))]
        batch = Source(((0, 1), *((2 + 2 * i, step) for i, step in enumerate(steps))))
        inner = (Source(((1 + 2 * i, 1),)) for i in range(len(blocks)))
        digits = (Digits((batches,)), *pixels, Digits((shape[-1],)))
        sources = (batch, *inner, Source(((1 + 2 * len(blocks), 1),)))
        return (move_node(graph, node, digits, sources),)
