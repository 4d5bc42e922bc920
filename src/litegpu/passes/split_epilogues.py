"""Gives the last epilogue ops kernels of their own where one kernel may not read so many buffers.

Lowering does that in place, in what the node makes. That cannot hold what comes before the last of
these ops where they change its type: sums in int32 before they become bytes, say.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from litegpu.codegen import FLOAT, INT, LONG, Register, register_of
from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.base import COPY
from litegpu.ops.common.functions import registers
from litegpu.passes.base import Editor, PassResult, label

_OWN = 4
"""Buffers of a kernel that sums products: the result, the input, weights and a bias."""
_OWN_OF_COPY = 2
_WIDE = {FLOAT: DType.FLOAT32, INT: DType.INT32, LONG: DType.INT64}
"""The types that hold all that their registers do."""


def split_epilogues(graph: Graph, fusions: Fusions) -> PassResult:
    """Split the epilogues that change the type of what they are applied to."""
    edit = Editor(graph)
    most = fusions.target.max_arguments
    for position, node in enumerate(graph.nodes):
        split = _split(graph, node, most - _OWN)
        if split is None:
            continue
        current, last = node, 0
        kinds = _registers(graph, node)
        while split is not None:
            result = graph.values[node.outputs[0]]
            last += split
            changes = {"dtype": _WIDE[kinds[last]], "quantization": None, "precise": True}
            middle = edit.new_value(result, **changes)
            first = replace(current, outputs=(middle,), epilogue=current.epilogue[:split])
            edit.insert_before(position, first)
            rest = current.epilogue[split:]
            current = Node(node.index, COPY, 1, (middle,), node.outputs, epilogue=rest)
            split = _split(replace(graph, values=edit.values), current, most - _OWN_OF_COPY)
        edit.nodes[position] = current
        edit.applied.append(f"{label(node)} after {last} of {len(node.epilogue)}")
    return edit.result()


def _split(graph: Graph, node: Node, room: int) -> int | None:
    """Return after how many epilogue ops to split, None if there is room or in place will do."""
    ends = accumulate(_buffers(graph, each) for each in node.epilogue)
    count = sum(end <= room for end in ends)
    if count == len(node.epilogue):
        return None
    register = _registers(graph, node)[count]
    in_place = _WIDE[register] is graph.values[node.outputs[0]].dtype
    return None if in_place else count


def _buffers(graph: Graph, epilogue_op: EpilogueOp) -> int:
    """Return how many buffers an epilogue op reads; scalars are part of the kernel's text."""
    values = (graph.values[v] for v in epilogue_op.operands if v != SELF)
    return sum(not (value.is_constant and value.elements == 1) for value in values)


def _registers(graph: Graph, node: Node) -> list[Register]:
    """Return what holds the running result before each epilogue op, and after the last."""

    def of(v: int) -> Register:
        return register_of(graph.values[v].dtype)

    found = [of(node.inputs[0])]
    for epilogue_op in node.epilogue:
        operands = [found[-1] if v == SELF else of(v) for v in epilogue_op.operands]
        found.append(registers(epilogue_op, found[-1], operands)[1])
    return found
