"""RESIZE_BILINEAR, including align_corners and half_pixel_centers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from litegpu.codegen import literal
from litegpu.graph import Graph, Node
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    Values,
    constant_list,
    register,
)
from litegpu.ops.common import checks
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.exact.resize import ExactResize
from litegpu.ops.quantized_resize import scale_of

RESIZE_BILINEAR = "RESIZE_BILINEAR"


@dataclass(frozen=True, slots=True)
class ResizeAttributes:
    """The mapping from output coordinates to input coordinates.

    `lanes` lists the input channel of each output channel if the channels differ; `lanes` has at
    most four entries.
    """

    align_corners: bool
    half_pixel: bool
    lanes: tuple[int, ...] = ()


@register
class ResizeBilinear(Op):
    """Resizes H and W by bilinear interpolation."""

    name = RESIZE_BILINEAR
    max_version = 4
    traits = Trait.CONVEX | Trait.RESIZES
    cpu_bytes_per_second = 14e9
    shape_operands = (1,)
    accepts: ClassVar = {
        "half_pixel_centers": Values(about="true, false; not true with align_corners")
    }

    def __init__(self) -> None:
        self.exact = ExactResize(self.check)  # type: ignore[misc]

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The new size"),
            lambda: check_size(graph, node),
            lambda: _check_flags(node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (resized_shape(graph, node),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        attributes = ResizeAttributes(
            node.params["align_corners"], node.params["half_pixel_centers"]
        )
        return (replace(node, inputs=node.inputs[:1], attributes=attributes),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst, src = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
        request = KernelRequest(
            template="resize_bilinear",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables=resize_words(node.attributes, src.shape, dst.shape),
            work={Unit.FP32: 8 * dst.rows * dst.channels},
            needed={"src": 4 * dst.rows * dst.padded_channels},
        )
        return (request,)


def resize_words(attributes: ResizeAttributes, image: Shape, result: Shape) -> dict[str, Any]:
    """Return the template variables of a resize between shapes [N, H, W, C]."""
    scales = (scale_of(image[axis], result[axis], attributes.align_corners) for axis in (1, 2))
    return {
        "scales": tuple(map(literal, scales)),
        "half_pixel": attributes.half_pixel,
        "lanes": "".join("xyzw"[lane] for lane in attributes.lanes),
    }


def check_size(graph: Graph, node: Node) -> str:
    """Require an image and two positive target sizes."""
    image = graph.values[node.inputs[0]].shape
    wanted = constant_list(graph, node.inputs[1])
    if len(image) != 4 or len(wanted) != 2 or min(wanted) < 1:
        return f"Input {list(image)} and size {wanted} do not form a 2-D resize."
    return ""


def resized_shape(graph: Graph, node: Node) -> Shape:
    """Return the shape of a checked node's result."""
    n, _, _, channels = graph.values[node.inputs[0]].shape
    height, width = constant_list(graph, node.inputs[1])
    return n, height, width, channels


def _check_flags(node: Node) -> str:
    if node.params["half_pixel_centers"] and node.params["align_corners"]:
        return "If half_pixel_centers is True, align_corners must be False."
    return ""
