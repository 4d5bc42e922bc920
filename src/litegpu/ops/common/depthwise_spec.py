"""The spec of a depthwise convolution, for its implementations."""

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
    """A depthwise convolution: each input channel has `multiplier` output channels.

    For quantized tensors, `input_zero` and the weights' zero point are subtracted; for constant
    weights in advance. Pixels outside the image then count as 0, as for floats. Constant weights
    [kh, kw, O] are `taps`; computed weights [1, kh, kw, O] are the value id `computed`. `bias` [O]
    is None if there is none, or if it is computed and therefore a separate epilogue op.
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
        """Whether it multiplies stored integers; sums are int32 and wrap around."""
        return register_of(self.src.dtype) is not FLOAT

    @property
    def of_bytes(self) -> bool:
        """Whether the input's integers have 8 bits; subtracting a zero point makes them wider."""
        return self.src.dtype in BYTES

    @property
    def flops(self) -> int:
        kh, kw = self.window.kernel
        return 2 * self.dst.rows * kh * kw * self.dst.channels
