"""Folds constant scales and shifts before convolutions into their weights.

The pass saves a kernel for scales and shifts that no earlier kernel can include, such as those on a
model input.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.common import affine
from litegpu.ops.common.traits import Trait
from litegpu.passes.base import Editor, PassResult, Weighted, label

_MAX_SHIFT = 16.0
"""Maximum constant shift.

A larger shift makes the mean of the sums large, and cancellation reduces precision.
"""


def scale_before_weights(graph: Graph) -> PassResult:
    """Let convolutions read the input of leading scales and shifts, if all readers can."""
    edit = Editor(graph)
    weighted = Weighted(edit)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != COPY:
            continue
        channels = graph.values[node.outputs[0]].shape4[3]
        scaling, count = affine.affine_prefix(graph, node.epilogue, channels)
        if not count:
            continue
        readers = consumers.get(node.outputs[0], [])
        folded: list[Node] = []
        reason = _obstacle(graph, node, count, readers)
        for reader in () if reason else readers:
            current = edit.nodes[edit.position(reader)] or reader
            found = _shifted(graph, current, scaling) or weighted.fold(
                current, scaling, affine.before
            )
            if isinstance(found, str):
                reason = f"{label(reader)}: {found}"
                break
            inputs = (node.inputs[0], *current.inputs[1:])
            folded.append(replace(found, inputs=inputs, merged=(*found.merged, node.index)))
        if reason:
            edit.declined.append(f"{label(node)} into the weights after it: {reason}")
            continue
        for reader, changed in zip(readers, folded, strict=True):
            edit.nodes[edit.position(reader)] = changed
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {', '.join(map(label, readers))}")
    return edit.result()


def _obstacle(graph: Graph, node: Node, count: int, readers: list[Node]) -> str:
    output = node.outputs[0]
    if output in graph.outputs:
        return "the result is an output of the partition"
    if count < len(node.epilogue):
        return f"{node.epilogue[count].function} is no scale or shift by constants"
    if graph.values[node.inputs[0]].shape != graph.values[output].shape:
        return "the epilogue op broadcasts its input"
    if not readers or any(not has(r, Trait.WEIGHTED) or r.inputs[0] != output for r in readers):
        return "not only convolutions read the result"
    if any(r.operands.count(output) > 1 for r in readers):
        return "a convolution also has the result as another operand"
    return ""


def _shifted(graph: Graph, reader: Node, scaling: affine.Affine) -> str:
    """Return why a convolution cannot include the shift; an empty text if it can."""
    if not np.any(scaling.shift):
        return ""
    if affine.leaves_image(graph, reader):
        return "the convolution's padding is zero, which is not shifted"
    if np.abs(scaling.shift).max() > _MAX_SHIFT:
        return f"a shift beyond {_MAX_SHIFT:g} would lose precision"
    return ""
