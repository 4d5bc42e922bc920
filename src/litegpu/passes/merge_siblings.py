"""Merges convolutions of one value with equal windows; each result is a slice of the channels.

The merge saves launches, and the merged kernel reads the value once. A part that consists of whole
channel blocks is a view, which needs no kernel. The merge does not change which values are rounded:
the decision still depends on the size of a single convolution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from litegpu.codegen import Storage, round_up
from litegpu.graph import ABSENT, SELF, DType, EpilogueOp, Graph, Node, Value
from litegpu.numeric_policy import FP16, rounding_pays
from litegpu.ops.base import COPY, as_float32, has
from litegpu.ops.common.functions import FUNCTIONS, steps_of
from litegpu.ops.common.placement import reshaped_views
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import FLOATS
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.quantized_conv import QUANTIZED_CONV
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label

_MAX_WEIGHT_BYTES = 1 << 24
"""Maximum size of the weights of a merged convolution: for larger ones a launch matters little, and
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
        stored = graph.values[node.attributes.weights]
        weights = self.weights + stored.elements * max(stored.dtype.size, 1)
        odd = graph.values[node.outputs[0]].shape[-1] % self.unit
        if weights > _MAX_WEIGHT_BYTES or (odd and self.last):
            return False
        (self.last if odd else self.whole).append(node)
        self.weights = weights
        return True


def merge_siblings(graph: Graph) -> PassResult:
    """Replace several convolutions by one, if the merge saves launches."""
    edit = Editor(graph)
    consumers = graph.consumers()
    contractions = [node for node in graph.nodes if _is_contraction(node)]
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


def _is_contraction(node: Node) -> bool:
    return has(node, Trait.CONTRACTION) or node.op == QUANTIZED_CONV


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
    attributes = node.attributes
    weights = graph.values[attributes.weights].elements
    epilogue = tuple(_without_constants(graph, each) for each in node.epilogue)
    same = replace(attributes, weights=ABSENT, bias=ABSENT, shape=(0, *attributes.shape[1:]))
    return _Kind(
        (node.op, node.inputs, same, epilogue, output.shape[:-1]),
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
    if graph.values[output].dtype not in FLOATS.dtypes:
        return "a part of the bytes would not begin at a whole vector"
    if not all(_can_join(graph, each, attributes.shape[0]) for each in node.epilogue):
        return "the epilogue reads further values, or depends on the channel"
    # A part would have to be copied there.
    if reshaped_views(graph, consumers, output, _part(graph.values[output])) is None:
        return "a reader determines where its result is stored"
    readers = consumers.get(output, [])
    if len(readers) == 1 and _takes_over(graph, readers[0], output):
        return f"{label(readers[0])} becomes an epilogue op of it"
    return ""


def _can_join(graph: Graph, epilogue_op: EpilogueOp, channels: int) -> bool:
    """Whether all operands are constants of each channel, or have one element per pixel."""
    if any(FUNCTIONS[step.function].positional for step in steps_of(epilogue_op)):
        return False
    operands = (graph.values[v] for v in epilogue_op.operands if v != SELF)
    return all(
        each.elements in (1, channels) and each.shape4[3] in (1, channels)
        if each.is_constant
        else each.shape4[3] == 1
        for each in operands
    )


def _without_constants(graph: Graph, epilogue_op: EpilogueOp) -> EpilogueOp:
    """Return an epilogue op whose constant operands are replaced by ABSENT."""
    return epilogue_op.with_operands(lambda v: ABSENT if graph.values[v].is_constant else v)


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
    epilogue = tuple(
        _joined(edit, alternatives, sizes)
        for alternatives in zip(*(node.epilogue for node in members), strict=True)
    )
    attributes = replace(
        first.attributes, weights=edit.new_constant("merged", joined), bias=bias, shape=joined.shape
    )
    merged = tuple(node.index for node in members if node is not first)
    for node, start in zip(members, accumulate(sizes, initial=0), strict=False):
        cut = CopyAttributes(begin=(0, 0, 0, start))
        slice_ = Node(node.index, STRIDED_SLICE, 1, (whole,), node.outputs, attributes=cut)
        edit.nodes[edit.position(node)] = slice_
    whole_node = replace(
        first, outputs=(whole,), attributes=attributes, epilogue=epilogue, merged=merged
    )
    edit.insert_before(edit.position(first), whole_node)
    edit.applied.append(", ".join(map(label, members)))


def _joined(edit: Editor, alternatives: Sequence[EpilogueOp], sizes: Sequence[int]) -> EpilogueOp:
    """Return one epilogue op for all members, with the constants of all their channels."""
    values, first = edit.graph.values, alternatives[0]
    operands = list(first.operands)
    for position, operand in enumerate(first.operands):
        if operand == SELF or not values[operand].is_constant:
            continue
        constants = [values[each.operands[position]] for each in alternatives]
        arrays = [
            np.broadcast_to(np.asarray(each.data).ravel(), size)
            for each, size in zip(constants, sizes, strict=True)
        ]
        joined = np.concatenate(arrays)
        operands[position] = edit.new_value(
            constants[0],
            shape=joined.shape,
            dtype=DType(joined.dtype.name),
            data=joined,
            precise=any(each.precise for each in constants),
        )
    return replace(first, operands=tuple(operands))
