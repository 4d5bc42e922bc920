"""A common representation of TRANSPOSE, RESHAPE, DEPTH_TO_SPACE and similar ops.

A permutation lists the digits of the output's row-major index, outermost first, as (size, step):
incrementing a digit advances the input's index by `step`. A permutation moves an input element to
exactly one output position.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.concatenation import ConcatAttributes
from litegpu.ops.index_map import (
    IndexMapAttributes,
    MixedRadix,
    Source,
    index_map_node,
    index_strides,
    strides,
)
from litegpu.ops.reshape import RESHAPE

Permutation = tuple[tuple[int, int], ...]


def permutation_of(graph: Graph, node: Node) -> Permutation | None:
    """Return the permutation that a normalized node performs; None for nodes of any other kind."""
    if node.epilogue:
        return None
    shape = graph.values[node.inputs[0]].shape
    if node.op == RESHAPE:
        return simplified([(math.prod(shape), 1)])
    if not isinstance(node.attributes, IndexMapAttributes):
        return None
    steps = index_strides(node.attributes, shape)
    if steps is None:
        return None
    digits = [pair for pair in zip(node.attributes.sizes, steps, strict=True) if pair[0] > 1]
    inner = sorted(digits, key=lambda pair: -pair[1])
    sizes = [size for size, _ in inner]
    whole = math.prod(sizes) == math.prod(shape)
    return simplified(digits) if whole and strides(sizes) == [s for _, s in inner] else None


def repetition_of(graph: Graph, node: Node) -> Permutation | None:
    """Return the digits of a normalized node that permutes or repeats elements (with step 0).

    If the node selects elements, the product of the digit sizes differs from the size of the input.
    """
    if node.epilogue:
        return None
    value, attributes = graph.values[node.inputs[0]], node.attributes
    if isinstance(attributes, ConcatAttributes) and len(set(node.inputs)) == 1:
        outer, inner = (
            math.prod(sizes)
            for sizes in (value.shape4[: attributes.axis], value.shape4[attributes.axis :])
        )
        return simplified([(outer, inner), (len(node.inputs), 0), (inner, 1)])
    if isinstance(attributes, IndexMapAttributes):
        steps = index_strides(attributes, value.shape)
        if steps is None:
            return None
        return simplified([*zip(attributes.sizes, steps, strict=True)])
    return permutation_of(graph, node)


def then(first: Permutation, second: Permutation) -> Permutation | None:
    """Return the composition of two permutations; None if their digits cannot be aligned."""
    units = strides([size for size, _ in first])
    found: list[tuple[int, int]] = []
    for size, step in second:
        if step == 0:
            found.append((size, 0))
            continue
        pieces = _split(size, step, units)
        if pieces is None:
            return None
        for count, begin in pieces:
            unit, (_, inner) = next(
                (unit, digit)
                for unit, digit in zip(units, first, strict=True)
                if unit <= begin < unit * digit[0]
            )
            found.append((count, inner * (begin // unit)))
    return simplified(found)


def keeps_order(permutation: Permutation) -> bool:
    """Whether the permutation preserves the row-major order of all elements."""
    return len(permutation) == 0 or (len(permutation) == 1 and permutation[0][1] == 1)


def permuted(graph: Graph, node: Node, permutation: Permutation) -> Node | None:
    """Return a node that permutes the first input of `node` into its output.

    The result is None if a digit does not belong to a single axis of input and output.
    """
    shape, out = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    pieces = _on_axes(permutation, shape, out)
    if pieces is None:
        return None
    digits: list[MixedRadix] = []
    terms: list[list[tuple[int, int]]] = [[] for _ in shape]
    number = 0
    for size, stride in zip(out, strides(out), strict=True):
        own = [piece for piece in pieces if stride <= piece[2] < stride * size] or [(1, 0, 0)]
        digits.append(MixedRadix(tuple(count for count, _, _ in own)))
        for _, step, _ in own:
            for axis, (length, inner) in enumerate(zip(shape, strides(shape), strict=True)):
                if inner <= step < inner * length:
                    terms[axis].append((number, step // inner))
            number += 1
    moved = index_map_node(graph, node, digits, [Source(tuple(each)) for each in terms])
    return replace(moved, merged=node.merged)


def _on_axes(
    permutation: Permutation, shape: Shape, out: Shape
) -> list[tuple[int, int, int]] | None:
    """Return digits that each belong to one input and one output axis, with the output's step."""
    found = []
    for (size, step), unit in zip(permutation, strides([s for s, _ in permutation]), strict=True):
        outer = _split(size, unit, strides(out))
        for count, distance in outer or ():
            inner = _split(count, step * (distance // unit), strides(shape))
            if inner is None:
                return None
            found += [(n, s, distance * (s // (step * (distance // unit)))) for n, s in inner]
        if outer is None:
            return None
    return found


def _split(size: int, step: int, cuts: Iterable[int]) -> list[tuple[int, int]] | None:
    """Return a digit split at the strides in `cuts`, outermost part first."""
    end = size * step
    bounds = sorted({step, end, *(cut for cut in cuts if step < cut < end)})
    pairs = list(pairwise(bounds))
    if any(upper % lower for lower, upper in pairs):
        return None
    return [(upper // lower, lower) for lower, upper in reversed(pairs)]


def simplified(digits: Sequence[tuple[int, int]]) -> Permutation:
    """Return the digits without those of size 1, with contiguous neighbors merged."""
    found: list[tuple[int, int]] = []
    for size, step in digits:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            size *= found.pop()[0]
        found.append((size, step))
    return tuple(found)
