"""ADD_N: adds any number of values of equal shape."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.functions import of_integers
from litegpu.ops.common.types import INTEGER_TYPES, SHORT_NUMBERS

_MOST = 7
"""Number of values that one kernel adds, since devices limit the number of buffers of a kernel."""


@register
class AddN(Op):
    """Adds values of equal shape, in the order of the inputs."""

    name = "ADD_N"
    max_version = 1
    takes = (SHORT_NUMBERS,)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1 << 16),
            checks.operands(graph, node, tuple(range(1, len(node.inputs) + 1))),
            checks.constants(graph, node, "The operand", SHORT_NUMBERS),
            lambda: checks.equal_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        (shape,) = self.infer(graph, node)
        integer = graph.values[node.outputs[0]].dtype in INTEGER_TYPES
        function = of_integers("ADD") if integer else "ADD"
        nodes: list[Node] = []
        running, rest = node.inputs[0], node.inputs[1:]
        while rest or not nodes:
            chunk, rest = rest[:_MOST], rest[_MOST:]
            # Only the first epilogue op reads the original running value.
            first = (SELF,) if chunk[:1] == (running,) else chunk[:1]
            epilogue = tuple(EpilogueOp(function, (v,)) for v in (*first, *chunk[1:]))
            target = new_value(shape) if rest else node.outputs[0]
            nodes.append(Node(node.index, COPY, 1, (running,), (target,), epilogue=epilogue))
            running = target
        return nodes
