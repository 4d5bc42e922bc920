"""What a depthwise convolution is to compute, as its implementations read it."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.codegen import Storage
from litegpu.graph import ABSENT
from litegpu.ops.weights import Floats
from litegpu.ops.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class DepthwiseSpec:
    """A convolution in which each input channel makes `multiplier` output channels of its own.

    Constant weights [kh, kw, O] are `taps`; computed ones [1, kh, kw, O] lie in the value
    `computed`. `bias` [O] is None when there is none, and when it is computed: then it has become a
    step of its own.
    """

    src: Storage
    dst: Storage
    window: Window
    taps: Floats | None
    bias: Floats | None
    computed: int = ABSENT

    @property
    def multiplier(self) -> int:
        return self.dst.channels // self.src.channels

    @property
    def flops(self) -> int:
        kh, kw = self.window.kernel
        return 2 * self.dst.rows * kh * kw * self.dst.channels
