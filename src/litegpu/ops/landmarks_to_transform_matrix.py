"""The custom ops Landmarks2TransformMatrix and Landmarks2TransformMatrixV2 of MediaPipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import literal
from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, flexbuffers


@dataclass(frozen=True, slots=True)
class MatrixAttributes:
    """The landmarks that span the box, and the constants in which both versions of the op differ.

    A rotated box has the size (w, h), the center (x, y), and an angle with the cosine C and the
    sine S. The matrix of the box is [[C w f0, S h f1], [-S w f2, C h f3]], where f are the
    `factors`. The matrix maps the point `half` to (x, y) * `centre`.
    """

    left: int
    right: int
    subset: tuple[int, ...]
    target: float | None
    """The target angle of the line from left to right; None for the angle nearest to 0 modulo a
    half turn.
    """
    factors: tuple[float, float, float, float]
    centre: tuple[float, float]
    half: tuple[float, float]


class _ToMatrix(Op):
    """Computes the 4x4 matrix that maps pixels of an upright image to the landmarks' region."""

    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: self._check_attributes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        stated = graph.values[node.outputs[0]].shape
        return (stated if math.prod(stated) == 16 else (1, 4, 4),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, attributes=self.attributes(node)),)

    def attributes(self, node: Node) -> MatrixAttributes:
        """Return the attributes; the names of the options identify the op's version.

        The version number is useless, since the runtime reports 1 for all ops without a kernel.
        """
        old = "subset" in flexbuffers.read_map(node.custom)
        return _matrix_v1(node) if old else _matrix_v2(node)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: MatrixAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        turned = attributes.target is not None
        request = KernelRequest(
            template="landmarks_to_matrix",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "left": attributes.left,
                "right": attributes.right,
                "subset": attributes.subset,
                "turned": turned,
                "target": tuple(
                    literal(each(attributes.target or 0.0)) for each in (math.cos, math.sin)
                ),
                "factors": tuple(map(literal, attributes.factors)),
                "centre": tuple(map(literal, attributes.centre)),
                "half": tuple(map(literal, attributes.half)),
            },
        )
        return (request,)

    def _check_attributes(self, graph: Graph, node: Node) -> str:
        dimensions = flexbuffers.read_map(node.custom).get("dimensions", 3)
        if dimensions != 3:
            return f"Landmarks must have 3 dimensions, not {dimensions}."
        attributes = self.attributes(node)
        if not attributes.subset:
            return "The options select no landmarks for the bounding box."
        count = graph.values[node.inputs[0]].elements // 3
        chosen = (attributes.left, attributes.right, *attributes.subset)
        if not 0 <= min(chosen) <= max(chosen) < count:
            return f"The options name landmark {max(chosen)}, but there are {count}."
        return ""


@register
class LandmarksToMatrix(_ToMatrix):
    """Computes the 4x4 matrix that maps pixels of an upright image to the landmarks' region."""

    name = "Landmarks2TransformMatrix"


@register
class LandmarksToMatrixV2(_ToMatrix):
    """Version 2 of Landmarks2TransformMatrix, registered under a separate name."""

    name = "Landmarks2TransformMatrixV2"


def _matrix_v1(node: Node) -> MatrixAttributes:
    options = flexbuffers.read_map(node.custom)
    (height, width), (rows, columns) = options["input_hw"], options["output_hw"]
    extent, growth = options["landmarks_range"], options["bbox_size_multiplier"]
    across, down = (width - 1) / extent, (height - 1) / extent
    step_x, step_y = growth / (columns - 1), growth / (rows - 1)
    return MatrixAttributes(
        options["left_rotation_idx"],
        options["right_rotation_idx"],
        tuple(options["subset"]),
        None,
        (across * step_x, across * step_y, down * step_x, down * step_y),
        (across, down),
        ((columns - 1) / 2, (rows - 1) / 2),
    )


def _matrix_v2(node: Node) -> MatrixAttributes:
    options = flexbuffers.read_map(node.custom)
    rows, columns = options["output_height"], options["output_width"]
    step_x, step_y = options["scale_x"] / columns, options["scale_y"] / rows
    return MatrixAttributes(
        options["left_rotation_idx"],
        options["right_rotation_idx"],
        tuple(options["subset_idxs"]),
        float(options["target_rotation_radians"]),
        (step_x, step_y, step_x, step_y),
        (1.0, 1.0),
        (columns / 2, rows / 2),
    )
