"""FULLY_CONNECTED of floats and 4-bit weights: imitates the CPU's kernel for larger matrices.

The CPU's kernel adds 7 to each weight, so that all weights are 0 to 14. The CPU's kernel then
subtracts the effect of the offset 7 from the sums in float32, with rounding.
"""

from __future__ import annotations

import numpy as np

from litegpu.graph import DType, Value
from litegpu.host.large_arrays import LEAST
from litegpu.ops.base import NewValue

_ADDED = 7
SUBTRACTED = -_ADDED
"""The CPU subtracts the added 7 as this number times the sum of a row's bytes, times its scale."""
_MIN_OUTPUTS, _MIN_INPUTS = 4, 32
"""The minimum number of outputs and inputs for which the CPU uses its 4-bit kernel."""


def multiplies_nibbles(weights: Value) -> bool:
    """Whether the CPU multiplies weights [O, I] as 4-bit integers instead of unpacked int8."""
    if weights.dtype is not DType.INT4:
        return False
    outputs, inputs = weights.shape
    return outputs >= _MIN_OUTPUTS and inputs >= _MIN_INPUTS and inputs % 2 == 0


def check_nibbles(weights: Value) -> str:
    """Reject weights that remain negative after 7 is added."""
    if LEAST.of(np.asarray(weights.data)) + _ADDED >= 0:
        return ""
    return "Some weights of 4 bits are -8, which the CPU's kernel computes incorrectly."


def raised(weights: Value, new_value: NewValue) -> int:
    """Return the value id of the weights with 7 added, as int8."""
    data = np.asarray(weights.data).astype(np.int8) + np.int8(_ADDED)
    return new_value(weights.shape, data, dtype=DType.INT8)
