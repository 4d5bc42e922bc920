"""NON_MAX_SUPPRESSION_V4 and V5: select boxes by descending score, and drop overlapping boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from litegpu.graph import DType, Graph, Node
from litegpu.ops import suppress_boxes
from litegpu.ops.base import NewValue, Op, Shape, add, as_float32, constant_list
from litegpu.ops.common import checks, facts
from litegpu.ops.common.types import FLOATS, INTEGERS, Types
from litegpu.ops.suppress_boxes import SUPPRESS, SuppressAttributes

_LIMITS = ("The IoU threshold", "The score threshold", "The sigma")


class NonMaxSuppression(Op):
    """Selects boxes by descending score, without boxes that overlap a better box too much.

    Boxes with equal scores stay in input order. Entries beyond the number of boxes are 0.
    """

    max_version = 1
    shape_operands = (2,)
    cpu_bytes_per_second = 1e9
    takes: ClassVar[tuple[Types, ...]] = (FLOATS, FLOATS, INTEGERS, FLOATS)

    def __init__(self, name: str, limits: int) -> None:
        self.name = name  # type: ignore[misc]
        self.gives = Types(frozenset({DType.INT32, *(FLOATS.dtypes if limits > 2 else ())}))  # type: ignore[misc]
        self._limits = limits

    def flops(self, graph: Graph, node: Node) -> int:
        return 2 * facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        inputs = 3 + self._limits
        return checks.first_of(
            checks.input_count(node, inputs, inputs),
            checks.operands(graph, node, tuple(range(1, inputs)), outputs=self._limits),
            checks.operand(graph, node, 0, "The boxes"),
            checks.operand(graph, node, 1, "The scores"),
            checks.integers(graph, node, 2, "The count of boxes", kinds=(DType.INT32,)),
            *(checks.operand(graph, node, 3 + n, _LIMITS[n]) for n in range(self._limits)),
            lambda: _check_shapes(graph, node),
            lambda: self._check_results(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        (count,) = constant_list(graph, node.inputs[2])
        return (*((count,) for _ in node.outputs[1:]), ())

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        boxes, scores = node.inputs[:2]
        (count,) = constant_list(graph, node.inputs[2])
        limits = [graph.values[v] for v in node.inputs[3:]]
        known = [None if each.data is None else float(as_float32(each).item()) for each in limits]
        overlap, least, sigma = (*known, 0.0)[:3]
        attributes = SuppressAttributes((overlap, least, sigma), strict=True, nothing=0)
        computed = [each.id for each in limits if each.data is None]
        left = new_value((1, *graph.values[scores].shape), dtype=DType.FLOAT32, precise=True)
        listed = node.outputs[1:-1] or (new_value((count,), dtype=DType.FLOAT32),)
        outputs = (node.outputs[0], left, *listed, node.outputs[-1])
        inputs = (boxes, scores, *computed)
        return (Node(node.index, SUPPRESS, 1, inputs, outputs, attributes=attributes),)

    def _check_results(self, graph: Graph, node: Node) -> str:
        types = [graph.values[v].dtype for v in node.outputs]
        wanted = [DType.INT32, *[DType.FLOAT32] * (self._limits - 2), DType.INT32]
        if types == wanted:
            return ""
        return f"The results are {', '.join(each.name for each in types)}."


def _check_shapes(graph: Graph, node: Node) -> str:
    boxes, scores, *scalars = (graph.values[v].shape for v in node.inputs)
    if len(scores) != 1 or boxes != (*scores, 4) or any(scalars):
        shapes = ", ".join(str(list(each)) for each in (boxes, scores, *scalars))
        return f"Boxes, scores and numbers have the shapes {shapes}."
    (count,) = constant_list(graph, node.inputs[2])
    if not 0 < count <= suppress_boxes.MAX_CHOSEN:
        return f"{count} boxes are requested; 1 to {suppress_boxes.MAX_CHOSEN} are supported."
    sigma = graph.values[node.inputs[5]] if len(scalars) > 3 else None
    if sigma is not None and sigma.data is not None and float(as_float32(sigma).item()) < 0:
        return f"The sigma is {as_float32(sigma).item():g}; the CPU rejects negative numbers."
    return ""


for _name, _limits in (("NON_MAX_SUPPRESSION_V4", 2), ("NON_MAX_SUPPRESSION_V5", 3)):
    add(NonMaxSuppression(_name, _limits))
