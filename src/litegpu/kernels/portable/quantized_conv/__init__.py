"""Quantized convolutions in the portable dialect, with four products per instruction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT, round_up
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.nibble_words import HIGH_BITS, NIBBLES, pack_nibbles
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import DividedSums, divide_sums
from litegpu.ops.quantized_conv import QuantizedConvSpec

_ONES = 0x01010101
_FLIPS = 0x80808080 - (1 << 32)
"""A word in which the highest bit of each byte is set."""

_MAX_ROWS = 4
"""Maximum pixels per work item, which needs an int4 register per pixel."""
_MIDDLE = 8
"""The weight that a nibble of 0 stands for, counted from the smallest weight."""
_LONGEST_SUM = 1 << 16
"""Maximum terms of a sum of nibbles, which is 16 times as large: it must fit int32."""


class QuantizedConvSplit(Implementation):
    """A kernel whose work items divide each sum: for outputs too few to keep the device busy.

    Weights with at most 16 different values are stored in 4 bits.
    """

    name = "quantized_conv_split_k"
    general = True
    example = QuantizedConvExample((1, 1, 1, 1024), 11)

    def plan(self, spec: QuantizedConvSpec, target: Target) -> Plan | Rejected:
        dst = spec.dst
        if dst.rows * dst.channel_blocks * 4 > target.parallel_items:
            return Rejected("the output has enough elements to keep the device busy")
        rows = min(dst.rows, _MAX_ROWS)
        nibbles = _fits_nibbles(spec)
        _, height, width, depth = spec.weights.shape
        steps = height * width * -(-depth // (NIBBLES if nibbles else 4))
        found = divide_sums(-(-dst.rows // rows), rows, dst.channel_blocks, steps, target)
        return Rejected(found) if isinstance(found, str) else _SplitKPlan(spec, found, nibbles)


@dataclass(frozen=True, slots=True)
class _SplitKPlan(Plan):
    """The plan of divided sums. `nibbles`: whether weights are stored in 4 bits."""

    spec: QuantizedConvSpec
    sums: DividedSums
    nibbles: bool

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        sums, dst = self.sums, self.spec.dst
        spec, weights = self.spec, packed(self.spec, dst.channel_blocks)
        if self.nibbles:
            spec = _centered(spec)
            rows = spec.weights.reshape(len(spec.weights), -1)
            weights = pack_nibbles(rows, dst.channel_blocks)
        request = _request(node, spec, "quantized_conv_split_k", dst.channel_blocks, weights)
        return replace(
            request,
            grid=sums.grid(dst.channel_blocks, -(-dst.rows // sums.rows)),
            local=(sums.group, 1, 1),
            variables={
                **request.variables,
                **sums.words(),
                "NIBBLES": self.nibbles,
                "high_bits": HIGH_BITS,
            },
            shared=(("int4", "scratch", sums.rows * sums.group),),
        )


def _fits_nibbles(spec: QuantizedConvSpec) -> bool:
    """Whether 4 bits can store the weights, and words of 8 of them have inputs of one tap."""
    _, height, width, depth = spec.weights.shape
    if depth % NIBBLES or height * width * depth > _LONGEST_SUM:
        return False
    return int(spec.weights.max()) - int(spec.weights.min()) < 16


def _centered(spec: QuantizedConvSpec) -> QuantizedConvSpec:
    """Return an equal spec whose weights are -8 to 7."""
    low, high = int(spec.weights.min()), int(spec.weights.max())
    middle = 0 if low >= -_MIDDLE and high < _MIDDLE else low + _MIDDLE
    weights = (spec.weights - np.int16(middle)).astype(np.int8)
    return replace(spec, weights=weights, weight_zero=spec.weight_zero - middle)


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
        dst = self.spec.dst
        pixels, blocks = choose_tile(self.problem, ctx)
        written = round_up(dst.channel_blocks, blocks)
        weights = packed(self.spec, written)
        request = _request(node, self.spec, "quantized_conv", written, weights)
        return replace(
            request,
            grid=(written // blocks, -(-dst.rows // pixels), 1),
            variables={**request.variables, "PIXELS": pixels, "CHANNEL_BLOCKS": blocks},
        )


def _request(
    node: Node, spec: QuantizedConvSpec, template: str, channel_blocks: int, weights: LazyArray
) -> KernelRequest:
    """Return the request that both kernels share, without the work items.

    The kernels write `channel_blocks` blocks of output channels.
    """
    outputs = len(spec.bias)
    image = spec.src.shape[1:3]
    bias = np.zeros(channel_blocks * 4, np.int32)
    bias[:outputs] = spec.folded_bias
    return KernelRequest(
        template=template,
        grid=(1, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants={"weights": weights, "bias": bias},
        variables={
            **spec.window.words(image),
            **operand_words(spec),
            "padded": spec.window.leaves(image, spec.dst.shape[1:3]),
            "pointwise": spec.keeps_rows,
            "weight_blocks": channel_blocks,
            "groups": spec.groups,
            "group_outputs": outputs // spec.groups,
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


def packed(spec: QuantizedConvSpec, blocks: int) -> LazyArray:
    """Arrange [O, H, W, I] as [H, W, input block, output block, 4 outputs], words of 4 inputs."""
    outputs, height, width, depth = spec.weights.shape
    inputs = -(-depth // 4)

    def fill(out: npt.NDArray[np.int32]) -> None:
        whole = np.zeros((outputs, height, width, inputs * 4), np.int8)
        whole[..., :depth] = spec.weights
        words = whole.view(np.int32).transpose(1, 2, 3, 0)
        out.reshape(height, width, inputs, blocks * 4)[..., :outputs] = words

    return LazyArray(np.dtype(np.int32), height * width * inputs * blocks * 4, fill)
