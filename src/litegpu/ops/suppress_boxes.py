"""Post-processing of detectors: internal ops that decode, select and list boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import FLOAT, INT, Storage, literal
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit

DECODE, SUPPRESS = "DECODE_BOXES", "SUPPRESS_BOXES"
MERGE, LIST = "MERGE_CLASSES", "LIST_DETECTIONS"
MAX_CHOSEN = 1 << 10
"""Maximum number of boxes per class, a limit due to the size of work-group memory."""
_ITEMS = 256
_IOU_OPERATIONS = 20


@dataclass(frozen=True, slots=True)
class DecodeAttributes:
    """The divisors of box codes (y, x, height, width), and the index of the first class."""

    scales: tuple[float, float, float, float]
    first_class: int


@dataclass(frozen=True, slots=True)
class SuppressAttributes:
    """The parameters of non-maximum suppression.

    If `by_class`, scores are [boxes, classes], and the kernel processes each class from
    `first_class` on separately. If not `by_class`, scores are one row. `limits` are the maximum
    overlap, the minimum score and the sigma of soft suppression. If a limit is None, the kernel
    reads the limit from the next additional input of the node. TensorFlow's ops are `strict`:
    scores must be above the minimum and overlaps below the maximum. Detection post-processing is
    not `strict`, and accepts scores and overlaps equal to the limits. Unused result entries have
    the value `nothing`.
    """

    limits: tuple[float | None, float | None, float | None]
    strict: bool
    nothing: int
    by_class: bool = False
    first_class: int = 0


@dataclass(frozen=True, slots=True)
class ListAttributes:
    """The layout of detection lists: `labels` classes per box, or 0 for classes as an input."""

    first_class: int
    classes: int
    labels: int
    slots: int
    """Number of list entries per box."""


@register
class DecodeBoxes(InternalOp):
    """Computes box corners [N, 4] from codes and anchors, and each box's best score, [1, N]."""

    name = DECODE

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: DecodeAttributes = node.attributes
        scores = ctx.storage(node.inputs[2])
        request = KernelRequest(
            template="decode_boxes",
            grid=(ctx.storage(node.outputs[1]).channel_blocks, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("codes", "anchors", "scores"), node.inputs, strict=True)),
            writes={"best": node.outputs[1]},
            variables={
                "scales": ", ".join(map(literal, attributes.scales)),
                "first_class": attributes.first_class,
                "blocks": -(-scores.channels // 4),
            },
            work={Unit.FP32: scores.rows * (scores.channels + _IOU_OPERATIONS)},
        )
        return (request,)


@register
class SuppressBoxes(InternalOp):
    """Selects boxes of each class, [classes, count], by descending score.

    The second output is a buffer of scores that work items modify. A node with four outputs also
    returns the scores and the number of selected boxes.
    """

    name = SUPPRESS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: SuppressAttributes = node.attributes
        chosen, left = (ctx.storage(v) for v in node.outputs[:2])
        items = shared_items(ctx)
        texts, given = [], iter(node.inputs[2:])
        reads = dict(zip(("boxes", "scores"), node.inputs, strict=False))
        for name, limit in zip(("overlap", "least", "sigma"), attributes.limits, strict=True):
            if limit is None:
                reads[name] = next(given)
            texts.append("" if limit is None else literal(limit))
        scored = len(node.outputs) > 2
        shared = [("float", "bests", items), ("int", "places", items)]
        listed = list_size(ctx, node.outputs[:1] + node.outputs[2:3])
        shared += [("int", "chosen", listed)]
        shared += [("float", "chosen_scores", listed)] if scored else []
        request = KernelRequest(
            template="suppress_boxes",
            grid=(items, chosen.rows, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads=reads,
            writes=dict(zip(("left", "best_scores", "total"), node.outputs[1:], strict=False)),
            variables={
                "ITEMS": items,
                "boxes_count": left.channels,
                "count": chosen.channels,
                "limits": texts,
                "soft": attributes.limits[2] != 0.0,
                "strict": attributes.strict,
                "nothing": attributes.nothing,
                "by_class": attributes.by_class,
                "first_class": attributes.first_class,
                "scored": scored,
            },
            shared=tuple(shared),
            work={Unit.FP32: left.rows * left.channels * chosen.channels * _IOU_OPERATIONS},
            accumulator=INT,
        )
        return (request,)


@register
class MergeClasses(InternalOp):
    """Selects the best boxes over all classes; returns indices and classes, [1, count] each."""

    name = MERGE

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        chosen, merged = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        items, listed = shared_items(ctx), list_size(ctx, node.outputs)
        request = KernelRequest(
            template="merge_classes",
            grid=(items, 1, 1),
            local=(items, 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("chosen", "scores"), node.inputs, strict=True)),
            writes={"labels": node.outputs[1]},
            variables={
                "ITEMS": items,
                "classes": chosen.rows,
                "count": chosen.channels,
                "merged": merged.channels,
                "first_class": node.attributes,
            },
            shared=(
                *(("float", "bests", items), ("int", "places", items)),
                ("int", "heads", chosen.rows),
                ("int", "found", listed),
                ("int", "found_labels", listed),
            ),
            work={Unit.FP32: merged.channels * chosen.rows},
            accumulator=INT,
        )
        return (request,)


@register
class ListDetections(InternalOp):
    """Lists boxes, classes, scores and the number of detections; unused entries are 0."""

    name = LIST

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: ListAttributes = node.attributes
        labels: Storage = ctx.storage(node.outputs[1])
        request = KernelRequest(
            template="list_detections",
            grid=(max(ctx.storage(v).channel_blocks for v in node.outputs[1:]), 1, 1),
            output=node.outputs[0],
            reads=dict(zip(("boxes", "scores", "chosen", "label"), node.inputs, strict=False)),
            writes=dict(zip(("labels", "best_scores", "total"), node.outputs[1:], strict=True)),
            variables={
                "first_class": attributes.first_class,
                "classes": attributes.classes,
                "label_count": attributes.labels,
                "slots": attributes.slots,
                "count": ctx.storage(node.inputs[2]).channels,
            },
            work={Unit.FP32: labels.channels * attributes.classes},
            accumulator=FLOAT,
        )
        return (request,)


def shared_items(ctx: LowerContext) -> int:
    """Return the number of work items that select a box together."""
    return min(_ITEMS, ctx.target.max_work_group_size)


def list_size(ctx: LowerContext, lists: Sequence[int]) -> int:
    """Return the number of elements of work-group memory for padded rows of `lists`."""
    return 4 * max(ctx.storage(v).channel_blocks for v in lists)
