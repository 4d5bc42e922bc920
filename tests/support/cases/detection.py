"""Cases of operations that select boxes by their scores and overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatbuffers import flexbuffers

from cases.base import UNKNOWN, Case, Range, Shape, Sheet
from litegpu.graph import Quantization

_ANCHORS = Range(0.1, 0.9)
_CODES = Range(-1.0, 1.0)
_SCORES = Range(0.0, 1.0)
_CORNERS = Range(0.0, 1.0)
_BYTES = Range(0.0, 256.0, dtype="uint8")


def options(**changed: Any) -> bytes:
    """Return the options of TFLite_Detection_PostProcess; None leaves one out."""
    given = {
        **{"max_detections": 4, "max_classes_per_detection": 1, "num_classes": 3},
        **{"nms_score_threshold": 0.01, "nms_iou_threshold": 0.9},
        **{"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0},
        **changed,
    }
    return bytes(flexbuffers.Dumps({k: v for k, v in given.items() if v is not None}))


@dataclass(frozen=True, kw_only=True)
class Detections(Case):
    """The end of a detector, with as many boxes as it lists: the CPU leaves others as they were."""

    boxes: int = 37
    classes: int = 3
    background: int = 1
    coordinates: int = 4
    detections: int = 4
    labels: int = 1
    regular: bool = False
    per_class: int | None = None
    least: float = -1.0
    overlap: float = 0.9
    scales: Shape = (10, 10, 5, 5)
    scores: Range = _SCORES
    quantized: str = ""
    """Which of codes, scores and anchors ("bsa") are bytes."""
    computed_anchors: bool = False

    def write(self, sheet: Sheet) -> None:
        """Codes and scores, constant anchors, four outputs."""
        wide = (1, self.boxes, self.coordinates)
        codes = self._operand(sheet, "b", wide, _CODES, Quantization((0.0625,), (131,)))
        shape = (1, self.boxes, self.classes + self.background)
        scores = self._operand(sheet, "s", shape, self.scores, Quantization((1 / 256,), (0,)))
        if "a" in self.quantized:
            data = _BYTES.draw((self.boxes, 4), sheet.random)
            anchors = sheet.constant(data, "uint8", Quantization((0.0078125,), (0,)))
        else:
            given = sheet.input if self.computed_anchors else sheet.weights
            anchors = given((self.boxes, 4), _ANCHORS)
        y, x, height, width = map(float, self.scales)
        custom = options(
            **{"max_detections": self.detections, "max_classes_per_detection": self.labels},
            **{"num_classes": self.classes, "detections_per_class": self.per_class},
            **{"nms_score_threshold": self.least, "nms_iou_threshold": self.overlap},
            **{"y_scale": y, "x_scale": x, "h_scale": height, "w_scale": width},
            use_regular_nms=self.regular or None,
        )
        code = "TFLite_Detection_PostProcess"
        sheet.output(*sheet.custom(code, [codes, scores, anchors], custom, count=4))

    def _operand(
        self, sheet: Sheet, kind: str, shape: Shape, values: Range, quantization: Quantization
    ) -> Any:
        if kind in self.quantized:
            return sheet.input(shape, _BYTES, quantization)
        return sheet.input(shape, values)


@dataclass(frozen=True, kw_only=True)
class Suppression(Case):
    """Boxes by descending score, without those that overlap; with a sigma it is version 5."""

    boxes: int = 40
    count: int = 9
    overlap: float = 0.3
    least: float = 0.1
    sigma: float | None = None
    scores: Range = _SCORES
    corners: Range = _CORNERS
    computed: bool = False
    """Whether the limits are inputs."""

    def write(self, sheet: Sheet) -> None:
        """Boxes and scores, one or three outputs and their number."""
        limits = [each for each in (self.overlap, self.least, self.sigma) if each is not None]
        given = [
            sheet.input((), Range(each, each)) if self.computed else sheet.constant(each)
            for each in limits
        ]
        operands = [
            sheet.input((self.boxes, 4), self.corners),
            sheet.input((self.boxes,), self.scores),
            sheet.constant(self.count, "int32"),
            *given,
        ]
        soft = self.sigma is not None
        dtypes = ["int32", *["float32"] * soft, "int32"]
        name = f"NON_MAX_SUPPRESSION_V{5 if soft else 4}"
        sheet.ops.append(name)
        sheet.tensors += len(dtypes)
        shapes = [UNKNOWN] * len(dtypes)
        sheet.output(*sheet.writer.multi(name, operands, shapes, dtypes=dtypes))


CASES: tuple[Case, ...] = (
    Detections(),
    Detections(boxes=1, detections=1, background=0),
    *(Detections(boxes=300 + n, classes=n, detections=n) for n in (1, 5, 9)),
    Detections(boxes=403, overlap=0.3, detections=9, scales=(1, 2, 3, 4)),
    Detections(labels=2, coordinates=7),
    Detections(labels=3, background=0, computed_anchors=True),
    Detections(scores=Range(0.0, 4.0, grid=1.0), boxes=90, overlap=0.99),
    Detections(scores=Range(-9.0, -1.0), least=-1e30, overlap=1.0),
    Detections(quantized="bsa", boxes=61, overlap=0.5),
    Detections(quantized="s", overlap=0.6),
    Detections(regular=True, background=0, per_class=2, detections=5),
    Detections(regular=True, per_class=7, classes=9, boxes=200, detections=13, overlap=0.4),
    Detections(regular=True, classes=300, boxes=5, detections=6, per_class=1),
    Suppression(),
    Suppression(boxes=1, count=1, corners=Range(-1e4, 1e4)),
    Suppression(boxes=67, count=30, overlap=0.6, computed=True),
    Suppression(boxes=13, count=50, overlap=0.5, least=0.5),
    Suppression(sigma=0.0),
    Suppression(sigma=0.5, overlap=1.0, boxes=70, count=70),
    Suppression(sigma=0.2, overlap=0.7, least=0.4, computed=True, corners=Range(-2.0, 1.0)),
)
