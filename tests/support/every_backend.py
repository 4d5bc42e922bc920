"""A fixture that runs a test on each backend; conftest.py makes it known to all tests.

CUDA is an NVIDIA GPU where there is one, else the simulated driver with the tests' emulator.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cuda_emulator import needs_emulator
from litegpu.backends import list_devices
from simulated_cuda import SimulatedDriver, put_in_place

REAL = sorted({each.backend for each in list_devices()})
"""The backends that have a device here."""
_SIMULATED = [] if "cuda" in REAL else [pytest.param("cuda", marks=needs_emulator)]


@pytest.fixture(params=[*REAL, *_SIMULATED])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param not in REAL:
        put_in_place(monkeypatch)
    yield request.param
    gc.collect()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDriver]:
    """Return the simulated driver of CUDA, in place whatever there is."""
    yield put_in_place(monkeypatch)
    gc.collect()
