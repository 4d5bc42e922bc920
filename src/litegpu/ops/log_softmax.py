"""LOG_SOFTMAX over the last axis, computed in float32 at both precisions."""

from __future__ import annotations

from litegpu.ops.base import register
from litegpu.ops.common.types import FLOATS
from litegpu.ops.exact.rows import ExactLogSoftmax
from litegpu.ops.softmax import Softmax


@register
class LogSoftmax(Softmax):
    """Computes the logarithm of softmax over the channels."""

    name = "LOG_SOFTMAX"
    max_version = 2
    cpu_bytes_per_second = 5e9
    takes = (FLOATS,)
    exact_rows = ExactLogSoftmax
