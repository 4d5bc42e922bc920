"""The numeric policy of a partition: which values are rounded to float16, by their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QuantizedMode = Literal["exact", "float"]

_WEIGHTS_FACTOR = 32
"""Ratio of the minimum sizes for float16 storage: that of values to that of weights.

All work items read the weights, so float16 pays off for much smaller weights than values.
"""
_MIN_ROUNDED_OPERATIONS = 4e8
"""Minimum floating-point operations for which rounding float32 values to float16 pays off.

Below this number of operations, kernels split each value into two float16 parts, without a loss of
accuracy. On an H200, split products took 1.7 to 5 times as long as rounded products. Rounding loses
no accuracy if the policy stores all values as float16.
"""


def rounding_pays(operations: int) -> bool:
    """Whether a product has so many operations that rounding its operands makes it much faster."""
    return operations >= _MIN_ROUNDED_OPERATIONS


@dataclass(frozen=True, slots=True)
class NumericPolicy:
    """The precision in which a partition stores its values and multiplies.

    The sizes in a policy are in bytes of float32 arrays. docs/numerics.md has the cost of each
    rule.
    """

    fp16_storage_threshold: int | None
    """Minimum size in bytes of values that are stored as float16; None if no values are."""
    quantized: QuantizedMode = "exact"
    """The arithmetic of quantized tensors: integers, as on the CPU, or floats."""

    @property
    def uses_fp16(self) -> bool:
        """Whether values may be stored or multiplied as float16; else products use tf32 parts."""
        return self.fp16_storage_threshold is not None

    @property
    def title(self) -> str:
        """The name of the policy in reports.

        >>> NumericPolicy(0, "float").title
        'fp16 (all), quantized as float'
        """
        halves = "fp16 (all)" if self.stores_half(0) else "fp16"
        precision = halves if self.uses_fp16 else "fp32"
        return precision if self.quantized == "exact" else f"{precision}, quantized as float"

    @property
    def guards_range(self) -> bool:
        """Whether kernels detect float16 overflow where they round or split numbers."""
        return self.uses_fp16

    def stores_half(self, nbytes: int) -> bool:
        """Whether values of `nbytes` bytes are stored as float16."""
        return self.fp16_storage_threshold is not None and nbytes >= self.fp16_storage_threshold

    def keeps_fp32_weights(self, nbytes: int) -> bool:
        """Whether weights of `nbytes` bytes stay float32."""
        return not self.stores_half(nbytes * _WEIGHTS_FACTOR)

    def may_round(self, operations: int) -> bool:
        """Whether a product of `operations` operations may round its float32 values to float16."""
        return self.uses_fp16 and (self.stores_half(0) or rounding_pays(operations))


FP32 = NumericPolicy(None)
"""The policy that rounds nothing to float16."""
FP16 = NumericPolicy(8 << 20)
"""The policy that stores large values as float16: their kernels are limited by memory bandwidth.

Rounding every value reduces the accuracy: see docs/decisions/0001-half-storage.md.
"""
FP16_ALL = NumericPolicy(0)
"""The policy that stores all values as float16, to minimize memory."""
