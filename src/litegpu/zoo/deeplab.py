"""DeepLab v3 on MobileNet v2: segmentation into the 21 classes of Pascal VOC."""

from __future__ import annotations

from litegpu.zoo.layers import Net
from litegpu.zoo.mobilenet import LOGITS, round_channels, v2_backbone

_CLASSES = 21
_OUTPUT_STRIDE = 8
_CHANNEL_DIVISOR = 4
_HEAD_CHANNELS = 256


def build(net: Net, *, batch: int, size: int, width: float) -> None:
    """Add DeepLab v3: `[batch, size, size, 3]` to class scores `[batch, size, size, 21]`."""
    x = v2_backbone(
        net,
        net.image(batch, size, "sub_7"),
        scaled=lambda channels: round_channels(channels * width, _CHANNEL_DIVISOR),
        output_stride=_OUTPUT_STRIDE,
    )
    extent = x.shape[1]
    pooled = net.average_pool(x, "AvgPool2D/AvgPool")
    pooled = net.conv(pooled, _HEAD_CHANNELS, "image_pooling", activation="RELU")
    pooled = net.resize(pooled, extent, "ResizeBilinear_1")
    local = net.conv(x, _HEAD_CHANNELS, "aspp0", activation="RELU")
    x = net.concatenate([pooled, local], 3, "concat")
    x = net.conv(x, _HEAD_CHANNELS, "concat_projection", activation="RELU")
    x = net.conv(x, _CLASSES, "logits/semantic", result=LOGITS)
    x = net.resize(x, extent, "ResizeBilinear_2")
    net.writer.output(net.resize(x, size, "ResizeBilinear_3").ref)
