"""The spec of a dense sum over channels, for all its implementations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.codegen import Storage
from litegpu.graph import EpilogueOp
from litegpu.numeric_policy import rounding_pays
from litegpu.ops.base import Target
from litegpu.ops.common.weights import Floats, Weights
from litegpu.ops.common.window import Window

FEWEST = 8
"""Channels that fill half an instruction: the idle half then costs less than another launch."""
MANY_ROWS = 4096
"""Number of pixels from which on other kernels are slower even if most columns of a tile are empty.
"""
SHORTEST_SUM = 16
"""Inputs that one instruction sums."""


@dataclass(frozen=True, slots=True)
class Expand:
    """A convolution computed on the fly as the image of a depthwise one."""

    window: Window
    weights: Floats
    """[O, H, W, I]"""
    bias: Floats | None
    epilogue: tuple[EpilogueOp, ...]
    shape: tuple[int, int, int, int]
    """Its output [N, H, W, O]."""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution computed on the fly as the operand of a pointwise one."""

    window: Window
    taps: Floats | None
    """Weights [kh, kw, channels]; None: it is a mean over the window."""
    bias: Floats | None
    epilogue: tuple[EpilogueOp, ...]
    shape: tuple[int, int, int, int]
    """Its output [N, H, W, C]."""
    expand: Expand | None = None
    """The convolution that computes its image, if that is not in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvSpec:
    """A convolution, or a product with one matrix: a window of 1x1 over its rows.

    `image`: the window moves over H and W; the rows of a matrix have neither. `depthwise` computes
    the operand of a pointwise convolution from `src`.
    """

    src: Storage
    dst: Storage
    """The storage of the output, or of the pixels to compute."""
    weights: Weights
    window: Window
    image: bool
    depthwise: Depthwise | None = None

    @property
    def array(self) -> Floats:
        """The weights [O, H, W, I] if they are constant."""
        assert self.weights.array is not None
        return self.weights.array

    @property
    def keeps_rows(self) -> bool:
        """Whether output pixel p reads only pixel p of `src`.

        A part of an output, or one whose zeros at the edges are not in memory, may have another
        height or width than its input.
        """
        same = not self.image or self.dst.shape[:3] == self.src.shape[:3]
        return self.window.pointwise and same

    @property
    def is_large(self) -> bool:
        """Whether it has enough pixels and weights for large tiles to be faster."""
        return rounding_pays(self.flops)

    def may_round(self, target: Target) -> bool:
        """Whether float32 values may be rounded to half."""
        return target.policy.may_round(self.flops // self.weights.siblings)

    @property
    def flops(self) -> int:
        return 2 * self.dst.rows * self.weights.elements

    def obstacle(self, target: Target) -> str:
        """Return the reason why no kernel computes it on tensor cores, or ""."""
        if not target.model.tensor_cores:
            return "the device has no tensor cores"
        if self.weights.array is None:
            return "the weights are computed"
        outputs, *_, inputs = self.weights.shape
        if self.depthwise is not None:
            few = min(outputs, inputs) < FEWEST
            return "too few channels for tensor cores" if few else ""
        if self.weights.groups > 1:
            return "it multiplies groups of channels"
        if outputs < FEWEST and self.dst.rows < MANY_ROWS:
            return "too few channels for tensor cores"
        if self.weights.elements // max(outputs, 1) < SHORTEST_SUM:
            return "its sums are too short for tensor cores"
        return ""


def pixels_of(shape: tuple[int, int, int, int]) -> int:
    """Return the pixels of all images of a shape [N, H, W, C]."""
    return math.prod(shape[:3])
