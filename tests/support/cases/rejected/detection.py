"""Rejected nodes of operations that select boxes."""

from __future__ import annotations

from typing import Any

from cases.base import Shape
from cases.detection import options
from cases.rejected.base import Rejected, Tensor, computed, floats
from litegpu.graph import DType, Quantization

_CODES, _SCORES = computed(1, 7, 4), computed(1, 7, 4)
_ANCHORS = floats(7, 4)


def _bytes(*shape: int, dtype: DType = DType.UINT8, data: Any = None) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, data=data, quantization=Quantization((0.5,), (0,)))


def _detections(
    reason: str,
    codes: Tensor = _CODES,
    scores: Tensor = _SCORES,
    anchors: Tensor = _ANCHORS,
    **changed: Any,
) -> Rejected:
    operands = (codes, scores, anchors)
    name = "TFLite_Detection_PostProcess"
    return Rejected(name, operands, reason, outputs=4, custom=options(**changed))


def _misfit(codes: Shape, scores: Shape, anchors: Shape, classes: int = 3) -> Rejected:
    shapes = f"{list(codes)}, {list(scores)}, {list(anchors)}"
    reason = f"Box codes, scores and anchors of {shapes} do not fit {classes} classes."
    given = computed(*codes), computed(*scores), floats(*anchors)
    return _detections(reason, *given, num_classes=classes)


def _suppression(
    reason: str, *, boxes: int = 7, count: int = 3, sigma: float = 0.5, result: DType = DType.INT32
) -> Rejected:
    limits = (floats(), floats(), Tensor(shape=(), data=sigma))
    counted = Tensor(shape=(), dtype=DType.INT32, data=count)
    operands = (computed(boxes, 4), computed(7), counted, *limits)
    return Rejected("NON_MAX_SUPPRESSION_V5", operands, reason, outputs=3, result=result)


CASES = (
    _suppression("Boxes, scores and numbers have the shapes [8, 4], [7], [], [], [], [].", boxes=8),
    *(
        _suppression(f"{count} boxes are requested; 1 to 1024 are supported.", count=count)
        for count in (0, 1025)
    ),
    _suppression("The sigma is -0.5; the CPU rejects negative numbers.", sigma=-0.5),
    _suppression("The results are INT32, INT32, INT32."),
    _suppression("The results are FLOAT32, FLOAT32, FLOAT32.", result=DType.FLOAT32),
    _misfit((1, 7, 3), (1, 7, 4), (7, 4)),
    _misfit((2, 7, 4), (2, 7, 4), (7, 4)),
    _misfit((1, 7, 4), (1, 8, 4), (7, 4)),
    _misfit((1, 7, 4), (1, 7, 4), (8, 4)),
    _misfit((1, 7, 4), (1, 7, 4), (7, 4), classes=2),
    _misfit((1, 7, 4), (1, 7, 4), (7, 4), classes=0),
    _detections("max_detections is 0; at least 1 is needed.", max_detections=None),
    _detections(
        "max_classes_per_detection is -1; at least 1 is needed.", max_classes_per_detection=-1
    ),
    _detections(
        "detections_per_class is 0; at least 1 is needed.",
        detections_per_class=0,
        use_regular_nms=True,
    ),
    *(
        _detections(
            f"nms_iou_threshold is {limit:g}; more than 0, at most 1 is needed.",
            nms_iou_threshold=limit,
        )
        for limit in (0.0, 1.5)
    ),
    _detections(
        "nms_score_threshold is -inf, which is not finite.", nms_score_threshold=float("-inf")
    ),
    _detections(
        "The scales of boxes are (10.0, 0.0, 5.0, 5.0), but a scale must not be 0.", x_scale=None
    ),
    _detections(
        "The node selects 1025 boxes of 3 classes; at most 1024 boxes and classes are supported.",
        max_detections=1025,
    ),
    _detections(
        "The scores are INT8 instead of FLOAT32 or UINT8.",
        scores=_bytes(1, 7, 4, dtype=DType.INT8),
    ),
    _detections("Box codes are UINT8, but anchors are FLOAT32.", codes=_bytes(1, 7, 4)),
)
