"""L2_NORMALIZATION over the last axis, computed in float32 at both precisions."""

from __future__ import annotations

from litegpu.ops.base import register
from litegpu.ops.exact.rows import ExactL2Normalization
from litegpu.ops.softmax import Softmax


@register
class L2Normalization(Softmax):
    """Divides channels by the square root of the sum of their squares, which is at least 1e-6."""

    name = "L2_NORMALIZATION"
    max_version = 2
    cpu_bytes_per_second = 15e9
    reduced = ("sums",)
    exact_rows = ExactL2Normalization
