"""FULLY_CONNECTED of floats and 4-bit weights: imitates the CPU's kernel for larger matrices.

The CPU's kernel adds 7 to each weight, so that all weights are 0 to 14. The CPU's kernel then
subtracts the effect of the offset 7 from the sums in float32, with rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, DType, EpilogueOp, Node, Value
from litegpu.host.large_arrays import LEAST
from litegpu.ops.base import NewValue
from litegpu.ops.common.window import POINT
from litegpu.ops.exact.float_rows import FloatRows
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes

_ADDED = 7
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


def excess(rows: FloatRows, stored: int, like: Node) -> tuple[int, Node]:
    """Return the value id of the correction for the added 7, and the node that computes it.

    The correction [..., 1] has one element per row of `stored`: -7 times the sum of the row's
    bytes, times the row's scale. `like` is the node of the product.
    """
    inputs = rows.source.shape[-1]
    shape = (1, 1, 1, inputs)
    weights = rows.new_value(shape, np.full(shape, -_ADDED, np.int8), dtype=DType.INT8)
    found = rows.new_value((*rows.source.shape[:-1], 1), dtype=DType.FLOAT32, precise=True)
    one = rows.new_value((), np.array(1, np.float32))
    attributes = QuantizedConvAttributes(POINT, weights, ABSENT, shape, 1, 0, 0)
    epilogue = (EpilogueOp("SCALE_SUM", (rows.scale, one)),)
    node = replace(
        like,
        op=QUANTIZED_CONV,
        inputs=(stored,),
        outputs=(found,),
        attributes=attributes,
        epilogue=epilogue,
    )
    return found, node
