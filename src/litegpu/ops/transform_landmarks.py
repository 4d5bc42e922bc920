"""MediaPipe's TransformLandmarks: transforms points by a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import literal
from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, flexbuffers
from litegpu.ops.common.units import Unit


@dataclass(frozen=True, slots=True)
class PointsAttributes:
    """The count of numbers per point, and the factor of the matrix's translation."""

    dimensions: int
    scale: float


@register
class TransformLandmarks(Op):
    """Transforms x and y of points (x, y, ...) by a 4x4 matrix."""

    name = "TransformLandmarks"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The operand"),
            lambda: _check_points(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, attributes=_points(graph, node)),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: PointsAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="transform_landmarks",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "matrix": node.inputs[1]},
            variables={"dimensions": attributes.dimensions, "scale": literal(attributes.scale)},
            work={Unit.FP32: 4 * dst.rows * dst.channels},
        )
        return (request,)


def _points(graph: Graph, node: Node) -> PointsAttributes:
    shape = graph.values[node.inputs[0]].shape
    if not node.custom and len(shape) == 3:
        return PointsAttributes(shape[-1], 1.0)
    options = flexbuffers.read_map(node.custom) if node.custom else {}
    return PointsAttributes(options.get("dimensions", 3), options.get("scale", 1.0))


def _check_points(graph: Graph, node: Node) -> str:
    points, matrix = (graph.values[v] for v in node.inputs)
    dimensions = _points(graph, node).dimensions
    if matrix.elements != 16:
        return f"The matrix has the shape {list(matrix.shape)}, but 16 elements are needed."
    if dimensions < 2 or points.elements % dimensions:
        return f"The shape {list(points.shape)} is not that of points with {dimensions} dimensions."
    return ""
