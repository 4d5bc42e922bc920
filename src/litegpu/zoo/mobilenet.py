"""MobileNet v1 and v2: backbones for other models, and ImageNet classifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from litegpu.zoo.layers import Net, Signal
from litegpu.zoo.weights import Moments

LOGITS = Moments(0.0, 3.0)
"""Moments of logits with one dominant class, whose probability after SOFTMAX is below 1."""

_CLASSES = 1001
_MIN_CHANNELS = 8
_V1_STEM = 32
_V2_STEM = 32
_V2_HEAD = 1280
_V2_EXPANSION = 6

# Output channels and stride of the depthwise separable blocks 1 to 13.
_V1_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
# Output channels, number of blocks and first stride of each run of inverted residuals.
_V2_RUNS = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))


@dataclass(slots=True)
class Stride:
    """Converts strides to dilation once a network has reached its maximum output stride."""

    limit: int
    reached: int = 1
    dilation: int = 1

    def step(self, stride: int) -> tuple[int, int]:
        """Return the stride and the dilation of a layer with the nominal `stride`."""
        dilation = self.dilation
        if self.reached * stride > self.limit:
            self.dilation *= stride
            return 1, dilation
        self.reached *= stride
        return stride, dilation


def v1_backbone(
    net: Net, x: Signal, *, width: float, scope: str, output_stride: int = 32
) -> dict[int, Signal]:
    """Add MobileNet v1 without its classifier; return the results of blocks 0 (the stem) to 13."""

    def scaled(channels: int) -> int:
        return max(int(channels * width), _MIN_CHANNELS)

    strides = Stride(output_stride)
    first, _ = strides.step(2)
    x = net.conv(
        x, scaled(_V1_STEM), f"{scope}/Conv2d_0", kernel=3, stride=first, activation="RELU6"
    )
    blocks = {0: x}
    for number, (channels, wanted) in enumerate(_V1_BLOCKS, 1):
        stride, dilation = strides.step(wanted)
        name = f"{scope}/Conv2d_{number}"
        x = net.depthwise(x, f"{name}_depthwise", stride=stride, dilation=dilation)
        x = net.conv(x, scaled(channels), f"{name}_pointwise", activation="RELU6")
        blocks[number] = x
    return blocks


def v2_backbone(
    net: Net, x: Signal, *, scaled: Callable[[int], int], output_stride: int = 32
) -> Signal:
    """Add the stem and the 17 inverted residuals of MobileNet v2; `scaled` maps channel counts."""
    strides = Stride(output_stride)
    first, _ = strides.step(2)
    x = net.conv(
        x, scaled(_V2_STEM), "MobilenetV2/Conv", kernel=3, stride=first, activation="RELU6"
    )
    number = 0
    for channels, count, first_stride in _V2_RUNS:
        for wanted in (first_stride, *[1] * (count - 1)):
            stride, dilation = strides.step(wanted)
            x = _inverted_residual(net, x, scaled(channels), number, stride, dilation)
            number += 1
    return x


def _inverted_residual(
    net: Net, x: Signal, channels: int, number: int, stride: int, dilation: int
) -> Signal:
    name = f"MobilenetV2/expanded_conv_{number}" if number else "MobilenetV2/expanded_conv"
    inner = x
    if number:
        expanded = x.shape[3] * _V2_EXPANSION
        inner = net.conv(inner, expanded, f"{name}/expand", activation="RELU6")
    inner = net.depthwise(inner, f"{name}/depthwise", stride=stride, dilation=dilation)
    inner = net.conv(inner, channels, f"{name}/project")
    return net.add(inner, x, f"{name}/add") if inner.shape == x.shape else inner


def round_channels(channels: float, divisor: int) -> int:
    """Round to a multiple of `divisor`, at least 8 and at most a tenth below `channels`."""
    rounded = max(_MIN_CHANNELS, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def build_v1(net: Net, *, batch: int, size: int, width: float) -> None:
    """Add the MobileNet v1 classifier: `[batch, size, size, 3]` to `[batch, 1001]`."""
    scope = "MobilenetV1/MobilenetV1"
    blocks = v1_backbone(net, net.image(batch, size, "input"), width=width, scope=scope)
    _classify(net, blocks[13], "MobilenetV1", "SpatialSqueeze", "Reshape_1")


def build_v2(net: Net, *, batch: int, size: int, width: float) -> None:
    """Add the MobileNet v2 classifier: `[batch, size, size, 3]` to `[batch, 1001]`."""
    x = v2_backbone(
        net,
        net.image(batch, size, "input"),
        scaled=lambda channels: round_channels(channels * width, 8),
    )
    head = round_channels(_V2_HEAD * max(width, 1.0), 8)
    x = net.conv(x, head, "MobilenetV2/Conv_1", activation="RELU6")
    _classify(net, x, "MobilenetV2", "Squeeze", "Softmax")


def _classify(net: Net, x: Signal, scope: str, squeeze: str, predictions: str) -> None:
    x = net.average_pool(x, f"{scope}/Logits/AvgPool")
    x = net.conv(x, _CLASSES, f"{scope}/Logits/Conv2d_1c_1x1", result=LOGITS)
    x = net.reshape(x, (x.shape[0], _CLASSES), f"{scope}/Logits/{squeeze}")
    net.writer.output(net.softmax(x, f"{scope}/Predictions/{predictions}"))
