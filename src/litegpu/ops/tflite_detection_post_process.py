"""TFLite_Detection_PostProcess: decodes a detector's boxes and removes overlapping boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops import suppress_boxes
from litegpu.ops.base import Exact, NewValue, Op, Shape, as_float32, register
from litegpu.ops.common import checks, facts, flexbuffers, types
from litegpu.ops.exact import numbers
from litegpu.ops.exact.quantize import dequantized, dequantizing_node
from litegpu.ops.suppress_boxes import (
    DECODE,
    LIST,
    MERGE,
    SUPPRESS,
    DecodeAttributes,
    ListAttributes,
    SuppressAttributes,
)

_INPUTS = ("The box codes", "The scores", "The anchors")
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class _Options:
    """The options in the FlexBuffer; missing options are 0, as on the CPU."""

    max_detections: int
    max_classes: int
    per_class: int
    regular: bool
    least_score: float
    largest_overlap: float
    classes: int
    scales: tuple[float, float, float, float]
    """The divisors of y, x, height and width."""

    @classmethod
    def of(cls, node: Node) -> _Options:
        found = flexbuffers.read_map(node.custom)
        y, x, height, width = (float(found.get(f"{name}_scale") or 0) for name in "yxhw")
        return cls(
            int(found.get("max_detections") or 0),
            int(found.get("max_classes_per_detection") or 0),
            100
            if found.get("detections_per_class") is None
            else int(found["detections_per_class"]),
            bool(found.get("use_regular_nms")),
            float(found.get("nms_score_threshold") or 0),
            float(found.get("nms_iou_threshold") or 0),
            int(found.get("num_classes") or 0),
            (y, x, height, width),
        )

    @property
    def entries(self) -> int:
        """The number of detections in the lists."""
        return self.max_detections * self.max_classes


class _ExactDetections(Exact):
    """Detection post-processing that first dequantizes uint8 box codes, scores or anchors."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            _check(graph, node),
            lambda: checks.first_of(*(_check_type(graph, node, place) for place in range(3))),
            lambda: _check_anchors(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        nodes: list[Node] = []
        values, inputs = dict(graph.values), list(node.inputs)
        for place, v in enumerate(node.inputs):
            source = graph.values[v]
            if source.dtype is DType.FLOAT32:
                continue
            if source.data is not None:
                data = dequantized(source)
                inputs[place] = new_value(source.shape, data, precise=True)
            else:
                data = None
                inputs[place] = new_value(source.shape, dtype=DType.FLOAT32, precise=True)
                nodes.append(dequantizing_node(node, source, inputs[place], new_value))
            values[inputs[place]] = Value(
                inputs[place], source.name, source.shape, DType.FLOAT32, data
            )
        view = replace(graph, values=values)
        return (*nodes, *_normalize(view, replace(node, inputs=tuple(inputs)), new_value))


@register
class DetectionPostProcess(Op):
    """Non-maximum suppression of a detector's boxes, over the best classes or for each class.

    Boxes with equal scores stay in input order. Boxes, classes and scores beyond the number of
    detections are 0.
    """

    name = "TFLite_Detection_PostProcess"
    max_version = 1
    launches = 3
    cpu_bytes_per_second = 1e9
    exact = _ExactDetections()

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.elements(graph, facts.operand(node.inputs, 1))

    def check(self, graph: Graph, node: Node) -> str:
        return _check(graph, node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        entries = _Options.of(node).entries
        return (1, entries, 4), (1, entries), (1, entries), (1,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return _normalize(graph, node, new_value)


def _check(graph: Graph, node: Node) -> str:
    return checks.first_of(
        checks.input_count(node, 3, 3),
        checks.operands(graph, node, (1, 2, 3), outputs=4),
        lambda: _check_shapes(graph, node, _Options.of(node)),
        lambda: _check_options(_Options.of(node)),
        lambda: _check_memory(graph, node, _Options.of(node)),
    )


def _check_shapes(graph: Graph, node: Node, options: _Options) -> str:
    codes, scores, anchors = (graph.values[v].shape for v in node.inputs)
    if (
        (len(codes), len(scores)) != (3, 3)
        or codes[0] != 1
        or codes[2] < 4
        or scores[:2] != codes[:2]
        or anchors != (codes[1], 4)
        or options.classes < 1
        or scores[2] - options.classes not in (0, 1)
    ):
        shapes = ", ".join(str(list(each)) for each in (codes, scores, anchors))
        return f"Box codes, scores and anchors of {shapes} do not fit {options.classes} classes."
    return ""


def _check_options(options: _Options) -> str:
    counts = {
        "max_detections": options.max_detections,
        "max_classes_per_detection": options.max_classes,
        "detections_per_class": options.per_class if options.regular else 1,
    }
    for name, count in counts.items():
        if count < 1:
            return f"{name} is {count}; at least 1 is needed."
    if not 0 < options.largest_overlap <= 1:
        return (
            f"nms_iou_threshold is {options.largest_overlap:g}; more than 0, at most 1 is needed."
        )
    if not math.isfinite(options.least_score):
        return f"nms_score_threshold is {options.least_score:g}, which is not finite."
    if not all(math.isfinite(each) and each for each in options.scales):
        return f"The scales of boxes are {options.scales}, but a scale must not be 0."
    return ""


def _check_memory(graph: Graph, node: Node, options: _Options) -> str:
    chosen = max(options.max_detections, options.per_class if options.regular else 0)
    most = suppress_boxes.MAX_CHOSEN
    if chosen > most or (options.regular and options.classes > most):
        return (
            f"The node selects {chosen} boxes of {options.classes} classes; at most {most} boxes "
            "and classes are supported."
        )
    return ""


def _check_type(graph: Graph, node: Node, place: int) -> str:
    value = graph.values[node.inputs[place]]
    if value.dtype is DType.UINT8:
        return numbers.check_tensors(graph, (value.id,), types.BYTES)
    if value.dtype is not DType.FLOAT32:
        return f"{_INPUTS[place]} are {value.dtype.name} instead of FLOAT32 or UINT8."
    return types.check_variable(value)


def _check_anchors(graph: Graph, node: Node) -> str:
    codes, anchors = graph.values[node.inputs[0]], graph.values[node.inputs[2]]
    if (codes.dtype is DType.UINT8) is (anchors.dtype is DType.UINT8):
        return ""
    return f"Box codes are {codes.dtype.name}, but anchors are {anchors.dtype.name}."


def _normalize(graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
    options = _Options.of(node)
    codes, scores, anchors = (graph.values[v] for v in node.inputs)
    count, first_class = codes.shape[1], scores.shape[2] - options.classes
    corners = anchors.id
    if anchors.data is not None:
        corners = new_value(anchors.shape, as_float32(anchors), precise=True)
    boxes = new_value((count, 4), dtype=DType.FLOAT32, precise=True)
    best = new_value((1, count), dtype=DType.FLOAT32, precise=True)
    classes = options.classes if options.regular else 1
    per_class = options.per_class if options.regular else options.max_detections
    chosen = new_value((classes, per_class), dtype=DType.INT32)
    left = new_value((classes, count), dtype=DType.FLOAT32, precise=True)

    def step(op: str, inputs: Sequence[int], outputs: Sequence[int], attributes: object) -> Node:
        return Node(node.index, op, 1, tuple(inputs), tuple(outputs), attributes=attributes)

    decode = DecodeAttributes(options.scales, first_class)
    limits = (options.largest_overlap, options.least_score, 0.0)
    suppress = SuppressAttributes(limits, False, _NOTHING, options.regular, first_class)
    nodes = [
        step(DECODE, (codes.id, corners, scores.id), (boxes, best), decode),
        step(SUPPRESS, (boxes, scores.id if options.regular else best), (chosen, left), suppress),
    ]
    listed, labels = [chosen], min(options.max_classes, options.classes)
    if options.regular:
        listed = [new_value((1, options.max_detections), dtype=DType.INT32) for _ in range(2)]
        labels = 0
        nodes.append(step(MERGE, (chosen, scores.id), listed, first_class))
    listing = ListAttributes(first_class, options.classes, labels, options.max_classes)
    nodes.append(step(LIST, (boxes, scores.id, *listed), node.outputs, listing))
    return nodes
