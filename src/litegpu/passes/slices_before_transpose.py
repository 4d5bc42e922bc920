"""Slices the input of a transpose instead of its output, if all readers are slices.

Models of timm compute queries, keys and values in one layer, and transpose the result to [3, batch,
heads, tokens, depth]. SLICE, STRIDED_SLICE, SPLIT, UNPACK or GATHER then selects queries, keys or
values. Slices of the layer's result are views, and each of the three transposes merges with its
reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import Cuts, constant_list, get
from litegpu.ops.reshape import reshape_node
from litegpu.passes.base import Editor, PassResult, label


def slices_before_transpose(graph: Graph) -> PassResult:
    """Swap each transpose with the slices that read it."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "TRANSPOSE" or node.outputs[0] in graph.outputs:
            continue
        (whole,) = node.outputs
        readers = consumers.get(whole, [])
        order = _constant(graph, node.inputs[1])
        parts = [(each, _cuts(graph, each, whole)) for each in readers]
        known = [(each, cuts) for each, cuts in parts if cuts is not None]
        if order is None or not known or len(known) < len(parts):
            continue
        for reader, cuts in known:
            at = edit.position(reader)
            for ranges, output in zip(cuts.ranges, reader.outputs, strict=True):
                _cut_first(edit, at, node, order, ranges, output)
            edit.nodes[at] = None
            edit.applied.append(f"{label(reader)} before {label(node)}")
        edit.nodes[position] = None
    return edit.result()


def _cut_first(
    edit: Editor,
    at: int,
    transpose: Node,
    order: Sequence[int],
    ranges: Sequence[range],
    output: int,
) -> None:
    """Add a slice of the transpose's input, its transpose and, for fewer axes, a reshape."""
    values = edit.values
    source, result = values[transpose.inputs[0]], values[output]
    begin, size = ([0] * len(order) for _ in range(2))
    for axis, of_source in enumerate(order):
        place = of_source % len(order)
        begin[place], size[place] = ranges[axis].start, len(ranges[axis])
    between = edit.new_value(source, shape=tuple(size))
    numbers = [
        edit.new_constant(f"litegpu_{name}_{output}", np.array(given, np.int32))
        for name, given in (("begin", begin), ("size", size))
    ]
    inputs = (source.id, *numbers)
    edit.insert_before(at, replace(transpose, op="SLICE", inputs=inputs, outputs=(between,)))
    shape = tuple(map(len, ranges))
    moved = output if shape == result.shape else edit.new_value(result, shape=shape)
    inputs = (between, transpose.inputs[1])
    edit.insert_before(at, replace(transpose, inputs=inputs, outputs=(moved,)))
    if moved != output:
        edit.insert_before(at, reshape_node(transpose, moved, output))


def _constant(graph: Graph, value: int) -> list[int] | None:
    return constant_list(graph, value) if graph.values[value].is_constant else None


def _cuts(graph: Graph, node: Node, whole: int) -> Cuts | None:
    """Return the slices of a value that a node's outputs are; None if the node is no slice."""
    others = [v for v in node.operands if v != whole]
    if not all(graph.values[v].is_constant for v in others):
        return None
    cuts = get(node.op).cuts(graph, node)
    if cuts is None or cuts.source != whole:
        return None
    if any(each.step != 1 for ranges in cuts.ranges for each in ranges):
        return None
    return cuts
