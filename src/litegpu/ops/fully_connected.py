"""FULLY_CONNECTED: computed as a 1x1 convolution over the rows of the input."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import (
    NewValue,
    Op,
    Shape,
    SpecContext,
    register,
)
from litegpu.ops.common import checks, facts, weights
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import conv_nodes, conv_spec
from litegpu.ops.exact.conv import ExactFullyConnected
from litegpu.ops.exact.hybrid import HybridFullyConnected, OrHybrid


@register
class FullyConnected(Op):
    """Multiplies inputs of any rank by constant or computed weights [outputs, inputs]."""

    name = "FULLY_CONNECTED"
    max_version = 14
    traits = Trait.SUMS_PRODUCTS | Trait.WEIGHTED | Trait.CONTRACTION
    exact = OrHybrid(
        ExactFullyConnected(lambda graph, node: _check_geometry(graph, node)),
        HybridFullyConnected(lambda graph, node: _check_geometry(graph, node)),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_output(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The weights", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        source = graph.values[node.inputs[0]]
        outputs, inputs = graph.values[node.inputs[1]].shape
        if node.params.get("keep_num_dims"):
            return ((*source.shape[:-1], outputs),)
        return ((source.elements // inputs, outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source = graph.values[node.inputs[0]]
        outputs, inputs = graph.values[node.inputs[1]].shape
        normalized = weights.normalize(graph, node, new_value, (outputs, 1, 1, inputs))
        if source.shape and source.shape[-1] == inputs:
            return conv_nodes(node, source.id, POINT, normalized)
        flat = new_value((source.elements // inputs, inputs))
        reshape = Node(node.index, "RESHAPE", 1, (source.id,), (flat,))
        return (reshape, *conv_nodes(node, flat, POINT, normalized))

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec]:
        return (conv_spec(node, ctx, image=False),)


def _check_shapes(graph: Graph, node: Node) -> str:
    return checks.first_of(
        _check_geometry(graph, node),
        lambda: weights.check_bias(graph, node, graph.values[node.inputs[1]].shape[0]),
    )


def _check_geometry(graph: Graph, node: Node) -> str:
    source = graph.values[node.inputs[0]]
    matrix = graph.values[node.inputs[1]].shape
    if node.params.get("weights_format", 0) != 0:
        return f"Unsupported FullyConnected weights format: {node.params['weights_format']}"
    if len(matrix) != 2:
        return f"The weights must have 2 dimensions, not {list(matrix)}."
    if source.elements % matrix[1]:
        return f"The input {list(source.shape)} is not divisible into rows of {matrix[1]} elements."
    if node.params.get("keep_num_dims") and source.shape[-1:] != matrix[1:]:
        return (
            "Amount of input channels should match weights width: "
            f"{list(source.shape)} and {list(matrix)} (keep_num_dims)."
        )
    return ""
