"""ARG_MAX and ARG_MIN: find the index of the largest or smallest element along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import FLOAT, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, add
from litegpu.ops.common import checks, facts
from litegpu.ops.common.axis_operand import axis_of, check_axis
from litegpu.ops.common.types import INTEGERS, SCALED, TYPE_CODES, Types
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items
from litegpu.ops.reshape import four_dimensions, reshape_node
from litegpu.ops.resize_bilinear import ResizeAttributes, resize_words


@dataclass(frozen=True, slots=True)
class ArgAttributes:
    """The axis of [N, H, W, C], and the optional resize that the kernel applies to its input."""

    axis: int
    resize: ResizeAttributes | None = None
    dtype: DType = DType.INT32
    """The supported types of indices."""


def _check_output_type(graph: Graph, node: Node) -> str:
    """Require that `output_type` is the output's type: the CPU would change the output's type."""
    code = node.params["output_type"]
    dtypes = {graph.values[v].dtype for v in node.outputs}
    if TYPE_CODES.get(code) in dtypes:
        return ""
    return f"output_type = {code}, but the output is {', '.join(d.name for d in dtypes)}."


class Arg(Op):
    """Returns the index of the first largest or smallest element along an axis."""

    max_version = 3
    cpu_bytes_per_second = 15e9
    shape_operands = (1,)
    takes = (Types(SCALED.dtypes | {DType.INT32, DType.BOOL}, common=True), INTEGERS)
    gives = INTEGERS

    def __init__(self, name: str, greatest: bool) -> None:
        self.name = name  # type: ignore[misc]
        self.greatest = greatest

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(check_axis(graph, node), lambda: _check_output_type(graph, node))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape, axis = graph.values[node.inputs[0]].shape, axis_of(graph, node)
        return ((*shape[:axis], *shape[axis + 1 :]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape, axis = graph.values[node.inputs[0]].shape, axis_of(graph, node)
        source, shape, axis, nodes = four_dimensions(graph, node, shape, axis, new_value)
        unsqueezed = new_value((*shape[:axis], 1, *shape[axis + 1 :]))
        dtype = graph.values[node.outputs[0]].dtype
        attributes = ArgAttributes(axis + 4 - len(shape), dtype=dtype)
        found = replace(node, inputs=(source,), outputs=(unsqueezed,), attributes=attributes)
        return (*nodes, found, reshape_node(node, unsqueezed, node.outputs[0]))

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        attributes: ArgAttributes = node.attributes
        axis, resize = attributes.axis, attributes.resize
        channel_blocks = -(-src.channels // 4)
        items = shared_items(dst.rows, channel_blocks, ctx) if axis == 3 else 1
        register, result = register_of(src.dtype), register_of(attributes.dtype)
        register = FLOAT if resize else register
        compared = ("{b}", "{a}") if self.greatest else ("{a}", "{b}")
        request = KernelRequest(
            template="arg",
            grid=(dst.channel_blocks * items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "ITEMS": items,
                "axis": axis,
                "register": register,
                "better": register.call("LESS4", *compared),
                "worst": register.lowest if self.greatest else register.highest,
                "real_blocks": channel_blocks,
                "scales": (),
                "as_index": f"CAST4_F32_{result.kind}",
                **(resize_words(resize, src.shape, dst.shape) if resize else {}),
            },
            shared=((register.type, "scratch", items), ("float4", "indices", items))
            if items > 1
            else (),
            work={Unit.FP32: (9 if resize else 1) * dst.rows * src.shape[axis] * dst.channels},
            accumulator=result,
        )
        return (request,)


add(Arg("ARG_MAX", greatest=True))
add(Arg("ARG_MIN", greatest=False))
