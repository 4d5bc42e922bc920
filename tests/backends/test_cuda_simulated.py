"""The CUDA backend does what every backend must, on a driver that computes on the CPU."""

from __future__ import annotations

import pytest

from backend_suite import *  # noqa: F403
from cuda_emulator import needs_emulator
from litegpu import backends
from litegpu.backends.base import Device
from simulated_cuda import put_in_place

pytestmark = needs_emulator


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    put_in_place(monkeypatch)
    return backends.BACKENDS["cuda"].open(0)
