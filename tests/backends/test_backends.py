"""The conformance suite, on every usable device."""

from __future__ import annotations

import pytest

from backend_suite import *  # noqa: F403
from every_backend import open_device, present
from litegpu.backends import BACKENDS
from litegpu.backends.base import Device


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_every_usable_device_is_tested() -> None:
    assert present(), "no device: install a driver, or PoCL (apt-get install pocl-opencl-icd)"
