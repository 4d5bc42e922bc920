"""The encoder of Whisper (tiny), as converted from Hugging Face's TensorFlow model."""

from __future__ import annotations

from litegpu.zoo.layers import Signal
from litegpu.zoo.transformer import TransformerNet

_BINS = 80
_CHANNELS, _HEADS, _HIDDEN = 384, 6, 1536
_EPSILON = 1e-5


def build(net: TransformerNet, *, batch: int, frames: int, layers: int) -> None:
    """Add the encoder: a spectrogram `[batch, 80, frames]` to `[batch, frames / 2, 384]`."""
    x = net.transpose(net.spectrogram(batch, _BINS, frames, "input_features"), (0, 2, 1), "input")
    x = net.gelu(net.conv_1d(x, _CHANNELS, 3, 1, "conv1"), "conv1")
    x = net.gelu(net.conv_1d(x, _CHANNELS, 3, 2, "conv2"), "conv2")
    x = net.with_constant("ADD", x, net.embedding(x.shape[1:], "embed_positions"), "add")
    for number in range(layers):
        name = f"layers.{number}"
        inner = net.layer_norm(x, f"{name}/self_attn_layer_norm", _EPSILON, negated=False)
        x = net.add(x, _attention(net, inner, f"{name}/self_attn"), f"{name}/add")
        inner = net.layer_norm(x, f"{name}/final_layer_norm", _EPSILON, negated=False)
        x = net.add(x, net.mlp(inner, _HIDDEN, name), f"{name}/add_1")
    net.writer.output(net.layer_norm(x, "layer_norm", _EPSILON, negated=False).ref)


def _attention(net: TransformerNet, x: Signal, name: str) -> Signal:
    """Add self-attention with scaled queries, and with the heads merged into the batch axis."""
    batch, tokens, channels = x.shape
    depth, rows = channels // _HEADS, batch * _HEADS
    query = net.scale(net.dense(x, channels, f"{name}/q_proj"), depth**-0.5, f"{name}/mul")
    key = net.dense(x, channels, f"{name}/k_proj", bias=False)
    value = net.dense(x, channels, f"{name}/v_proj")
    query, key, value = (
        net.reshape(
            net.heads_of(each, _HEADS, f"{name}/{part}", (0, 2, 1, 3)),
            (rows, tokens, depth),
            f"{name}/{part}/Reshape_1",
        )
        for part, each in (("query", query), ("key", key), ("value", value))
    )
    x = net.attend(net.product(query, key, f"{name}/MatMul", transposed=True), value, name)
    x = net.reshape(x, (batch, _HEADS, tokens, depth), f"{name}/Reshape_6")
    return net.projected(net.joined(x, name), f"{name}/out_proj")
