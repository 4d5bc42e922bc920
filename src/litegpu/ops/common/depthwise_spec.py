"""What a depthwise convolution is to compute, as its implementations read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import FLOAT, Storage, register_of
from litegpu.graph import ABSENT
from litegpu.ops.common.types import BYTES
from litegpu.ops.common.weights import Floats
from litegpu.ops.common.window import Window

Integers = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class DepthwiseSpec:
    """A convolution in which each input channel makes `multiplier` output channels of its own.

    Of stored integers, `input_zero` and the zero point of the weights are taken off, that of the
    constant weights already; what lies outside the image counts as 0 then, as it does of floats.
    Constant weights [kh, kw, O] are `taps`; computed ones [1, kh, kw, O] lie in the value
    `computed`. `bias` [O] is None when there is none, and when it is computed: then it has become a
    step of its own.
    """

    src: Storage
    dst: Storage
    window: Window
    taps: Floats | Integers | None
    bias: Floats | Integers | None
    computed: int = ABSENT
    input_zero: int = 0

    @property
    def multiplier(self) -> int:
        return self.dst.channels // self.src.channels

    @property
    def of_integers(self) -> bool:
        """Whether stored integers are multiplied, whose sums are int32 and wrap."""
        return register_of(self.src.dtype) is not FLOAT

    @property
    def of_bytes(self) -> bool:
        """Whether these are bytes; without a zero point of their row they are not any more."""
        return self.src.dtype in BYTES

    @property
    def flops(self) -> int:
        kh, kw = self.window.kernel
        return 2 * self.dst.rows * kh * kw * self.dst.channels
