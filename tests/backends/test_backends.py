"""The conformance suite, on every device that is usable here."""

from __future__ import annotations

import pytest

from backend_suite import *  # noqa: F403
from litegpu import backends
from litegpu.backends.base import Device

FOUND = backends.list_devices()


@pytest.fixture(params=FOUND, ids=[info.title.split()[0] for info in FOUND])
def device(request: pytest.FixtureRequest) -> Device:
    info = request.param
    return backends.BACKENDS[info.backend].open(info.index)


def test_every_usable_device_is_tested() -> None:
    assert FOUND, "no device: install a driver, or PoCL (apt-get install pocl-opencl-icd)"
