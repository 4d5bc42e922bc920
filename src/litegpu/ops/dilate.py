"""DILATE and STABLEHLO_PAD: insert a constant between and around the elements of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, Values, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import MixedRadix, Source, index_map_node


@register
class Dilate(Op):
    """Inserts copies of a constant between adjacent elements along each axis."""

    name = "DILATE"
    max_version = 1
    shape_operands = (1,)
    takes = (MOVED, INTEGERS, MOVED)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The dilations", kinds=(DType.INT32,)),
            checks.constant(graph, node, 2, "The padding value", MOVED),
            lambda: _check_dilations(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        return (spread_shape(shape, _dilations(graph, node)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (spread_node(graph, node, _dilations(graph, node), node.inputs[2]),)


@register
class StablehloPad(Op):
    """Inserts a constant around and between elements along each axis; negative padding crops."""

    name = "STABLEHLO_PAD"
    max_version = 1
    takes = (MOVED, MOVED)
    gives = None
    accepts: ClassVar[Mapping[str, Values]] = {
        "interior_padding": Values(about="≥ 0 in each dimension"),
        "edge_padding_low": Values(about="any; negative values crop"),
        "edge_padding_high": Values(about="any; negative values crop"),
    }

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.constant(graph, node, 1, "The padding value", MOVED),
            lambda: _check_interior(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (spread_shape(graph.values[node.inputs[0]].shape, _spacing(graph, node)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (spread_node(graph, node, _spacing(graph, node), node.inputs[1]),)


class Spacing(NamedTuple):
    """The spacing along an axis: the distance of elements, and the padding before and after."""

    step: int
    before: int = 0
    after: int = 0


_DENSE = Spacing(1)


def spread_shape(shape: Shape, spacing: Sequence[Spacing]) -> Shape:
    """Return the shape of a value with padding between and around its elements."""
    return tuple(
        (size - 1) * axis.step + 1 + axis.before + axis.after
        for size, axis in zip(shape, spacing, strict=True)
    )


def spread_node(graph: Graph, node: Node, spacing: Sequence[Spacing], fill: int) -> Node:
    """Return the node that inserts the constant `fill` between and around elements.

    The node splits an output index into two digits: an input element, and the offset from that
    element. The output element is the input element if the offset is 0, else `fill`.
    """
    shape = graph.values[node.inputs[0]].shape
    whole = spread_shape(shape, spacing)
    digits, sources = [], []
    for axis, (size, space) in enumerate(zip(shape, spacing, strict=True)):
        step, before, _ = space
        first = max(-(-before // step), 0)  # elements that would fit before the first one
        begin = first * step - before
        digits.append(MixedRadix((-(-(whole[axis] + begin) // step), step), begin))
        # At any other distance, the index is beyond the input.
        terms = ((2 * axis, 1), (2 * axis + 1, first + size))
        sources.append(Source(terms, -first, bounded=space != _DENSE))
    number = constant_list(graph, fill)[0]
    cut = any(space != _DENSE for space in spacing)
    return index_map_node(graph, node, digits, sources, number, cut)


def _dilations(graph: Graph, node: Node) -> list[Spacing]:
    return [Spacing(step) for step in constant_list(graph, node.inputs[1])]


def _spacing(graph: Graph, node: Node) -> list[Spacing]:
    rank = len(graph.values[node.inputs[0]].shape)
    names = ("interior_padding", "edge_padding_low", "edge_padding_high")
    between, before, after = (node.params[name][:rank] for name in names)
    rows = zip(between, before, after, strict=True)
    return [Spacing(count + 1, low, high) for count, low, high in rows]


def _check_interior(graph: Graph, node: Node) -> str:
    shape = graph.values[node.inputs[0]].shape
    between = node.params["interior_padding"][: len(shape)]
    if not shape or min(between) < 0:
        return f"The interior_padding {between} does not fit {list(shape)}, or is less than 0."
    return ""


def _check_dilations(graph: Graph, node: Node) -> str:
    shape = graph.values[node.inputs[0]].shape
    steps = constant_list(graph, node.inputs[1])
    if not shape or len(steps) != len(shape) or min(steps) < 1:
        return f"The dilations {steps} do not fit {list(shape)}, or are less than 1."
    return ""
