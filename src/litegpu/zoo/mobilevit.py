"""MobileViT-XXS for ImageNet, as converted from a Keras model that unfolds patches."""

from __future__ import annotations

from litegpu.zoo.layers import Signal
from litegpu.zoo.mobilenet import LOGITS
from litegpu.zoo.transformer import TransformerNet

_CLASSES = 1000
_PATCH = 2
_HEADS = 4
_EPSILON = 1e-5
_EXPANSION = 2
_STEM, _LAST = 16, 320
# Channels and stride of inverted residuals; then channels and number of layers of a transformer.
_STAGES: tuple[tuple[tuple[tuple[int, int], ...], tuple[int, int] | None], ...] = (
    (((16, 1),), None),
    (((24, 2), (24, 1), (24, 1)), None),
    (((48, 2),), (64, 2)),
    (((64, 2),), (80, 4)),
    (((80, 2),), (96, 3)),
)


def build(net: TransformerNet, *, batch: int, size: int, layers: int) -> None:
    """Add MobileViT-XXS: `[batch, size, size, 3]` to `[batch, 1000]`.

    `size` is rounded up to a multiple of 64. Each transformer has at most `layers` layers.
    """
    x = _conv(net, net.image(batch, -(-size // 64) * 64, "input_1"), _STEM, "stem", 3, 2)
    for stage, (blocks, transformer) in enumerate(_STAGES):
        for number, (channels, stride) in enumerate(blocks):
            x = _inverted(net, x, channels, stride, f"stage{stage}/block{number}")
        if transformer:
            channels, count = transformer
            x = _block(net, x, channels, min(count, layers), f"stage{stage}/mobilevit")
    x = net.mean(_conv(net, x, _LAST, "last", 1), "pool")
    net.writer.output(net.softmax(net.fully_connected(x, _CLASSES, "head", LOGITS), "Softmax"))


def _conv(
    net: TransformerNet, x: Signal, channels: int, name: str, kernel: int, stride: int = 1
) -> Signal:
    return net.swish(net.conv(x, channels, name, kernel=kernel, stride=stride), name)


def _inverted(net: TransformerNet, x: Signal, channels: int, stride: int, name: str) -> Signal:
    inner = _conv(net, x, x.shape[3] * _EXPANSION, f"{name}/expand", 1)
    depthwise = f"{name}/depthwise"
    inner = net.depthwise(inner, depthwise, stride=stride, activation="NONE")
    inner = net.conv(net.swish(inner, depthwise), channels, f"{name}/project")
    return net.add(x, inner, f"{name}/add") if inner.shape == x.shape else inner


def _block(net: TransformerNet, x: Signal, channels: int, layers: int, name: str) -> Signal:
    """Add convolutions, and a transformer over pixels at the same position of all patches."""
    outer = x.shape[3]
    inner = net.conv(_conv(net, x, outer, f"{name}/local", 3), channels, f"{name}/into")
    shape = inner.shape
    inner = _unfold(net, inner, f"{name}/unfold")
    for number in range(layers):
        layer = f"{name}/layer{number}"
        normed = net.layer_norm(inner, f"{layer}/norm1", _EPSILON, negated=True)
        attended = net.attention(normed, _HEADS, f"{layer}/attention", keras=True)
        inner = net.add(inner, attended, f"{layer}/add")
        normed = net.layer_norm(inner, f"{layer}/norm2", _EPSILON, negated=True)
        added = net.mlp(normed, channels * _EXPANSION, f"{layer}/mlp", swish=True)
        inner = net.add(inner, added, f"{layer}/add_1")
    inner = net.layer_norm(inner, f"{name}/norm", _EPSILON, negated=True)
    inner = _fold(net, inner, shape, f"{name}/fold")
    inner = _conv(net, inner, outer, f"{name}/out", 1)
    return _conv(net, net.concatenate([x, inner], 3, f"{name}/concat"), outer, f"{name}/fuse", 3)


def _unfold(net: TransformerNet, x: Signal, name: str) -> Signal:
    """Add operations that rearrange an image as `[batch * 4, patches, channels]`."""
    batch, height, width, channels = x.shape
    down, across = height // _PATCH, width // _PATCH
    area = _PATCH * _PATCH
    x = net.transpose(x, (0, 3, 1, 2), f"{name}/transpose")
    shape = (batch * channels * down, _PATCH, across, _PATCH)
    x = net.transpose(net.reshape(x, shape, f"{name}/Reshape"), (0, 2, 1, 3), f"{name}/transpose_1")
    x = net.reshape(x, (batch, channels, down * across, area), f"{name}/Reshape_1")
    x = net.transpose(x, (0, 3, 2, 1), f"{name}/transpose_2")
    return net.reshape(x, (batch * area, down * across, channels), f"{name}/Reshape_2")


def _fold(net: TransformerNet, x: Signal, shape: tuple[int, ...], name: str) -> Signal:
    """Add operations that rearrange patches as the image `shape`."""
    batch, height, width, channels = shape
    down, across = height // _PATCH, width // _PATCH
    area = _PATCH * _PATCH
    x = net.reshape(x, (batch, area, down * across, channels), f"{name}/Reshape")
    x = net.transpose(x, (0, 3, 2, 1), f"{name}/transpose")
    flat = (batch * channels * down, across, _PATCH, _PATCH)
    x = net.transpose(
        net.reshape(x, flat, f"{name}/Reshape_1"), (0, 2, 1, 3), f"{name}/transpose_1"
    )
    x = net.reshape(x, (batch, channels, height, width), f"{name}/Reshape_2")
    return net.transpose(x, (0, 2, 3, 1), f"{name}/transpose_2")
