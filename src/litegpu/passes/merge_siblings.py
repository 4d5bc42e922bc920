"""Merges convolutions of one value with equal windows; each result is a slice of the channels.

The merge saves launches, and the merged kernel reads the value once. A part that consists of whole
channel blocks is a view, which needs no kernel. The merge does not change which values are rounded:
the decision still depends on the size of a single convolution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from litegpu.codegen import Storage, round_up
from litegpu.graph import ABSENT, SELF, Graph, Node, Value
from litegpu.numeric_policy import FP16, rounding_pays
from litegpu.ops.base import COPY, as_float32, has
from litegpu.ops.common.placement import reshaped_views
from litegpu.ops.common.traits import Trait
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label

_MAX_WEIGHTS = 1 << 22
"""Maximum number of weights of a merged convolution: for larger ones a launch matters little, and
merging copies the weights.
"""
_OPEN = 16
"""Maximum number of open groups of each kind; the pass adds no convolutions to earlier groups."""
_UNIT = 8
"""Kernels can read parts in place whose channel counts are a multiple of this, also when stored as
half.
"""


@dataclass
class _Group:
    """Convolutions that can be merged; only the last one may have a partial unit of channels."""

    unit: int
    whole: list[Node] = field(default_factory=list)
    last: list[Node] = field(default_factory=list)
    weights: int = 0

    @property
    def members(self) -> list[Node]:
        return [*self.whole, *self.last]

    def take(self, graph: Graph, node: Node) -> bool:
        """Add a node if the group can still include it."""
        weights = self.weights + graph.values[node.attributes.weights].elements
        odd = graph.values[node.outputs[0]].shape[-1] % self.unit
        if weights > _MAX_WEIGHTS or (odd and self.last):
            return False
        (self.last if odd else self.whole).append(node)
        self.weights = weights
        return True


def merge_siblings(graph: Graph) -> PassResult:
    """Replace several convolutions by one, if the merge saves launches."""
    edit = Editor(graph)
    consumers = graph.consumers()
    contractions = [node for node in graph.nodes if has(node, Trait.CONTRACTION)]
    readers = Counter(v for node in contractions for v in dict.fromkeys(node.operands))
    found: dict[_Kind, list[_Group]] = {}
    for node in contractions:
        if readers[node.inputs[0]] < 2:
            continue
        reason = _obstacle(graph, node, consumers)
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        kind = _kind(graph, node)
        groups = found.setdefault(kind, [])
        if not any(group.take(graph, node) for group in groups[-_OPEN:]):
            groups.append(_Group(_UNIT if kind.halves else 4))
            if not groups[-1].take(graph, node):
                edit.declined.append(
                    f"{label(node)}: the node has so many weights that the time of launches "
                    "hardly matters"
                )
    for group in (group for groups in found.values() for group in groups):
        if len(group.members) > 1:
            _merge(edit, group.members)
    return edit.result()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The properties that merged convolutions must share: attributes and rounding.

    `halves`: whether the result may be stored as half.
    """

    does: Hashable
    halves: bool
    keeps_weights: bool
    rounds: bool


def _kind(graph: Graph, node: Node) -> _Kind:
    output = graph.values[node.outputs[0]]
    weights = graph.values[node.attributes.weights].elements
    return _Kind(
        (node.op, node.inputs, node.attributes.window, node.epilogue, output.shape[:-1]),
        FP16.stores_half(4 * output.elements),
        FP16.keeps_fp32_weights(4 * weights),
        rounding_pays(2 * weights * math.prod(output.shape4[:3])),
    )


def _obstacle(graph: Graph, node: Node, consumers: Mapping[int, list[Node]]) -> str:
    attributes: ConvAttributes = node.attributes
    output = node.outputs[0]
    known = (v for v in (attributes.weights, attributes.bias) if v != ABSENT)
    if attributes.groups > 1 or not all(graph.values[v].is_constant for v in known):
        return "the weights are computed or form groups"
    if output in graph.outputs:
        return "the result is an output of the partition"
    if any(epilogue_op.operands for epilogue_op in node.epilogue):
        return "the epilogue reads further values"
    # A part would have to be copied there.
    if reshaped_views(graph, consumers, output, _part(graph.values[output])) is None:
        return "a reader determines where its result is stored"
    readers = consumers.get(output, [])
    if len(readers) == 1 and _takes_over(graph, readers[0], output):
        return f"{label(readers[0])} becomes an epilogue op of it"
    return ""


def _part(value: Value) -> Storage:
    """Return the storage of a value as a part of a larger one."""
    n, height, width, channels = value.shape4
    whole = Storage.create(value.id, value.dtype, (n, height, width, 3 * channels), _UNIT)
    units = round_up(channels, _UNIT)
    return whole.region(value.shape4, 3, units, units)


def _takes_over(graph: Graph, reader: Node, value: int) -> bool:
    """Whether the producer of an input could fuse an elementwise node that reads the input."""
    if reader.op != COPY or not reader.epilogue:
        return False
    same = graph.values[value].shape == graph.values[reader.outputs[0]].shape
    first = [v for v in reader.epilogue[0].operands if v != SELF]
    return same and value in (*reader.inputs, *first)


def _merge(edit: Editor, members: list[Node]) -> None:
    values, first = edit.graph.values, min(members, key=edit.position)
    each_attributes: list[ConvAttributes] = [node.attributes for node in members]
    sizes = [each.shape[0] for each in each_attributes]
    weights = [
        np.asarray(values[each.weights].data).reshape(each.shape) for each in each_attributes
    ]
    bias = ABSENT
    if any(each.bias != ABSENT for each in each_attributes):
        numbers = [
            np.zeros(each.shape[0], np.float32)
            if each.bias == ABSENT
            else as_float32(values[each.bias])
            for each in each_attributes
        ]
        bias = edit.new_constant("merged", np.concatenate(numbers))
    output = values[first.outputs[0]]
    whole = edit.new_value(
        output,
        shape=(*output.shape[:-1], sum(sizes)),
        precise=any(values[node.outputs[0]].precise for node in members),
        siblings=len(members),
    )
    joined = np.concatenate(weights)
    attributes = replace(
        first.attributes, weights=edit.new_constant("merged", joined), bias=bias, shape=joined.shape
    )
    merged = tuple(node.index for node in members if node is not first)
    for node, start in zip(members, accumulate(sizes, initial=0), strict=False):
        cut = CopyAttributes(begin=(0, 0, 0, start))
        slice_ = Node(node.index, STRIDED_SLICE, 1, (whole,), node.outputs, attributes=cut)
        edit.nodes[edit.position(node)] = slice_
    edit.insert_before(
        edit.position(first), replace(first, outputs=(whole,), attributes=attributes, merged=merged)
    )
    edit.applied.append(", ".join(map(label, members)))
