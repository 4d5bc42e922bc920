"""An operation of your own: ShuffleNet's channel shuffle, as a kernel template and a class.

python examples/custom_op.py --backend=opencl
"""

from __future__ import annotations

import argparse

import numpy as np
from flatbuffers import flexbuffers

import litegpu
from litegpu.zoo import ModelWriter

TEMPLATE = """{# Channel c of the result is one of the input, of group c % groups. #}
    const int s = GLOBAL_X;  // a block of 4 channels
    const int p = GLOBAL_Y;  // a row of channels: a pixel
    if (s >= {{ dst.channel_blocks }} || p >= {{ dst.rows }}) return;
    float4 value = SPLAT4(0.0f);
{% for lane in "xyzw" %}
    if (s * 4 + {{ loop.index0 }} < {{ dst.channels }}) {
        const int c = s * 4 + {{ loop.index0 }};
        const int from = c % {{ groups }} * {{ size }} + c / {{ groups }};
        value.{{ lane }} = {{ src.read1(at_row("p", src.shape), "from") }};
    }
{% endfor %}
{{ store("s", "value", row="p") }}
"""


@litegpu.register_op
class ChannelShuffle(litegpu.CustomOp):
    """Mixes the channels of groups."""

    name = "ChannelShuffle"
    template = TEMPLATE

    def check(self, node: litegpu.CustomNode) -> str:
        """Reject channels that groups do not divide."""
        channels, groups = node.inputs[0].shape[-1], node.options["groups"]
        return f"{groups} groups do not divide {channels} channels." if channels % groups else ""

    def launch(self, node: litegpu.CustomNode) -> litegpu.Launch:
        """Tell the template the groups, and the channels of each."""
        groups = node.options["groups"]
        size = node.inputs[0].shape[-1] // groups
        return litegpu.Launch(variables={"groups": groups, "size": size})


def model(groups: int = 3, shape: tuple[int, ...] = (1, 5, 4, 12)) -> bytes:
    """Return a small model that has the operation, between two of the runtime's."""
    writer = ModelWriter()
    x = writer.op("ABS", [writer.input(shape, name="x")], [shape])
    options = flexbuffers.Dumps({"groups": groups})
    (x,) = writer.custom("ChannelShuffle", [x], [shape], custom_options=bytes(options))
    writer.output(writer.op("NEG", [x], [shape]))
    return writer.build()


def main() -> None:
    """Run the model, and compare with NumPy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    backend = parser.parse_args().backend
    x = np.random.default_rng(0).normal(size=(1, 5, 4, 12)).astype(np.float32)
    expected = -np.abs(x).reshape(1, 5, 4, 3, 4).swapaxes(3, 4).reshape(x.shape)
    with litegpu.CompiledModel.from_buffer(model(), backend=backend) as compiled:
        print(compiled.report)
        print("largest difference from NumPy:", np.abs(compiled(x) - expected).max())


if __name__ == "__main__":
    main()
