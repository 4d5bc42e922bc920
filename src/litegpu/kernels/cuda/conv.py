"""Code shared by convolutions on tensor cores: common restrictions, and the launch of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import register_of
from litegpu.graph import Node
from litegpu.kernels.base import IN_MEMORY, Rejected
from litegpu.kernels.cuda.halves import padded
from litegpu.kernels.cuda.tiles import Tile
from litegpu.ops.base import KernelRequest, Target
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import Pair, Window
from litegpu.ops.quantized_conv import QuantizedConvSpec

_NEEDS_HALVES = Rejected("the kernel multiplies float16, but float32 is requested")


def obstacle(spec: ConvSpec, target: Target) -> Rejected | None:
    """Return why no kernel for tensor cores can compute a convolution; None if one can."""
    reason = spec.obstacle(target)
    return Rejected(reason) if reason else None


def obstacle_to_halves(spec: ConvSpec, target: Target) -> Rejected | None:
    """Return why kernels that split values into halves cannot compute a convolution."""
    if spec.depthwise is not None:
        return IN_MEMORY
    needs_halves = None if target.policy.uses_fp16 else _NEEDS_HALVES
    return obstacle(spec, target) or needs_halves


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """The properties that determine the tiles: the convolution, and its split operands."""

    image: Pair
    output: Pair
    batch: int
    channels: int
    outputs: int
    view: Window
    split_values: bool
    split_weights: bool

    @property
    def products(self) -> int:
        """Number of half-precision products per product of values."""
        return 1 + self.split_values + self.split_weights


@dataclass(frozen=True, slots=True)
class Packed:
    """Weights and bias [O] in a kernel's layout, padded to `columns` output channels.

    `back` has the same meaning as in Halves. `ones` is for sums of the input, which are needed if
    the weights have a zero point.
    """

    weights: npt.NDArray[np.uint32] | LazyArray
    back: npt.NDArray[np.float32] | None
    bias: npt.NDArray[np.float32] | npt.NDArray[np.int32] | None
    columns: int
    ones: npt.NDArray[np.uint32] | None = None


_OF_FLOATS = {"BYTES": False, "UNSIGNED": False, "WEIGHT_ZERO": 0, "OUTSIDE": 0}
"""Template variables of kernels that also support bytes, with the values of these variables for
floats.
"""


def conv_kernel(
    template: str,
    node: Node,
    spec: ConvSpec | QuantizedConvSpec,
    tile: Tile,
    target: Target,
    packed: Packed,
    variables: Mapping[str, Any],
    unit: Unit = Unit.FP16_MATRIX,
    products: int = 1,
) -> KernelRequest:
    """Return the launch of a tile; `variables` are the variables specific to the template.

    `products` is the number of products on `unit` per product of values.
    """
    dst, src = spec.dst, spec.src
    constants: dict[str, npt.NDArray[Any] | LazyArray] = {"weights": packed.weights}
    if packed.back is not None:
        constants["back"] = padded(packed.back, packed.columns)
    if packed.bias is not None:
        constants["bias"] = padded(packed.bias, packed.columns)
    if packed.ones is not None:
        constants["ones"] = packed.ones
    across, down = tile.blocks
    return KernelRequest(
        template=template,
        grid=(across * tile.threads, down, 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables={
            "SCALED_W": packed.back is not None,
            "has_bias": packed.bias is not None,
            "shared": tile.shared,
            **_OF_FLOATS,
            **spec.window.words(src.shape[1:3]),
            **variables,
        },
        shared=tile.shared.arrays,
        attributes=tile.attributes(target),
        destination=dst,
        work={unit: spec.flops},
        needed={"src": spec.window.elements_read(dst.rows, src.padded_channels)},
        products=products,
        accumulator=register_of(src.dtype),
    )
