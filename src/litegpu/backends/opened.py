"""The opened devices of an API: one per index and process, reopened after a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from litegpu.backends.base import Device
from litegpu.host.fork_safety import touch

_Device = TypeVar("_Device", bound=Device)


class OpenDevices(Generic[_Device]):
    """Opens each device once; reopens a lost device at the next request."""

    def __init__(self, title: str, opener: Callable[[int], _Device]) -> None:
        """Store the API's title and the function that opens the device with an index."""
        self._title = title
        self._opener = opener
        self._opening = threading.Lock()
        self.devices: dict[int, _Device] = {}
        """The open devices by index."""

    def get(self, index: int) -> _Device:
        """Return the device with an index.

        Raises ForkedProcessError in a forked child of the process that opened the API, and the
        errors of the opener.
        """
        touch(
            self._title
        )  # before the lock, which a thread of the parent may have held at the fork
        with self._opening:
            device = self.devices.get(index)
            if device is None or device.lost:
                before, device = device, self._opener(index)
                if before is not None:
                    device.failures = before.failures
                    device.failures.losses += 1
                self.devices[index] = device
            return device
