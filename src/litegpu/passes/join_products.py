"""Replaces the sum of two products by one product, as at the start of a residual stage.

The producers write both inputs into one concatenated value, and the pass concatenates the weights:
the kernel stores neither product, and one launch is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import COPY, as_float32, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.concatenation import ConcatAttributes
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_VIEWS = (Trait.HOLDS_INPUTS, Trait.VIEWS_INPUT)
_WIDTH = 8
"""The number of channels of the first input must be a multiple of this, so that the second input
starts aligned.
"""


def join_products(graph: Graph) -> PassResult:
    """Let an ADD of two pointwise products become one product of their concatenated inputs."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    # Values with a fixed storage: they are written into a larger value, or a part of them is read.
    views = [each for each in graph.nodes if any(has(each, view) for view in _VIEWS)]
    placed = {v for each in views for v in (*each.operands, *each.outputs)}
    for position, node in enumerate(graph.nodes):
        pair = _pair(node, producers)
        if pair is None:
            continue
        first, second = sorted(pair, key=lambda each: _depth(graph, each) % _WIDTH != 0)
        reason = _obstacle(graph, (first, second), consumers, producers, placed)
        if reason:
            edit.declined.append(f"{label(first)} and {label(second)}: {reason}")
            continue
        placed |= {first.inputs[0], second.inputs[0]}
        _join(edit, position, node, (first, second))
    return edit.result()


def _pair(node: Node, producers: Mapping[int, Node]) -> tuple[Node, Node] | None:
    """Return the two products that an elementwise node adds; None for any other node."""
    if node.op != COPY or not node.epilogue or node.epilogue[0].function != "ADD":
        return None
    output = [producers.get(v) for v in (*node.inputs, *node.epilogue[0].operands)]
    products = [each for each in output if each is not None and has(each, Trait.CONTRACTION)]
    if len(products) != 2 or products[0] is products[1]:
        return None
    return products[0], products[1]


def _depth(graph: Graph, node: Node) -> int:
    return graph.values[node.inputs[0]].shape4[3]


def _obstacle(
    graph: Graph,
    pair: tuple[Node, Node],
    consumers: Mapping[int, list[Node]],
    producers: Mapping[int, Node],
    placed: set[int],
) -> str:
    values = graph.values
    sources = [values[node.inputs[0]] for node in pair]
    for node, source in zip(pair, sources, strict=True):
        attributes: ConvAttributes = node.attributes
        known = (v for v in (attributes.weights, attributes.bias) if v != ABSENT)
        if attributes.groups > 1 or not all(values[v].is_constant for v in known):
            return f"the weights of {label(node)} are computed or form groups"
        if node.epilogue or not attributes.window.pointwise or attributes.depthwise is not None:
            return f"{label(node)} is not only a product of each pixel"
        if only_consumer(node.outputs[0], consumers, graph.outputs) is None:
            return f"other nodes also read the result of {label(node)}"
        if source.id in placed or source.id in graph.outputs or source.id not in producers:
            return f"the input of {label(node)} has a fixed storage already"
    if len({values[node.outputs[0]].shape for node in pair}) > 1:
        return "one result is broadcast to the other"
    rows = {source.shape[:-1] for source in sources}
    if len(rows) > 1 or sources[0].id == sources[1].id or sources[0].shape[-1] % _WIDTH:
        return "the inputs of the products cannot be stored next to each other"
    return ""


def _join(edit: Editor, position: int, node: Node, pair: tuple[Node, Node]) -> None:
    values = edit.graph.values
    sources = [values[each.inputs[0]] for each in pair]
    depth = sum(source.shape[-1] for source in sources)
    precise = any(source.precise for source in sources)
    shape = (*sources[0].shape[:-1], depth)
    both = edit.new_value(sources[0], shape=shape, precise=precise)
    inputs = tuple(source.id for source in sources)
    joined = Node(-1, "CONCATENATION", 1, inputs, (both,), attributes=ConcatAttributes(3))
    each_attributes: list[ConvAttributes] = [each.attributes for each in pair]
    weights = np.concatenate(
        [np.asarray(values[a.weights].data).reshape(a.shape) for a in each_attributes], 3
    )
    biases = [as_float32(values[a.bias]) for a in each_attributes if a.bias != ABSENT]
    attributes = replace(
        each_attributes[0],
        weights=edit.new_constant("joined", weights),
        bias=edit.new_constant("joined", np.sum(biases, axis=0)) if biases else ABSENT,
        shape=weights.shape,
    )
    edit.insert_before(position, joined)
    edit.nodes[position] = replace(
        pair[0],
        inputs=(both,),
        outputs=node.outputs,
        attributes=attributes,
        epilogue=node.epilogue[1:],
        merged=(*pair[0].merged, *pair[1].merged, pair[1].index, *node.merged, node.index),
    )
    for each in pair:
        edit.nodes[edit.position(each)] = None
    edit.applied.append(f"{label(pair[0])} and {label(pair[1])}")
