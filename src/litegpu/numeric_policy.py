"""The numeric policy of a partition: what may be rounded, and from which size on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QuantizedMode = Literal["exact", "float"]

_WEIGHTS_FACTOR = 32
"""Ratio of the sizes from which values and weights are stored as half.

All work items read the weights, so half pays for them far earlier than for values.
"""
_MIN_ROUNDED_OPERATIONS = 4e8
"""Minimum floating-point operations for which rounding float32 values to half pays off.

Below, the kernels for few pixels split each value in two halves and lose nothing: on an H200 that
took 1.7 to 5 times as long. Where all is stored as half anyway, nothing is lost here either.
"""


def rounding_pays(operations: int) -> bool:
    """Whether a product is so large that rounding its operands makes it much faster."""
    return operations >= _MIN_ROUNDED_OPERATIONS


@dataclass(frozen=True, slots=True)
class NumericPolicy:
    """In which precision a partition stores its values and multiplies.

    Sizes are those of arrays as float32, in bytes. What each rule costs: docs/numerics.md.
    """

    fp16_storage_threshold: int | None
    """Bytes from which values are stored as half; None: none are."""
    quantized: QuantizedMode = "exact"
    """How quantized tensors are computed: in integers, as on the CPU, or as floats."""

    @property
    def uses_fp16(self) -> bool:
        """Whether values may be stored or multiplied as half; otherwise products use tf32 parts."""
        return self.fp16_storage_threshold is not None

    @property
    def title(self) -> str:
        """The name of the policy, for reports.

        >>> NumericPolicy(0, "float").title
        'fp16 (all), quantized as float'
        """
        halves = "fp16 (all)" if self.stores_half(0) else "fp16"
        precision = halves if self.uses_fp16 else "fp32"
        return precision if self.quantized == "exact" else f"{precision}, quantized as float"

    @property
    def guards_range(self) -> bool:
        """Whether overflow of half is detected where numbers are rounded or split."""
        return self.uses_fp16

    def stores_half(self, nbytes: int) -> bool:
        """Whether values of `nbytes` bytes are stored as half."""
        return self.fp16_storage_threshold is not None and nbytes >= self.fp16_storage_threshold

    def keeps_fp32_weights(self, nbytes: int) -> bool:
        """Whether weights of `nbytes` bytes keep their full precision."""
        return not self.stores_half(nbytes * _WEIGHTS_FACTOR)

    def may_round(self, operations: int) -> bool:
        """Whether a product of `operations` operations may round its float32 values to half."""
        return self.uses_fp16 and (self.stores_half(0) or rounding_pays(operations))


FP32 = NumericPolicy(None)
"""Nothing is rounded to half."""
FP16 = NumericPolicy(8 << 20)
"""Large values are stored as half: those whose kernels are limited by memory.

Rounding every value costs accuracy: see docs/decisions/0001-half-storage.md.
"""
FP16_ALL = NumericPolicy(0)
"""All values are stored as half, for the least memory."""
