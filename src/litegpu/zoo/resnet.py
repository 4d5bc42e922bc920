"""ResNet-50 (v1) for ImageNet, as converted from the Keras model."""

from __future__ import annotations

from litegpu.zoo.layers import Net, Signal
from litegpu.zoo.mobilenet import LOGITS
from litegpu.zoo.weights import ACTIVATIONS, Moments

_CLASSES = 1000
_STEM = 64
_EXPANSION = 4
# Inner channels, number of blocks and stride of each stage.
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
# A projection contributes half of the variance that the RELU after the sum expects, the bottleneck
# the rest.
_PROJECTED = Moments(0.5, 2.0)


def build(net: Net, *, batch: int, size: int) -> None:
    """Add ResNet-50: `[batch, size, size, 3]` to `[batch, 1000]`."""
    x = net.pad(net.image(batch, size, "input_1"), 3, "conv1_pad")
    x = net.conv(x, _STEM, "conv1", kernel=7, stride=2, padding="VALID", activation="RELU")
    x = net.max_pool(net.pad(x, 1, "pool1_pad"), 3, 2, "pool1_pool")
    for stage, (channels, count, stride) in enumerate(_STAGES, 2):
        for block in range(1, count + 1):
            name = f"conv{stage}_block{block}"
            x = _bottleneck(net, x, channels, name, stride if block == 1 else 1, block == 1)
    x = net.fully_connected(net.mean(x, "avg_pool"), _CLASSES, "predictions", LOGITS)
    net.writer.output(net.softmax(x, "predictions/Softmax"))


def _bottleneck(
    net: Net, x: Signal, channels: int, name: str, stride: int, project: bool
) -> Signal:
    outer = channels * _EXPANSION
    shortcut = x
    if project:
        shortcut = net.conv(
            x, outer, f"{name}_0_conv", stride=stride, padding="VALID", result=_PROJECTED
        )
    inner = net.conv(
        x, channels, f"{name}_1_conv", stride=stride, padding="VALID", activation="RELU"
    )
    inner = net.conv(inner, channels, f"{name}_2_conv", kernel=3, activation="RELU")
    rest = ACTIVATIONS["RELU"].before - shortcut.moments
    inner = net.conv(inner, outer, f"{name}_3_conv", padding="VALID", result=rest)
    return net.add(shortcut, inner, f"{name}_out", "RELU")
