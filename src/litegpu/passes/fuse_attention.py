"""Fuses attention into one kernel: query-key products, softmax, and products with the values.

The scores (queries × keys) are then never stored, and heads are read and written in place, without
the transposes before and after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.attention import ATTENTION, AttentionAttributes
from litegpu.ops.common.permutation import Permutation, permutation_of, simplified, then
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_MATMUL = "BATCH_MATMUL"


def fuse_attention(graph: Graph, fusions: Fusions) -> PassResult:
    """Merge each softmax with the two products around it, and with the transposes of heads."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        first = producers.get(node.inputs[0]) if node.op == "SOFTMAX" else None
        if first is None or first.op != _MATMUL:
            continue
        last = only_consumer(node.outputs[0], consumers, graph.outputs)
        reason = _obstacle(graph, first, node, last, consumers)
        if last is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        merged, after = _merged(graph, first, node, last, producers, consumers)
        if isinstance(merged, str) or (reason := fusions.obstacle(graph, merged, first.outputs[0])):
            edit.declined.append(f"{label(node)}: {merged if isinstance(merged, str) else reason}")
            continue
        gone = (first, node, last, *after)
        for each in gone:
            edit.nodes[edit.position(each)] = None
        edit.nodes[edit.position(gone[-1])] = merged
        edit.applied.append(f"{', '.join(map(label, gone))} are one")
    unread = [each for each in reversed(graph.nodes) if permutation_of(graph, each) is not None]
    edit.drop_unread(unread if edit.applied else ())
    return edit.result()


def _obstacle(
    graph: Graph,
    first: Node,
    softmax: Node,
    last: Node | None,
    consumers: Mapping[int, list[Node]],
) -> str:
    if only_consumer(softmax.inputs[0], consumers, graph.outputs) is None:
        return "others read the scores, too"
    if last is None or last.op != _MATMUL or last.inputs[0] != softmax.outputs[0]:
        return "not read by one product alone, as its first operand"
    if softmax.outputs[0] in last.operands[1:] or softmax.epilogue:
        return "more is done with what it makes"
    batches = {*first.attributes.batches, *last.attributes.batches}
    if len(batches) > 1:
        return "keys or values are broadcast"
    values = (*first.inputs, last.inputs[1], *first.outputs, *softmax.outputs, *last.outputs)
    if any(graph.values[v].dtype is not DType.FLOAT32 for v in values):
        return "not all values are float32"
    if any(len(graph.values[v].shape) > 4 for v in values):
        return "values have more than 4 dimensions"
    if first.attributes.transposed[0] or last.attributes.transposed != (False, False):
        return "queries or values lie the other way round"
    return ""


@dataclass(frozen=True, slots=True)
class _Found:
    """A value with attention heads: before the tokens' axis, or in their channels (`across`)."""

    value: int
    across: bool


def _merged(
    graph: Graph,
    first: Node,
    softmax: Node,
    last: Node,
    producers: Mapping[int, Node],
    consumers: Mapping[int, list[Node]],
) -> tuple[Node | str, tuple[Node, ...]]:
    """Return the fused node, or the reason why not, and the transposes that it includes."""
    scores = graph.values[first.outputs[0]].shape4
    tokens = (scores[2], scores[3], scores[3])
    operands = (*first.inputs, last.inputs[1])
    turned = (False, not first.attributes.transposed[1], False)
    found = []
    for value, count, is_turned in zip(operands, tokens, turned, strict=True):
        place = _source(graph, producers, value, count, is_turned)
        if place is None:
            return "its keys lie the other way round", ()
        found.append(place)
    target, across, after = _target(graph, consumers, last)
    inputs, epilogue = _numbered(first.epilogue, tuple(place.value for place in found))
    attributes = AttentionAttributes(
        scores,
        first.outputs[0],
        epilogue,
        softmax.attributes.beta,
        (found[0].across, found[1].across, found[2].across, across),
    )
    absorbed = (first, softmax, *((last, *after[:-1]) if after else ()))
    numbers = (number for each in absorbed for number in (*each.merged, each.index))
    end = after[-1] if after else last
    node = Node(
        *(end.index, ATTENTION, 1, inputs, (target,)),
        attributes=attributes,
        epilogue=end.epilogue,
        merged=(*numbers, *end.merged),
    )
    return node, after


def _numbered(
    epilogue: tuple[EpilogueOp, ...], inputs: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[EpilogueOp, ...]]:
    """Return inputs and an epilogue, whose operands become indices of additional inputs."""
    read = [v for each in epilogue for v in each.operands if v != SELF]
    numbers = {v: len(inputs) + i for i, v in enumerate(dict.fromkeys(read))}
    ops = (
        replace(each, operands=tuple(v if v == SELF else numbers[v] for v in each.operands))
        for each in epilogue
    )
    return (*inputs, *numbers), tuple(ops)


def _source(
    graph: Graph, producers: Mapping[int, Node], value: int, tokens: int, turned: bool
) -> _Found | None:
    """Return the earliest value from which a product's operand can be read.

    `turned`: its matrices are [depth, tokens].
    """
    shape = graph.values[value].shape4
    depth = shape[2] if turned else shape[3]
    permutation: Permutation | None = simplified([(math.prod(shape), 1)])
    found = None
    while permutation is not None:
        own = graph.values[value].shape4
        for across in (False, True):
            order = _order(own, tokens, depth, across)
            if order is None:
                continue
            head, token, channel = order
            matrix = (channel, token) if turned else (token, channel)
            if permutation == simplified([*head, *matrix]):
                found = _Found(value, across)
        producer = producers.get(value)
        before = None if producer is None else permutation_of(graph, producer)
        if producer is None or before is None or len(graph.values[producer.inputs[0]].shape) > 4:
            break
        permutation = then(before, permutation)
        value = producer.inputs[0]
    return found


def _order(
    shape: tuple[int, int, int, int], tokens: int, depth: int, across: bool
) -> tuple[list[tuple[int, int]], tuple[int, int], tuple[int, int]] | None:
    """Return the digits (size, step) of heads, tokens and channels in a value, if it has them."""
    outer, middle, inner, channels = shape
    if channels != depth or (middle if across else inner) != tokens:
        return None
    steps = (middle * inner * channels, inner * channels, channels)
    sizes = (outer, inner if across else middle)
    head = list(zip(sizes, (steps[0], steps[2] if across else steps[1]), strict=True))
    return head, (tokens, steps[1] if across else steps[2]), (channels, 1)


def _target(
    graph: Graph, consumers: Mapping[int, list[Node]], last: Node
) -> tuple[int, bool, tuple[Node, ...]]:
    """Return the value that can be written in place of a product, and whether heads are across.

    The transposes between them come last.
    """
    value = last.outputs[0]
    outer, heads, tokens, depth = graph.values[value].shape4
    passed: list[Node] = []
    permutation: Permutation | None = ()
    best: tuple[int, bool, tuple[Node, ...]] = (value, False, ())
    while not (last.epilogue or (passed and passed[-1].epilogue)):
        node = only_consumer(value, consumers, graph.outputs)
        plain = node and replace(node, epilogue=())
        step = None if plain is None else permutation_of(graph, plain)
        if node is None or step is None or node.operands.count(value) > 1:
            break
        permutation = then(permutation, step) if passed and permutation is not None else step
        passed.append(node)
        value = node.outputs[0]
        own = graph.values[value].shape
        shape = graph.values[value].shape4
        products = outer * heads
        wanted = simplified(
            [
                (shape[0], shape[2] * tokens * depth),
                (tokens, depth),
                (shape[2], tokens * depth),
                (depth, 1),
            ]
        )
        fits = len(own) <= 4 and shape[1] == tokens and shape[3] == depth
        if fits and shape[0] * shape[2] == products and permutation == wanted:
            best = (value, True, tuple(passed))
    return best
