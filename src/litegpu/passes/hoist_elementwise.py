"""Moves elementwise ops above RESHAPE and CONCATENATION, to kernels that can fuse the ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from litegpu.graph import SELF, Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.common.functions import depends_on_position, element_operands
from litegpu.ops.common.traits import Trait
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label

_MAX_COPIES = 1 << 12
"""Maximum number of added nodes: an op above a CONCATENATION becomes one op for each input."""


def hoist_elementwise(graph: Graph) -> PassResult:
    """Move each epilogue op up as far as possible."""
    hoister = _Hoister(Editor(graph))
    waiting = list(reversed(graph.nodes))
    while waiting:
        waiting += reversed(hoister.visit(waiting.pop()))
    return hoister.result()


class _Hoister:
    """Tracks the order of nodes, and the producers and readers of values, while ops move up."""

    def __init__(self, edit: Editor) -> None:
        self._edit = edit
        self._graph = replace(edit.graph, values=edit.values)  # including added ones
        self._copies = 0
        self._replaced: dict[int, list[Node]] = {}
        """The replacements of each node, by its id(); later rewrites may replace these nodes as
        well.
        """
        self._producers = dict(edit.graph.producers())
        self._readers = {v: len(nodes) for v, nodes in edit.graph.consumers().items()}

    def visit(self, node: Node) -> list[Node]:
        """Move a node's epilogue ops above the view before it; return the new nodes."""
        if node.op != COPY or not node.epilogue:
            return []
        view = self._producers.get(node.inputs[0])
        if view is None or not has(view, Trait.HOLDS_INPUTS):
            return []
        reason = self._place_obstacle(node, view) or _obstacle(self._graph, node, view)
        if reason:
            self._edit.declined.append(f"epilogue ops after {label(view)}: {reason}")
            return []
        name = "+".join(s.function for s in node.epilogue)
        self._edit.applied.append(f"{name} above {label(view)}")
        return self._move(node, view)

    def _place_obstacle(self, node: Node, view: Node) -> str:
        outputs = self._graph.outputs
        if self._readers[node.inputs[0]] > 1 or node.inputs[0] in outputs:
            return "other nodes also read the value"
        if any(v not in self._producers or v in outputs for v in view.inputs):
            return "the node reads an input, an output or a constant of the partition"
        if self._copies + len(view.inputs) > _MAX_COPIES:
            return f"this pass already added {_MAX_COPIES} nodes"
        return ""

    def _move(self, node: Node, view: Node) -> list[Node]:
        values = self._graph.values
        nodes: list[Node] = []
        renamed: list[int] = []
        for v in view.inputs:
            dtype = values[node.outputs[0]].dtype
            renamed.append(self._edit.new_value(values[v], dtype=dtype))
            nodes.append(replace(node, inputs=(v,), outputs=(renamed[-1],)))
            self._readers[v] += 1
        moved = replace(view, inputs=tuple(renamed), outputs=node.outputs)
        for v in dict.fromkeys(view.inputs):
            self._readers[v] -= 1
        self._readers.update(dict.fromkeys(renamed, 1))
        self._producers.update(zip(renamed, nodes, strict=True))
        self._producers[node.outputs[0]] = moved
        self._replaced[id(view)] = [*nodes, moved]
        self._replaced[id(node)] = []
        self._copies += len(nodes)
        return nodes

    def result(self) -> PassResult:
        """Return the graph with all nodes in their new order."""
        return self._edit.result([*self._in_order()] if self._replaced else None)

    def _in_order(self) -> Iterator[Node]:
        waiting = list(reversed(self._graph.nodes))
        while waiting:
            node = waiting.pop()
            if id(node) in self._replaced:
                waiting += reversed(self._replaced[id(node)])
            else:
                yield node


def _obstacle(graph: Graph, node: Node, view: Node) -> str:
    """Return why epilogue ops depend on an element's position; an empty text if they do not."""
    shape = graph.values[node.inputs[0]].shape
    if shape != graph.values[node.outputs[0]].shape:
        return "the epilogue ops broadcast their input"
    if depends_on_position(node.epilogue) and view.op != RESHAPE:
        return "the results of the epilogue ops depend on the positions of elements"
    rows = {graph.values[v].shape4[3] for v in (*view.inputs, *view.outputs)}
    by_channel = rows == {shape[-1]} if shape else False
    channels = (1, 1, 1, shape[-1]) if by_channel else ()
    read = {v for epilogue_op in node.epilogue for v in element_operands(epilogue_op)} - {SELF}
    operands = [graph.values[v] for v in read]
    if not all(v.is_constant and (v.elements == 1 or v.shape4 == channels) for v in operands):
        return "an operand differs from element to element"
    return ""
