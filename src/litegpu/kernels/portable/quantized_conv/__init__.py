"""Quantized convolutions in the portable dialect, with four products per instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT, round_up
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import QuantizedConvSpec

_ONES = 0x01010101
_FLIPS = 0x80808080 - (1 << 32)
"""A word in which the highest bit of each byte is set."""


class QuantizedConvPortable(Implementation):
    """A kernel whose work items compute tiles of pixels and blocks of 4 channels."""

    name = "quantized_conv"
    general = True
    example = QuantizedConvExample((1, 5, 5, 8), 6)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        shape = spec.weights.shape
        problem = TileProblem.of_conv(self.name, spec.dst, spec.src, shape, spec.groups)
        return _QuantizedPlan(spec, problem)


@dataclass(frozen=True, slots=True)
class _QuantizedPlan(Plan):
    """The plan of a quantized convolution: the properties that determine its tiles."""

    spec: QuantizedConvSpec
    problem: TileProblem

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec = self.spec
        pixels, blocks = choose_tile(self.problem, ctx)
        written = round_up(spec.dst.channel_blocks, blocks)
        outputs = len(spec.bias)
        image = spec.src.shape[1:3]
        bias = np.zeros(written * 4, np.int32)
        bias[:outputs] = spec.folded_bias
        return KernelRequest(
            template="quantized_conv",
            grid=(written // blocks, -(-spec.dst.rows // pixels), 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants={"weights": packed(spec, written), "bias": bias},
            variables={
                **spec.window.words(image),
                **operand_words(spec),
                "padded": spec.window.leaves(image, spec.dst.shape[1:3]),
                "pointwise": spec.keeps_rows,
                "weight_blocks": written,
                "groups": spec.groups,
                "group_outputs": outputs // spec.groups,
                "PIXELS": pixels,
                "CHANNEL_BLOCKS": blocks,
            },
            work={Unit.INT8_DOT: spec.flops},
            needed={"src": spec.window.elements_read(spec.dst.rows, spec.src.padded_channels)},
            accumulator=INT,
        )


def operand_words(spec: QuantizedConvSpec) -> dict[str, Any]:
    """Return the template variables for the operands: zero points and signedness of bytes."""
    depth = spec.weights.shape[3]
    inputs = -(-depth // 4)
    return {
        "input_blocks": inputs,
        "flips": _FLIPS if spec.flips else 0,
        "outside": INT.literal(_word(spec.input_zero)),
        "weight_zero": spec.weight_zero,
        "ones": _ONES,
        "last_ones": _ONES >> 8 * (4 * inputs - depth),
    }


def _word(byte: int) -> int:
    """Return a signed word with four copies of a signed byte."""
    return int(np.full(4, byte, np.int8).view(np.int32)[0])


def packed(spec: QuantizedConvSpec, blocks: int) -> npt.NDArray[np.int32]:
    """Arrange [O, H, W, I] as [H, W, input block, output block, 4 outputs], words of 4 inputs."""
    outputs, height, width, depth = spec.weights.shape
    inputs = -(-depth // 4)
    padded = np.zeros((blocks * 4, height, width, inputs * 4), np.int8)
    padded[:outputs, :, :, :depth] = spec.weights
    cut = padded.reshape(blocks, 4, height, width, inputs, 4).transpose(2, 3, 4, 0, 1, 5)
    return np.ascontiguousarray(cut).view(np.int32)
