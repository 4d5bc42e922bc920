"""MediaPipe's custom op TransformTensorBilinear, formerly named TransformTensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, add
from litegpu.ops.common import checks, flexbuffers
from litegpu.ops.common.units import Unit


@dataclass(frozen=True, slots=True)
class TransformAttributes:
    """The output's (H, W), and whether output and image corners are aligned."""

    size: tuple[int, int]
    corners: bool


class TransformTensor(Op):
    """Transforms an image by a 4x4 matrix with bilinear interpolation; pixels outside are zero."""

    def __init__(self, name: str, max_version: int) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = max_version  # type: ignore[misc]

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The operand"),
            lambda: _check_transform(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return ((1, *_transform(node).size, graph.values[node.inputs[0]].shape[3]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, attributes=_transform(node)),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="transform_tensor",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "matrix": node.inputs[1]},
            variables={"corners": node.attributes.corners},
            work={Unit.FP32: 8 * dst.rows * dst.channels},
        )
        return (request,)


def _transform(node: Node) -> TransformAttributes:
    options = flexbuffers.read_map(node.custom)
    # The runtime reports version 1 for all ops without a kernel, so the options identify the
    # version.
    if "output_size" in options:
        height, width = options["output_size"]
        return TransformAttributes((height, width), corners=False)
    return TransformAttributes((options["output_height"], options["output_width"]), corners=True)


def _check_transform(graph: Graph, node: Node) -> str:
    image, matrix = (graph.values[v] for v in node.inputs)
    if len(image.shape) != 4 or image.shape[0] != 1:
        return f"The image must have 4 dimensions and a batch of 1, not {list(image.shape)}."
    if matrix.elements != 16:
        return f"The matrix has the shape {list(matrix.shape)}, but 16 elements are needed."
    mode = flexbuffers.read_map(node.custom).get("mode", "bilinear")
    if mode != "bilinear":
        return f"Only mode bilinear is supported, not {mode}."
    size = _transform(node).size
    if min(size) < 1:
        return f"The output size {list(size)} must be positive."
    return ""


add(TransformTensor("TransformTensor", 1))
add(TransformTensor("TransformTensorBilinear", 2))
