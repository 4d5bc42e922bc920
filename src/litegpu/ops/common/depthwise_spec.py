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

    For quantized tensors, the kernel subtracts `input_zero` and the weights' zero point. The zero
    point of constant weights is subtracted in advance. After the subtraction, pixels outside the
    image count as 0, as for floats. `taps` has constant weights [kh, kw, O]; `computed` is the
    value id of computed weights [1, kh, kw, O]. `bias` [O] is None if the node has no bias, or if
    an epilogue op adds a computed bias.
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
        """Whether the convolution multiplies stored integers; int32 sums wrap around."""
        return register_of(self.src.dtype) is not FLOAT

    @property
    def of_bytes(self) -> bool:
        """Whether the input has 8-bit integers; the difference to a zero point needs more bits."""
        return self.src.dtype in BYTES

    @property
    def flops(self) -> int:
        kh, kw = self.window.kernel
        return 2 * self.dst.rows * kh * kw * self.dst.channels
