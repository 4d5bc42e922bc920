"""Moves the last epilogue ops to separate kernels if one kernel cannot read that many buffers.

Lowering can split an epilogue in place, in the node's output, if the last ops do not change the
type of the running value. A change from int32 sums to bytes, for example, needs a separate kernel.
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
"""Number of buffers of a kernel for sums of products: result, input, weights and bias."""
_OWN_OF_COPY = 2
_WIDE = {FLOAT: DType.FLOAT32, INT: DType.INT32, LONG: DType.INT64}
"""Types that can store every value of their register type."""


def split_epilogues(graph: Graph, fusions: Fusions) -> PassResult:
    """Split epilogues that change the type of the running value and need too many buffers."""
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
    """Return the number of epilogue ops before the split; None if no split is needed."""
    ends = accumulate(_buffers(graph, each) for each in node.epilogue)
    count = sum(end <= room for end in ends)
    if count == len(node.epilogue):
        return None
    register = _registers(graph, node)[count]
    in_place = _WIDE[register] is graph.values[node.outputs[0]].dtype
    return None if in_place else count


def _buffers(graph: Graph, epilogue_op: EpilogueOp) -> int:
    """Return the number of buffers that an epilogue op reads; scalars become kernel text."""
    values = (graph.values[v] for v in epilogue_op.operands if v != SELF)
    return sum(not (value.is_constant and value.elements == 1) for value in values)


def _registers(graph: Graph, node: Node) -> list[Register]:
    """Return the register type of the running value before each epilogue op and after the last."""

    def of(v: int) -> Register:
        return register_of(graph.values[v].dtype)

    found = [of(node.inputs[0])]
    for epilogue_op in node.epilogue:
        operands = [found[-1] if v == SELF else of(v) for v in epilogue_op.operands]
        found.append(registers(epilogue_op, found[-1], operands)[1])
    return found
