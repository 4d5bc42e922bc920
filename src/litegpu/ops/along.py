"""Ops that go along one axis in order: ARG_MAX, ARG_MIN and CUMSUM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops import checks, facts
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    add,
    constant_list,
    register,
    shared_items,
)
from litegpu.ops.reshape import four_dimensions, reshape_node
from litegpu.ops.resize_bilinear import ResizeAttributes, resize_words
from litegpu.ops.types import INTEGERS, TYPE_CODES


@dataclass(frozen=True, slots=True)
class AlongAttributes:
    """The axis, counted in [N, H, W, C]; of an image that is resized on the fly, if given."""

    axis: int
    resize: ResizeAttributes | None = None


def _axis(graph: Graph, node: Node) -> int:
    rank = len(graph.values[node.inputs[0]].shape)
    number: int = constant_list(graph, node.inputs[1])[0]
    return number % rank


def _check(graph: Graph, node: Node) -> str:
    return checks.first_of(
        checks.input_count(node, 2, 2),
        checks.operands(graph, node, (1,)),
        checks.integers(graph, node, 1, "The axis"),
        lambda: checks.constant_axis(graph, node, 1),
        lambda: _check_size(graph, node),
    )


def _check_size(graph: Graph, node: Node) -> str:
    size = graph.values[node.inputs[0]].shape[_axis(graph, node)]
    return f"{size} elements along an axis are more than 2^24." if size > 1 << 24 else ""


def _check_output_type(graph: Graph, node: Node) -> str:
    """Require the tensor's own type: the CPU would give it the one of the parameters."""
    code = node.params["output_type"]
    dtypes = {graph.values[v].dtype for v in node.outputs}
    if TYPE_CODES.get(code) in dtypes:
        return ""
    return f"output_type = {code}, but the output is {', '.join(d.name for d in dtypes)}."


class Arg(Op):
    """The place of the largest or smallest element along an axis; the first one if several."""

    max_version = 3
    cpu_bytes_per_second = 15e9
    shape_operands = (1,)
    gives = INTEGERS

    def __init__(self, name: str, better: str, worst: str) -> None:
        self.name = name  # type: ignore[misc]
        self.better = better
        self.worst = worst

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(_check(graph, node), lambda: _check_output_type(graph, node))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape, axis = graph.values[node.inputs[0]].shape, _axis(graph, node)
        return ((*shape[:axis], *shape[axis + 1 :]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape, axis = graph.values[node.inputs[0]].shape, _axis(graph, node)
        source, shape, axis, nodes = four_dimensions(graph, node, shape, axis, new_value)
        kept = new_value((*shape[:axis], 1, *shape[axis + 1 :]))
        attributes = AlongAttributes(axis + 4 - len(shape))
        found = replace(node, inputs=(source,), outputs=(kept,), attributes=attributes)
        return (*nodes, found, reshape_node(node, kept, node.outputs[0]))

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        attributes: AlongAttributes = node.attributes
        axis, resize = attributes.axis, attributes.resize
        slices = -(-src.channels // 4)
        items = shared_items(dst.rows, slices, ctx) if axis == 3 else 1
        request = KernelRequest(
            template="arg",
            grid=(dst.slices * items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "ITEMS": items,
                "axis": axis,
                "better": self.better,
                "worst": self.worst,
                "real_slices": slices,
                "scales": (),
                **(resize_words(resize, src.shape, dst.shape) if resize else {}),
            },
            shared=(("float4", "scratch", items), ("float4", "places", items)) if items > 1 else (),
            flops=(9 if resize else 1) * dst.rows * src.shape[axis] * dst.channels,
        )
        return (request,)


add(Arg("ARG_MAX", "LESS4({b}, {a})", "-INFINITY"))
add(Arg("ARG_MIN", "LESS4({a}, {b})", "INFINITY"))


@register
class CumSum(Op):
    """Sums of all elements up to each one along an axis, itself included or not, or backwards."""

    name = "CUMSUM"
    max_version = 1
    cpu_bytes_per_second = 15e9

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return _check(graph, node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        whole, axis = graph.values[node.inputs[0]].shape, _axis(graph, node)
        source, shape, axis, nodes = four_dimensions(graph, node, whole, axis, new_value)
        attributes = AlongAttributes(axis + 4 - len(shape))
        summed = replace(node, inputs=(source,), attributes=attributes)
        if shape == whole:
            return (summed,)
        flat = new_value(shape)
        end = reshape_node(node, flat, node.outputs[0])
        return (*nodes, replace(summed, outputs=(flat,)), end)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        axis: int = node.attributes.axis
        lines = [1 if i == axis else size for i, size in enumerate(dst.shape)]
        rows = lines[0] * lines[1] * lines[2]
        request = KernelRequest(
            template="cumsum",
            grid=(1 if axis == 3 else dst.slices, rows, 1),
            local=(1, 64, 1) if axis == 3 else (8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "axis": axis,
                "lines": tuple(lines),
                "rows": rows,
                "exclusive": node.params["exclusive"],
                "backwards": node.params["reverse"],
            },
            flops=dst.rows * dst.channels,
        )
        return (request,)
