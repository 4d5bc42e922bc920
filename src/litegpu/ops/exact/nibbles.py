"""FULLY_CONNECTED of floats by weights of 4 bits: the CPU has a kernel for larger matrices.

It adds 7 to each weight, so that all are 0 to 14, and takes what that adds to the sums off again in
floats, which is rounded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, DType, EpilogueOp, Node, Value
from litegpu.ops.base import NewValue
from litegpu.ops.common.window import POINT
from litegpu.ops.exact.float_rows import FloatRows
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes

_ADDED = 7
_LEAST_OUTPUTS, _LEAST_INPUTS = 4, 32
"""One block of what that kernel multiplies."""


def multiplies_nibbles(weights: Value) -> bool:
    """Whether the CPU multiplies by weights [O, I] as they are; of all others it makes bytes."""
    if weights.dtype is not DType.INT4:
        return False
    outputs, inputs = weights.shape
    return outputs >= _LEAST_OUTPUTS and inputs >= _LEAST_INPUTS and inputs % 2 == 0


def check_nibbles(weights: Value) -> str:
    """Refuse weights that are still negative after the addition."""
    if np.min(np.asarray(weights.data), initial=0) + _ADDED >= 0:
        return ""
    return "Some weights of 4 bits are -8, which the CPU takes for others."


def raised(weights: Value, new_value: NewValue) -> int:
    """Return the weights that are multiplied (a value id)."""
    data = np.asarray(weights.data).astype(np.int8) + np.int8(_ADDED)
    return new_value(weights.shape, data, dtype=DType.INT8)


def excess(rows: FloatRows, stored: int, like: Node) -> tuple[int, Node]:
    """Return what the addition adds to each row of `stored` bytes, with its sign turned.

    The value, [..., 1], is by the scales of the rows; `like` is the node of the product.
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
