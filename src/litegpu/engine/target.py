"""Properties of device and precision on which kernel selection depends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from litegpu.backends.base import DeviceInfo
from litegpu.backends.failures import Failures
from litegpu.device_model import DeviceModel
from litegpu.kernels.base import outline
from litegpu.numeric_policy import NumericPolicy

_ITEMS_PER_UNIT = 256
"""Number of work items per compute unit of a GPU that is sufficient to hide memory latency."""


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """The device and numeric policy of a kernel selection, as litegpu.ops.base.Target.

    `noting`: whether kernels record the range of values that they store as half. `failures`:
    implementations that failed on the device before.
    """

    info: DeviceInfo
    policy: NumericPolicy
    noting: bool = False
    failures: Failures = field(default_factory=Failures)

    @property
    def backend(self) -> str:
        return self.info.backend

    @property
    def max_work_group_size(self) -> int:
        return self.info.max_work_group_size

    @property
    def local_memory_bytes(self) -> int:
        return self.info.local_memory_bytes

    @property
    def max_arguments(self) -> int:
        return self.info.max_arguments - self.noting

    @property
    def offset_alignment(self) -> int:
        return self.info.offset_alignment or self.info.buffer_alignment

    @property
    def parallel_items(self) -> int:
        """The number of work items that fill the device; one per core on a software device."""
        return self.info.compute_units * (1 if self.info.software else _ITEMS_PER_UNIT)

    @property
    def compute_units(self) -> int:
        return self.info.compute_units

    @property
    def fast_local_memory(self) -> bool:
        return self.info.fast_local_memory and not self.info.software

    @property
    def model(self) -> DeviceModel:
        return self.info.model

    def failure(self, implementation: str, spec: Any, *, general: bool) -> str:
        if not self.failures:
            return ""
        return self.failures.reason(implementation, outline(spec), general=general)
