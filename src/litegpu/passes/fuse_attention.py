"""Fuses attention into one kernel: query-key products, softmax, and products with the values.

The fused kernel does not store the scores (queries × keys), and reads and writes heads in place,
without the transposes before and after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import DType, Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.attention import ATTENTION, MAX_FEW_QUERIES, STATE, AttentionAttributes
from litegpu.ops.base import Target
from litegpu.ops.common.permutation import (
    Permutation,
    permutation_of,
    repetition_of,
    simplified,
    then,
)
from litegpu.ops.common.work_groups import divide_keys
from litegpu.ops.index_map import INDEX_MAP, Source, index_map_node, plain
from litegpu.ops.join_attention import JOIN_ATTENTION, JoinAttentionAttributes
from litegpu.ops.reshape import reshape_node
from litegpu.passes.base import Editor, PassResult, label, numbered, only_consumer

_MATMUL = "BATCH_MATMUL"
_FEW_ELEMENTS = 1 << 17
"""Maximum elements that are transposed in less time than it takes to launch another kernel."""


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
        found = _sources(graph, first, last, producers)
        if found is None:
            edit.declined.append(f"{label(node)}: keys or values are broadcast to batches")
            continue
        fused = _fused(edit, fusions, (first, node, last), consumers, found)
        if isinstance(fused, str):
            edit.declined.append(f"{label(node)}: {fused}")
            continue
        gone = (first, node, last, *fused.after)
        for each in gone:
            edit.nodes[edit.position(each)] = None
        place = edit.position(gone[-1])
        *before, merged = fused.nodes
        for each in before:
            edit.insert_before(place, each)
        edit.nodes[place] = merged
        edit.applied.append(f"{', '.join(map(label, gone))} are one")
    unread = [each for each in reversed(graph.nodes) if repetition_of(graph, each) is not None]
    edit.drop_unread(unread if edit.applied else ())
    return edit.result()


@dataclass(frozen=True, slots=True)
class _Fused:
    """The nodes that replace an attention, and the transposes after it that they include."""

    nodes: tuple[Node, ...]
    after: tuple[Node, ...]


def _fused(
    edit: Editor,
    fusions: Fusions,
    nodes: tuple[Node, Node, Node],
    consumers: Mapping[int, list[Node]],
    found: Sequence[_Found],
) -> _Fused | str:
    """Return the nodes that compute an attention, or why no kernel can.

    The first choice is for few queries: it reads values of both layouts in place, combines heads of
    queries that share keys, and divides the keys between work groups.
    """
    graph, first = edit.graph, nodes[0]
    query, key, value = found
    reasons: dict[str, None] = {}
    for few in (True, False):
        turned = few and value.turned
        if _is_slower(graph, first, found[:2] if turned else found):
            reasons["few queries would transpose many keys or values"] = None
            continue
        sources = (query, key, replace(value, turned=False) if turned else value)
        moves, inputs = _read_as(edit, first, sources)
        across = tuple(each.across and not each.turned for each in sources)
        merged, after = _merged(graph, nodes, consumers, inputs, across)
        kernels, views = [merged], list[Node]()
        if few:
            merged = replace(merged, attributes=replace(merged.attributes, turned=turned))
            before, merged, views = _with_groups(edit, merged, (key, value))
            moves += before
            kernels = _divided(edit, merged, first, fusions.target)
        reason = fusions.obstacle(replace(graph, values=edit.values), kernels[0], first.outputs[0])
        if not reason:
            return _Fused((*moves, *kernels, *views), after)
        reasons[reason] = None
        if not (turned or views or len(kernels) > 1):
            break
    return "; ".join(reasons)


def _group(products: int, rows: int, shared: Sequence[_Found]) -> int:
    """Return how many heads of queries that share keys and values a kernel can compute together."""
    counts = (each.shape[0] * each.shape[2 if each.across else 1] for each in shared)
    share = math.gcd(*(products // count for count in counts))
    fitting = range(MAX_FEW_QUERIES // rows, 1, -1)
    return next((count for count in fitting if share % count == 0), 1)


def _with_groups(
    edit: Editor, merged: Node, shared: Sequence[_Found]
) -> tuple[list[Node], Node, list[Node]]:
    """Let heads that share keys and values be queries of one head, if that moves no elements.

    Return the nodes that reshape operands, the attention, and the node that reshapes its result.
    """
    attributes: AttentionAttributes = merged.attributes
    outer, heads, rows, keys = attributes.scores
    group = _group(outer * heads, rows, shared)
    query_across, *across, result_across = attributes.across
    in_order = rows == 1 or not (query_across or result_across)
    whole = (outer, heads // group, group * rows)
    shapes = [_grouped(edit.values[v].shape4, attributes.scores, whole) for v in merged.inputs[3:]]
    if group == 1 or heads % group or not in_order or merged.epilogue or None in shapes:
        return [], merged, []
    depth = edit.values[merged.inputs[0]].shape4[3]
    wanted = [(*whole, depth), None, None, *shapes]
    before, inputs = list[Node](), list[int]()
    for v, shape in zip(merged.inputs, wanted, strict=True):
        value = edit.values[v]
        if shape is None or shape == value.shape4:
            inputs.append(v)
        elif value.data is not None:
            inputs.append(edit.new_value(value, shape=shape, data=value.data.reshape(shape)))
        else:
            inputs.append(edit.new_value(value, shape=shape))
            before.append(reshape_node(merged, v, inputs[-1]))
    (target,) = merged.outputs
    result = edit.new_value(edit.values[target], shape=(*whole, edit.values[target].shape4[3]))
    attributes = replace(
        attributes, scores=(*whole, keys), across=(False, across[0], across[1], False)
    )
    grouped = replace(merged, inputs=tuple(inputs), outputs=(result,), attributes=attributes)
    return before, grouped, [reshape_node(merged, result, target)]


def _grouped(own: Shape4, scores: Shape4, whole: tuple[int, int, int]) -> Shape4 | None:
    """Return the shape of an operand of scores whose heads are grouped; None if it has none."""
    if own[1] == own[2] == 1:
        return own
    return (own[0], *whole[1:], own[3]) if own[1:3] == scores[1:3] else None


def _divided(edit: Editor, merged: Node, first: Node, target: Target) -> list[Node]:
    """Return the nodes that compute an attention: one, or one for parts and one that combines."""
    attributes, result = merged.attributes, edit.values[merged.outputs[0]]
    outer, heads, rows, keys = attributes.scores
    count = divide_keys(outer * heads, keys, target)
    if count == 1:
        return [merged]
    attributes = replace(attributes, parts=count)
    shape = (outer * heads, count, rows, round_up(result.shape4[3], 4) + STATE)
    state = edit.new_value(result, shape=shape, precise=True)
    others = tuple(number for number in merged.merged if number != first.index)
    parts = replace(
        merged,
        index=first.index,
        outputs=(state,),
        attributes=attributes,
        epilogue=(),
        merged=others,
    )
    join = replace(
        merged,
        op=JOIN_ATTENTION,
        inputs=(state,),
        attributes=JoinAttentionAttributes(attributes.across[3]),
        merged=(),
    )
    return [parts, join]


def _is_slower(graph: Graph, first: Node, found: Sequence[_Found]) -> bool:
    """Whether transposing keys or values moves more data than storing the scores does."""
    turned = (math.prod(each.shape) for each in found if each.turned)
    scores = graph.values[first.outputs[0]].elements
    return max(turned, default=0) > max(scores, _FEW_ELEMENTS)


def _obstacle(
    graph: Graph,
    first: Node,
    softmax: Node,
    last: Node | None,
    consumers: Mapping[int, list[Node]],
) -> str:
    if only_consumer(softmax.inputs[0], consumers, graph.outputs) is None:
        return "other nodes also read the scores"
    if last is None or last.op != _MATMUL or last.inputs[0] != softmax.outputs[0]:
        return "not read by one product alone, as its first operand"
    if softmax.outputs[0] in last.operands[1:] or softmax.epilogue:
        return "the result has further epilogue ops"
    products = (first.attributes, last.attributes)
    if len({batch for each in products for batch in (each.batch, each.batches[0])}) > 1:
        return "queries or scores are broadcast"
    values = (*first.inputs, last.inputs[1], *first.outputs, *softmax.outputs, *last.outputs)
    if any(graph.values[v].dtype is not DType.FLOAT32 for v in values):
        return "not all values are float32"
    if any(len(graph.values[v].shape) > 4 for v in values):
        return "values have more than 4 dimensions"
    if first.attributes.transposed[0] or last.attributes.transposed[0]:
        return "queries or scores are transposed"
    return ""


@dataclass(frozen=True, slots=True)
class _Found:
    """A value with attention heads: on an axis before the tokens, or in the channels (`across`).

    `shape` is the shape in which the kernel reads the value. `turned`: whether the matrices of the
    value are [depth, tokens] in that shape and must be transposed first.
    """

    value: int
    across: bool
    shape: Shape4
    turned: bool = False


def _sources(
    graph: Graph, first: Node, last: Node, producers: Mapping[int, Node]
) -> list[_Found] | None:
    """Return the values from which the kernel reads queries, keys and values, or None."""
    outer, heads, rows, keys = graph.values[first.outputs[0]].shape4
    source = partial(_source, graph, producers, (outer, heads))
    found = [source(first.inputs[0], rows)]
    products = ((first, not first.attributes.transposed[1]), (last, last.attributes.transposed[1]))
    for node, turned in products:
        value = node.inputs[1]
        of_keys = source(value, keys, turned)
        if of_keys is None and turned:
            lying = source(value, graph.values[value].shape4[2])
            of_keys = lying and replace(lying, turned=True)
        found.append(of_keys)
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _merged(
    graph: Graph,
    nodes: tuple[Node, Node, Node],
    consumers: Mapping[int, list[Node]],
    sources: tuple[int, ...],
    across: tuple[bool, ...],
) -> tuple[Node, tuple[Node, ...]]:
    """Return the fused node, and the transposes after it that the kernel includes."""
    first, softmax, last = nodes
    target, result_across, after = _target(graph, consumers, last)
    inputs, epilogue = numbered(first.epilogue, sources)
    query, key, value = across
    attributes = AttentionAttributes(
        graph.values[first.outputs[0]].shape4,
        first.outputs[0],
        epilogue,
        softmax.attributes.beta,
        (query, key, value, result_across),
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


def _read_as(
    edit: Editor, node: Node, found: Sequence[_Found]
) -> tuple[list[Node], tuple[int, ...]]:
    """Return the values reshaped for the kernel, and the nodes that reshape them."""
    moves: list[Node] = []
    sources: list[int] = []
    for each in found:
        value = edit.values[each.value]
        if len(value.shape) > 4 or value.shape4 != each.shape:
            source = edit.new_value(value, shape=each.shape)
            moves.append(reshape_node(node, each.value, source))
        else:
            source = each.value
        if each.turned:
            moves.append(_transposed(edit, node, source, each))
            (source,) = moves[-1].outputs
        sources.append(source)
    return moves, tuple(sources)


def _transposed(edit: Editor, node: Node, source: int, found: _Found) -> Node:
    """Return the node that transposes matrices [depth, tokens] to [heads, tokens, depth]."""
    outer, *inner, tokens = found.shape
    heads, depth = reversed(inner) if found.across else inner
    shape = (outer, heads, tokens, depth)
    target = edit.new_value(edit.values[source], shape=shape)
    places = (0, 3, 1, 2) if found.across else (0, 1, 3, 2)
    move = Node(node.index, INDEX_MAP, 1, (source,), (target,))
    graph = replace(edit.graph, values=edit.values)
    return index_map_node(graph, move, plain(shape), [Source(((each, 1),)) for each in places])


def _source(
    graph: Graph,
    producers: Mapping[int, Node],
    batch: tuple[int, int],
    value: int,
    tokens: int,
    turned: bool = False,
) -> _Found | None:
    """Return the earliest value that the kernel can read in place of a product's operand.

    `batch` is the batch shape of the attention products. `turned`: whether the operand's matrices
    are [depth, tokens].
    """
    *own_batch, first, second = graph.values[value].shape4
    depth, matrix = first if turned else second, first * second
    steps = (own_batch[1] * matrix, matrix)
    repeated = zip(batch, own_batch, steps, strict=True)
    digits = [(size, step if own > 1 else 0) for size, own, step in repeated]
    permutation: Permutation | None = simplified([*digits, (matrix, 1)])
    found = None
    while permutation is not None:
        own = graph.values[value]
        ways = _ways(own.elements, batch, tokens, depth)
        as_it_is = [
            (across, own.shape4)
            for across, shape in ways
            if len(own.shape) <= 4 and _fits(own.shape4, shape, across)
        ]
        for across, shape in (*as_it_is, *ways):
            if permutation == _order(shape, across, turned, math.prod(batch)):
                found = _Found(value, across, shape)
                break
        producer = producers.get(value)
        before = None if producer is None else repetition_of(graph, producer)
        if producer is None or before is None:
            break
        permutation = then(before, permutation)
        value = producer.inputs[0]
    return found


def _ways(
    elements: int, batch: tuple[int, int], tokens: int, depth: int
) -> tuple[tuple[bool, Shape4], ...]:
    """Return the possible shapes of a value: heads in the channels, or before the tokens.

    Several consecutive heads of queries may share one head of keys and values.
    """
    outer, heads = batch
    count, rest = divmod(elements, tokens * depth)
    if rest or outer * heads % count:
        return ()
    share = outer * heads // count
    outer, heads = (outer, heads // share) if heads % share == 0 else (1, count)
    return ((True, (outer, tokens, heads, depth)), (False, (outer, heads, tokens, depth)))


def _fits(own: Shape4, shape: Shape4, across: bool) -> bool:
    """Whether a shape has the same tokens, channels and total number of heads as another one."""
    return own[3] == shape[3] and own[1 if across else 2] == shape[1 if across else 2]


def _order(shape: Shape4, across: bool, turned: bool, products: int) -> Permutation:
    """Return the order in which the kernel reads the heads' matrices from a value of that shape."""
    outer, middle, inner, channels = shape
    steps = (middle * inner * channels, inner * channels, channels, 1)
    token, head = (1, 2) if across else (2, 1)
    share = products // (outer * shape[head])
    matrix = (3, token) if turned else (token, 3)
    heads = [(shape[axis], steps[axis]) for axis in (0, head)]
    return simplified([*heads, (share, 0), *((shape[axis], steps[axis]) for axis in matrix)])


def _target(
    graph: Graph, consumers: Mapping[int, list[Node]], last: Node
) -> tuple[int, bool, tuple[Node, ...]]:
    """Return the value to write instead of a product's result, and whether its heads are across.

    The third result has the transposes between the product's result and the value to write.
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
