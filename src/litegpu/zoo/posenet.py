"""PoseNet on MobileNet v1: heatmaps and offsets of 17 body parts for several people."""

from __future__ import annotations

from litegpu.zoo.layers import Net
from litegpu.zoo.mobilenet import v1_backbone
from litegpu.zoo.weights import Moments

# Name, channels and moments of each output: 17 parts, their offsets (y, x) in pixels, and the
# displacements (y, x) along the 16 edges of the skeleton in both directions.
_HEADS = (
    ("heatmap_2", 17, Moments(-2.0, 4.0)),
    ("offset_2", 34, Moments(0.0, 60.0)),
    ("displacement_fwd_2", 32, Moments(0.0, 400.0)),
    ("displacement_bwd_2", 32, Moments(0.0, 400.0)),
)


def build(net: Net, *, batch: int, size: int, width: float, stride: int) -> None:
    """Add PoseNet: `[batch, size, size, 3]` to four maps `[batch, h, h, C]`, h = size / stride."""
    x = net.image(batch, size, "sub_2")
    blocks = v1_backbone(net, x, width=width, scope="MobilenetV1", output_stride=stride)
    for name, channels, moments in _HEADS:
        head = net.conv(blocks[13], channels, f"MobilenetV1/{name}", result=moments)
        net.writer.output(head.ref)
