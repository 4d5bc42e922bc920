"""ViT-Ti/16 for ImageNet, as converted from a Keras 3 model."""

from __future__ import annotations

from litegpu.zoo.mobilenet import LOGITS
from litegpu.zoo.transformer import TransformerNet

_CLASSES = 1000
_PATCH = 16
_CHANNELS, _HEADS, _HIDDEN = 192, 3, 768
_EPSILON = 1e-6


def build(net: TransformerNet, *, batch: int, size: int, layers: int) -> None:
    """Add ViT-Ti: `[batch, size, size, 3]` to `[batch, 1000]`."""
    image = net.image(batch, size, "input_1")
    x = net.conv(image, _CHANNELS, "embedding", kernel=_PATCH, stride=_PATCH, padding="VALID")
    patches = x.shape[1] * x.shape[2]
    x = net.reshape(x, (batch, patches, _CHANNELS), "Reshape")
    x = net.with_class_token(x, "class_token")
    x = net.with_constant("ADD", x, net.embedding((1, patches + 1, _CHANNELS), "position"), "add")
    for number in range(layers):
        name = f"block{number}"
        inner = net.layer_norm(x, f"{name}/norm1", _EPSILON, negated=True)
        x = net.add(x, net.attention(inner, _HEADS, f"{name}/attention"), f"{name}/add")
        inner = net.layer_norm(x, f"{name}/norm2", _EPSILON, negated=True)
        x = net.add(x, net.mlp(inner, _HIDDEN, f"{name}/mlp"), f"{name}/add_1")
    x = net.first_token(net.layer_norm(x, "norm", _EPSILON, negated=True), "strided_slice")
    net.writer.output(net.softmax(net.fully_connected(x, _CLASSES, "head", LOGITS), "Softmax"))
