"""Constant folding, shapes and cost estimates of ops without a kernel.

SHAPE, RANK, ZEROS_LIKE, BROADCAST_ARGS, UNIQUE and WHERE are folded if their operands are known.
The remaining ops without a kernel always stay on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import add, register
from litegpu.ops.common.facts import KNOWN_LATE, Array, Folded, OpFacts
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import TYPE_CODES

_BY_VALUES = "Results whose shape depends on values"


def _reason(why: str) -> str:
    return f"Operation is not supported: {why[0].lower()}{why[1:]}."


@register
class Rank(OpFacts):
    """Returns the number of dimensions of a tensor."""

    name = "RANK"
    traits = Trait.READS_SHAPES

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return _of_shape(graph, node, DType.INT32, len)


@register
class Shape(OpFacts):
    """Returns the sizes of a tensor's dimensions, as int32 or int64."""

    name = "SHAPE"
    traits = Trait.READS_SHAPES

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return _of_shape(graph, node, TYPE_CODES.get(node.params["out_type"]), tuple)


def _of_shape(
    graph: Graph, node: Node, given: DType | None, function: Callable[[tuple[int, ...]], Any]
) -> Folded | None:
    source, target = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    if given is not target.dtype:
        return None  # the CPU gives the result this type, whatever the file says
    found = np.asarray(function(source.shape), target.dtype.value)
    return Folded(found.size, lambda: [found])


@register
class ZerosLike(OpFacts):
    """Returns a tensor of zeros with the shape of the input."""

    name = "ZEROS_LIKE"
    traits = Trait.READS_SHAPES

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        source = graph.values[node.inputs[0]]
        return Folded(source.elements, lambda: [np.zeros(source.shape, source.dtype.value)])


@register
class BroadcastArgs(OpFacts):
    """Returns the shape to which two shapes are broadcast."""

    name = "BROADCAST_ARGS"
    no_kernel = KNOWN_LATE

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        first, second = (tuple(each.ravel().tolist()) for each in operands)
        found = np.asarray(np.broadcast_shapes(first, second), operands[0].dtype)
        return Folded(found.size, lambda: [found])


@register
class Unique(OpFacts):
    """Returns the distinct elements by first occurrence, and each element's index among them."""

    name = "UNIQUE"
    no_kernel = _reason(_BY_VALUES)
    shape_unknown = True

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        if operands[0].dtype.kind == "f" and np.isnan(operands[0]).any():
            return None
        target = graph.values[node.outputs[1]].dtype
        return Folded(2 * operands[0].size, lambda: _unique(operands[0], target))


def _unique(given: Array, numbers: DType) -> Sequence[Array]:
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    return [given[np.sort(first)], np.argsort(np.argsort(first))[inverse].astype(numbers.value)]


class Stated(OpFacts):
    """An operation whose facts come from a table."""

    def __init__(
        self,
        name: str,
        no_kernel: str,
        shape_operands: tuple[int, ...] = (),
        shape_unknown: bool = False,
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.no_kernel = no_kernel  # type: ignore[misc]
        self.shape_operands = shape_operands  # type: ignore[misc]
        self.shape_unknown = shape_unknown  # type: ignore[misc]


STAYS_ON_CPU: Mapping[str, tuple[str, ...]] = {
    "Strings and hash tables, which no GPU API holds": (
        *("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"),
        *("LSH_PROJECTION", "SKIP_GRAM"),
    ),
    "Random numbers, which would not be those of the CPU": (
        *("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"),
        "STABLEHLO_RNG_BIT_GENERATOR",
    ),
    _BY_VALUES: ("UNIQUE", "WHERE"),
}
"""The reason why each op has no kernel."""

_STATED: Mapping[str, Mapping[str, Any]] = {
    "MULTINOMIAL": {"shape_operands": (1,)},
    "RANDOM_STANDARD_NORMAL": {"shape_operands": (0,)},
    "RANDOM_UNIFORM": {"shape_operands": (0,)},
    "SKIP_GRAM": {"shape_unknown": True},
    "WHERE": {"shape_unknown": True},
}

for _why, _names in STAYS_ON_CPU.items():
    for _name in {*_names} - {Unique.name}:
        add(Stated(_name, _reason(_why), **_STATED.get(_name, {})))
