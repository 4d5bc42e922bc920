"""Swaps an index map along single axes with the axis permutation before it.

A later pass may then merge the permutation with later nodes, or attention may read through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.common.functions import depends_on_position, element_operands
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source
from litegpu.ops.reshape import reshape_node
from litegpu.passes.base import Editor, PassResult, label


def index_maps_before_permutations(graph: Graph) -> PassResult:
    """Visit each index map with an epilogue that is the only reader of an axis permutation."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        mover = producers.get(node.inputs[0]) if node.op == INDEX_MAP else None
        axes = None if mover is None else _exchanged(mover)
        if mover is None or axes is None or not _within_axes(graph, node):
            continue
        value = node.inputs[0]
        if len(consumers[value]) > 1 or value in graph.outputs or not node.epilogue:
            edit.declined.append(
                f"{label(node)} before {label(mover)}: other nodes also read the moved value"
            )
            continue
        exchange = _Exchange(edit, node, mover.inputs[0], axes)
        epilogue = exchange.epilogue()
        if epilogue is None:
            edit.declined.append(f"{label(node)} before {label(mover)}: an operand has other axes")
            continue
        output = edit.new_value(
            graph.values[node.outputs[0]], shape=graph.values[mover.inputs[0]].shape
        )
        for each in exchange.added:
            edit.insert_before(position, each)
        moved = replace(
            node,
            inputs=mover.inputs,
            outputs=(output,),
            attributes=_moved(node.attributes, axes),
            epilogue=epilogue,
        )
        edit.insert_before(position, moved)
        edit.nodes[position] = replace(mover, inputs=(output,), outputs=node.outputs)
        edit.nodes[edit.position(mover)] = None
        edit.applied.append(f"{label(node)} before {label(mover)}")
    return edit.result()


def _exchanged(node: Node) -> list[int] | None:
    """Return the output axis of each input axis of an axis permutation; None for other nodes."""
    if node.op != INDEX_MAP or node.epilogue:
        return None
    attributes: IndexMapAttributes = node.attributes
    if any(len(axis.sizes) != 1 or axis.begin for axis in attributes.digits):
        return None
    if any(each != Source(each.terms) or len(each.terms) != 1 for each in attributes.sources):
        return None
    terms = [term for each in attributes.sources for term in each.terms]
    axes = [axis for axis, _ in terms]
    plain = all(factor == 1 for _, factor in terms)
    return axes if plain and sorted(axes) == list(range(len(attributes.digits))) else None


def _starts(attributes: IndexMapAttributes) -> list[int]:
    """Return the index of the first digit of each axis, followed by the total number of digits."""
    return [0, *accumulate(len(axis.sizes) for axis in attributes.digits)]


def _within_axes(graph: Graph, node: Node) -> bool:
    """Whether a node's index along each axis depends only on the position along that axis."""
    attributes: IndexMapAttributes = node.attributes
    if graph.values[node.inputs[0]].shape != graph.values[node.outputs[0]].shape:
        return False
    starts = _starts(attributes)
    return not any(source.operand for source in attributes.sources) and all(
        starts[axis] <= digit < starts[axis + 1]
        for axis, source in enumerate(attributes.sources)
        for digit, _ in source.terms
    )


def _moved(attributes: IndexMapAttributes, axes: Sequence[int]) -> IndexMapAttributes:
    """Return attributes with permuted axes: axis i of the result is the old axis axes[i]."""
    before = _starts(attributes)
    digits = tuple(attributes.digits[axis] for axis in axes)
    after = _starts(replace(attributes, digits=digits))
    sources = []
    for start, axis in zip(after, axes, strict=False):
        source = attributes.sources[axis]
        terms = tuple((digit - before[axis] + start, factor) for digit, factor in source.terms)
        sources.append(replace(source, terms=terms))
    return replace(attributes, digits=digits, sources=tuple(sources))


@dataclass
class _Exchange:
    """Swaps an index map with the permutation before it, whose input is `source`."""

    edit: Editor
    node: Node
    source: int
    axes: Sequence[int]

    def __post_init__(self) -> None:
        self.added: list[Node] = []
        """Added nodes, which permute the operands of the epilogue."""

    def epilogue(self) -> tuple[EpilogueOp, ...] | None:
        """Return the epilogue before the permutation; None if an operand cannot be permuted."""
        if depends_on_position(self.node.epilogue):
            return None
        found = []
        for each in self.node.epilogue:
            elements = element_operands(each)
            operands = [self._operand(v) for v in elements]
            known = tuple(v for v in operands if v is not None)
            if len(known) < len(operands) or each.extend:
                return None
            found.append(replace(each, operands=(*known, *each.operands[len(elements) :])))
        return tuple(found)

    def _operand(self, v: int) -> int | None:
        """Return an operand with its axes in the order of the permutation's input."""
        if v == self.node.inputs[0]:
            return self.source
        if v == SELF or self.edit.values[v].elements == 1:
            return v
        value = self.edit.values[v]
        whole: Shape = (1,) * (len(self.axes) - len(value.shape)) + value.shape
        if len(whole) != len(self.axes):
            return None
        shape = tuple(whole[axis] for axis in self.axes)
        if shape == whole:
            return v
        if value.data is not None:
            data = np.ascontiguousarray(np.reshape(value.data, whole).transpose(self.axes))
            return self.edit.new_value(value, shape=shape, data=data)
        # Element order is unchanged if the axes longer than 1 stay in order.
        long = [axis for axis in self.axes if whole[axis] > 1]
        if long != sorted(long):
            return None
        turned = self.edit.new_value(value, shape=shape)
        self.added.append(reshape_node(self.node, v, turned))
        return turned
