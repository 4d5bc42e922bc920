"""The spec of a convolution or matrix product with weights, for all its implementations."""

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
"""Number of channels that fill half of a tensor-core instruction, the minimum for tensor cores."""
MANY_ROWS = 4096
"""Number of pixels from which tensor cores are faster even if most columns of a tile are empty."""
SHORTEST_SUM = 16
"""Number of input channels that one instruction sums."""


@dataclass(frozen=True, slots=True)
class Expand:
    """A convolution that computes the input of a depthwise convolution on the fly."""

    window: Window
    weights: Floats
    """Weights [O, H, W, I] of the convolution."""
    bias: Floats | None
    epilogue: tuple[EpilogueOp, ...]
    shape: tuple[int, int, int, int]
    """Shape [N, H, W, O] of the convolution's output."""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution that computes the input of a pointwise convolution on the fly."""

    window: Window
    taps: Floats | None
    """Weights [kh, kw, channels]; None if the op computes the mean over the window."""
    bias: Floats | None
    epilogue: tuple[EpilogueOp, ...]
    shape: tuple[int, int, int, int]
    """Shape [N, H, W, C] of the depthwise convolution's output."""
    expand: Expand | None = None
    """The convolution that computes the input image on the fly; None if the image is in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvSpec:
    """A convolution, or a matrix product, which is a convolution with a 1x1 window over rows.

    `image` states whether the input has axes H and W for the window; matrix rows have no such axes.
    The optional `depthwise` convolution computes the input of this pointwise convolution from
    `src`.
    """

    src: Storage
    dst: Storage
    """The storage of the output, or of the output pixels that the kernel computes."""
    weights: Weights
    window: Window
    image: bool
    depthwise: Depthwise | None = None

    @property
    def array(self) -> Floats:
        """The constant weights [O, H, W, I]."""
        assert self.weights.array is not None
        return self.weights.array

    @property
    def keeps_rows(self) -> bool:
        """Whether output pixel p reads only pixel p of `src`.

        Input and output sizes differ if only a part of the output is computed, or if zero padding
        at the edges is not stored.
        """
        same = not self.image or self.dst.shape[:3] == self.src.shape[:3]
        return self.window.pointwise and same

    @property
    def is_large(self) -> bool:
        """Whether the convolution has enough pixels and weights for large tiles to be faster."""
        return rounding_pays(self.flops)

    def may_round(self, target: Target) -> bool:
        """Whether the policy permits rounding float32 values to float16."""
        return target.policy.may_round(self.flops // self.weights.siblings)

    @property
    def flops(self) -> int:
        return 2 * self.dst.rows * self.weights.elements

    def obstacle(self, target: Target) -> str:
        """Return why tensor cores cannot compute the convolution, or an empty text if they can."""
        if not target.model.tensor_cores:
            return "the device has no tensor cores"
        if self.weights.array is None:
            return "the weights are computed"
        outputs, *_, inputs = self.weights.shape
        if self.depthwise is not None:
            few = min(outputs, inputs) < FEWEST
            return "too few channels for tensor cores" if few else ""
        if self.weights.groups > 1:
            return "the convolution has groups of channels"
        if outputs < FEWEST and self.dst.rows < MANY_ROWS:
            return "too few channels for tensor cores"
        if self.weights.elements // max(outputs, 1) < SHORTEST_SUM:
            return "the sums are too short for tensor cores"
        return ""


def pixels_of(shape: tuple[int, int, int, int]) -> int:
    """Return the number of pixels of all images of a shape [N, H, W, C]."""
    return math.prod(shape[:3])
