"""CUMSUM: computes cumulative sums along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import FLOAT, register_of
from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import facts
from litegpu.ops.common.axis_operand import axis_of, check_axis
from litegpu.ops.common.functions import BINARY
from litegpu.ops.common.types import INTEGERS, NUMBERS
from litegpu.ops.common.units import Unit
from litegpu.ops.reshape import four_dimensions, reshape_node


@dataclass(frozen=True, slots=True)
class CumSumAttributes:
    """The axis of [N, H, W, C] along which the kernel accumulates."""

    axis: int


@register
class CumSum(Op):
    """Computes inclusive or exclusive cumulative sums along an axis, forward or reverse."""

    name = "CUMSUM"
    max_version = 1
    cpu_bytes_per_second = 15e9
    takes = (NUMBERS, INTEGERS)
    gives = None

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return check_axis(graph, node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        whole, axis = graph.values[node.inputs[0]].shape, axis_of(graph, node)
        source, shape, axis, nodes = four_dimensions(graph, node, whole, axis, new_value)
        attributes = CumSumAttributes(axis + 4 - len(shape))
        summed = replace(node, inputs=(source,), attributes=attributes)
        if shape == whole:
            return (summed,)
        flat = new_value(shape)
        end = reshape_node(node, flat, node.outputs[0])
        return (*nodes, replace(summed, outputs=(flat,)), end)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        kind = register_of(ctx.storage(node.inputs[0]).dtype)
        function = BINARY["ADD"]
        axis: int = node.attributes.axis
        lines = [1 if i == axis else size for i, size in enumerate(dst.shape)]
        rows = lines[0] * lines[1] * lines[2]
        request = KernelRequest(
            template="cumsum",
            grid=(1 if axis == 3 else dst.channel_blocks, rows, 1),
            local=(1, 64, 1) if axis == 3 else (8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "axis": axis,
                "lines": tuple(lines),
                "rows": rows,
                "exclusive": node.params["exclusive"],
                "backwards": node.params["reverse"],
                "sums": function.expression if kind is FLOAT else function.integer,
            },
            work={Unit.FP32: dst.rows * dst.channels},
            accumulator=kind,
        )
        return (request,)
