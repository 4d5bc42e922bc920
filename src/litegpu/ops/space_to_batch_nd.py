"""SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND: move blocks of pixels to batches, and back."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED, stored_zero
from litegpu.ops.index_map import IndexMapAttributes, MixedRadix, Source, index_map_node, plain

Edge = tuple[int, int]
"""The padding or crop before and after an axis."""


class _Batch(Op):
    """Code shared by SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND."""

    max_version = 4
    shape_operands = (1, 2)
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The block shape", kinds=(DType.INT32,)),
            checks.integers(graph, node, 2, "The paddings or crops", kinds=(DType.INT32,)),
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
        return (
            f"The shape {list(shape)} is not divisible by blocks {blocks} with paddings or crops "
            f"{edges}."
        )

    def blocks(self, graph: Graph, node: Node) -> tuple[list[int], list[Edge]]:
        """Return the block sizes, and the paddings or crops before and after."""
        edges = constant_list(graph, node.inputs[2])
        return constant_list(graph, node.inputs[1]), [*zip(edges[::2], edges[1::2], strict=True)]

    @abstractmethod
    def divides(self, shape: Shape, blocks: list[int], edges: list[Edge]) -> bool:
        """Whether an input consists of whole blocks."""


@register
class SpaceToBatch(_Batch):
    """Moves the pixels of each block to separate batches, after zero padding.

    Quantized images are padded with the zero point of the output.
    """

    name = "SPACE_TO_BATCH_ND"

    def divides(self, shape: Shape, blocks: list[int], edges: list[Edge]) -> bool:
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
        moved = _to_batch(shape, *self.blocks(graph, node))
        fill = stored_zero(graph.values[node.outputs[0]])
        return (index_map_node(graph, node, moved.digits, moved.sources, fill),)


@register
class BatchToSpace(_Batch):
    """Moves pixels from several batches into blocks, then crops the result."""

    name = "BATCH_TO_SPACE_ND"

    def divides(self, shape: Shape, blocks: list[int], edges: list[Edge]) -> bool:
        sizes = zip(shape[1:], blocks, edges, strict=False)
        nonempty = all(size * block > sum(pair) for size, block, pair in sizes)
        return nonempty and shape[0] % math.prod(blocks) == 0

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        sizes = zip(shape[1:], blocks, edges, strict=False)
        inner = (size * block - sum(pair) for size, block, pair in sizes)
        return ((shape[0] // math.prod(blocks), *inner, shape[-1]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        blocks, edges = self.blocks(graph, node)
        moved = _to_space(shape, blocks, edges)
        return (index_map_node(graph, node, moved.digits, moved.sources, cut=any(map(sum, edges))),)


def _to_batch(shape: Shape, blocks: Sequence[int], edges: Sequence[Edge]) -> IndexMapAttributes:
    count = len(blocks)
    sizes = zip(shape[1:], blocks, edges, strict=False)
    inner = ((size + sum(pair)) // block for size, block, pair in sizes)
    digits = (MixedRadix((*blocks, shape[0])), *plain((*inner, shape[-1])))
    sources = (
        Source(((count + 1 + i, block), (i, 1)), -before, bounded=True)
        for i, (block, (before, _)) in enumerate(zip(blocks, edges, strict=True))
    )
    channel = Source(((2 * count + 1, 1),))
    return IndexMapAttributes(digits, (Source(((count, 1),)), *sources, channel))


def _to_space(shape: Shape, blocks: Sequence[int], edges: Sequence[Edge]) -> IndexMapAttributes:
    batches = shape[0] // math.prod(blocks)
    pixels = [
        MixedRadix((size, block), begin=before)
        for size, block, (before, _) in zip(shape[1:], blocks, edges, strict=False)
    ]
    steps = [batches * math.prod(blocks[i + 1 :]) for i in range(len(blocks))]
    batch = Source(((0, 1), *((2 + 2 * i, step) for i, step in enumerate(steps))))
    inner = (Source(((1 + 2 * i, 1),)) for i in range(len(blocks)))
    channel = Source(((1 + 2 * len(blocks), 1),))
    digits = (MixedRadix((batches,)), *pixels, MixedRadix((shape[-1],)))
    return IndexMapAttributes(digits, (batch, *inner, channel))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block sizes of an index map between batches and pixels, and the leading padding or crop."""

    sizes: tuple[int, ...]
    before: tuple[int, ...]


def batch_blocks(graph: Graph, node: Node) -> Blocks | None:
    """Return the blocks of a normalized SPACE_TO_BATCH_ND with any fill value; else None."""
    if not isinstance(node.attributes, IndexMapAttributes):
        return None
    shape, out = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    blocks = node.attributes.digits[0].sizes[:-1] if node.attributes.digits else ()
    if len(shape) != len(blocks) + 2 or len(out) != len(shape):
        return None
    before = tuple(-source.offset for source in node.attributes.sources[1:-1])
    sizes = zip(shape[1:], out[1:], blocks, before, strict=False)
    edges = [(first, inner * block - size - first) for size, inner, block, first in sizes]
    found = _to_batch(shape, blocks, edges) == replace(node.attributes, fill=0.0)
    return Blocks(blocks, before) if found else None


def space_blocks(graph: Graph, node: Node) -> Blocks | None:
    """Return the blocks of a normalized BATCH_TO_SPACE_ND, None for other nodes."""
    if not isinstance(node.attributes, IndexMapAttributes):
        return None
    shape, pixels = graph.values[node.inputs[0]].shape, node.attributes.digits[1:-1]
    if len(shape) != len(pixels) + 2 or any(len(axis.sizes) != 2 for axis in pixels):
        return None
    blocks = tuple(axis.sizes[1] for axis in pixels)
    before = tuple(axis.begin for axis in pixels)
    # Crops at the far edges are not part of the index map.
    found = _to_space(shape, blocks, [(first, 0) for first in before]) == node.attributes
    return Blocks(blocks, before) if found else None
