"""Quantized transposed convolutions in the portable dialect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.codegen import INT, round_up
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.kernels.portable.quantized_conv import operand_words, packed
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.units import Unit
from litegpu.ops.quantized_conv import Sums
from litegpu.ops.quantized_transpose_conv import QuantizedTransposeSpec


class QuantizedTransposePortable(Implementation):
    """A kernel whose work items gather the inputs of pixels one stride apart.

    Pixels one stride apart use the same weights.
    """

    name = "quantized_transpose_conv"
    general = True
    example = QuantizedConvExample((1, 5, 5, 8), 6, kernel=2, times=2)

    def plan(self, spec: QuantizedTransposeSpec, target: Target) -> Plan | Rejected:
        view, dst = spec.window, spec.dst
        terms = (*view.kernel, *view.stride, spec.weights.shape[3])
        problem = TileProblem(self.name, dst.rows, dst.channel_blocks, terms, spec.src.dtype.value)
        return _TransposePlan(spec, problem)


@dataclass(frozen=True, slots=True)
class _TransposePlan(Plan):
    """The plan of a transposed convolution: the properties that determine its tiles."""

    spec: QuantizedTransposeSpec
    problem: TileProblem

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        spec, view, dst = self.spec, self.spec.window, self.spec.dst
        n, height, width, _ = dst.shape
        step = view.stride[1]
        most = -(-width // step)
        pixels, blocks = choose_tile(self.problem, ctx)
        pixels = min(pixels, most)
        columns = -(-most // pixels) * step
        written = round_up(dst.channel_blocks, blocks)
        taps = -(-view.kernel[0] // view.stride[0]) * -(-view.kernel[1] // step)
        outputs, *_, depth = spec.weights.shape
        return KernelRequest(
            template="quantized_transpose_conv",
            # The third grid dimension is limited to 65535 work groups.
            grid=(written // blocks, columns * n * height, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants={"weights": packed(spec, written), "bias": _biases(spec, written * 4)},
            variables={
                **operand_words(spec),
                "PIXELS": pixels,
                "CHANNEL_BLOCKS": blocks,
                "columns": columns,
                "kernel": view.kernel,
                "stride": view.stride,
                "pads": view.pads,
                "weight_blocks": written,
            },
            work={Unit.INT8_DOT: 2 * dst.rows * outputs * depth * taps},
            accumulator=INT,
        )


def _biases(spec: QuantizedTransposeSpec, channels: int) -> Sums:
    """Return the bias [stride y, stride x, channels], which differs by position like the taps."""
    rows, columns = spec.window.stride
    found = np.zeros((rows, columns, channels), np.int32)
    for y in range(rows):
        for x in range(columns):
            found[y, x, : len(spec.bias)] = spec.folded(spec.weights[:, y::rows, x::columns])
    return found
