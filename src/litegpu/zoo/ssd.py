"""SSD MobileNet v1: detection of the 90 COCO classes; a custom operation decodes the boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from litegpu.zoo import schema
from litegpu.zoo.layers import Net, Signal
from litegpu.zoo.mobilenet import v1_backbone
from litegpu.zoo.weights import Floats, Moments

_SCOPE = "FeatureExtractor/MobilenetV1"
_CLASSES = 91  # with the background
# Channels between and behind the 1x1 and 3x3 convolutions that shrink the map further, at width 1.
_EXTRA_LAYERS = ((256, 512), (128, 256), (128, 256), (64, 128))
_BOX_CODES = Moments(0.0, 1.0)
_CLASS_SCORES = Moments(-9.0, 6.25)

_MIN_SCALE, _MAX_SCALE = 0.2, 0.95
_FIRST_MAP_BOXES = ((0.1, 1.0), (_MIN_SCALE, 2.0), (_MIN_SCALE, 0.5))
_ASPECT_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)

_POST_PROCESS_OPTIONS = {
    "max_detections": 10,
    "max_classes_per_detection": 1,
    "num_classes": _CLASSES - 1,
    "nms_score_threshold": 1e-8,
    "nms_iou_threshold": 0.6,
    "x_scale": 10.0,
    "y_scale": 10.0,
    "w_scale": 5.0,
    "h_scale": 5.0,
}


def build(net: Net, *, size: int, width: float) -> None:
    """Add SSD MobileNet v1: `[1, size, size, 3]` to boxes, classes, scores and their number."""
    x = net.image(1, size, "normalized_input_image_tensor")
    blocks = v1_backbone(net, x, width=width, scope=f"{_SCOPE}/MobilenetV1")
    maps = [blocks[11], *_extra_maps(net, blocks[13], width)]
    boxes, scores = [], []
    for number, x in enumerate(maps):
        count = _boxes_per_cell(number)
        boxes.append(_predict(net, x, number, "BoxEncoding", (count, 1, 4), _BOX_CODES))
        scores.append(_predict(net, x, number, "Class", (count, _CLASSES), _CLASS_SCORES))
    merged = net.concatenate(boxes, 1, "concat")
    codes = net.reshape(merged, (1, merged.shape[1], 4), "Squeeze")
    probabilities = net.logistic(net.concatenate(scores, 1, "concat_1"), "convert_scores")
    anchors = net.writer.weights(_anchors([x.shape[1] for x in maps]), name="anchors")
    name = "TFLite_Detection_PostProcess"
    outputs = net.writer.custom(
        name,
        [net.real(codes), net.real(probabilities), anchors],
        [(), (), (), ()],  # the operation sets the shapes itself
        custom_options=_flexbuffer(_POST_PROCESS_OPTIONS),
        names=[name, f"{name}:1", f"{name}:2", f"{name}:3"],
    )
    net.writer.output(*outputs)


def _extra_maps(net: Net, x: Signal, width: float) -> list[Signal]:
    maps = [x]
    for number, channels in enumerate(_EXTRA_LAYERS, 2):
        inner, outer = (int(count * width) for count in channels)
        name = f"{_SCOPE}/Conv2d_13_pointwise"
        x = net.conv(x, inner, f"{name}_1_Conv2d_{number}_1x1_{inner}", activation="RELU6")
        name = f"{name}_2_Conv2d_{number}_3x3_s2_{outer}"
        x = net.conv(x, outer, name, kernel=3, stride=2, activation="RELU6")
        maps.append(x)
    return maps


def _predict(
    net: Net, x: Signal, number: int, kind: str, parts: tuple[int, ...], result: Moments
) -> Signal:
    """Add a prediction for each cell of feature map `number`; `parts` starts with the box count."""
    scope = f"BoxPredictor_{number}"
    cells = x.shape[1] * x.shape[2]
    x = net.conv(x, math.prod(parts), f"{scope}/{kind}Predictor", result=result)
    return net.reshape(x, (1, cells * parts[0], *parts[1:]), f"{scope}/{kind}Reshape")


def _boxes_per_cell(number: int) -> int:
    return len(_FIRST_MAP_BOXES) if number == 0 else len(_ASPECT_RATIOS) + 1


def _anchors(extents: Sequence[int]) -> Floats:
    """Return the default boxes (y, x of the center, height, width) of square maps, cell by cell."""
    step = (_MAX_SCALE - _MIN_SCALE) / (len(extents) - 1)
    scales = [_MIN_SCALE + step * i for i in range(len(extents))] + [1.0]
    rows = []
    for number, extent in enumerate(extents):
        boxes = list(_cell_boxes(number, scales))
        centres = [(i + 0.5) / extent for i in range(extent)]
        rows += [(y, x, *box) for y in centres for x in centres for box in boxes]
    return np.array(rows, np.float32)


def _cell_boxes(number: int, scales: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield height and width of each box of a cell of map `number`."""
    scale = scales[number]
    between = math.sqrt(scale * scales[number + 1])
    regular = [*((scale, ratio) for ratio in _ASPECT_RATIOS), (between, 1.0)]
    for size, ratio in regular if number else _FIRST_MAP_BOXES:
        yield size / math.sqrt(ratio), size * math.sqrt(ratio)


def _flexbuffer(options: dict[str, int | float]) -> bytes:
    builder = schema.require("flatbuffers.flexbuffers", "flatbuffers").Builder()
    with builder.Map():
        for key, value in options.items():
            add = builder.Int if isinstance(value, int) else builder.Float
            add(key, value)
    return bytes(builder.Finish())
