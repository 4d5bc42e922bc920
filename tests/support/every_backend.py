"""Backends and devices for tests; conftest.py makes the fixtures known to all tests.

Tests are collected by the names of backends. Whether there is a device is asked when a test starts,
so that collecting tests opens no driver. A backend stands for its first device.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Generator, Iterable, Iterator
from unittest import mock

import pytest

import turns
from cuda_emulator import needs_emulator
from litegpu import backends
from litegpu.backends import BACKENDS
from litegpu.backends.base import Device, DeviceInfo
from paper_device import PaperDevice, on_paper
from simulated_cuda import SimulatedDriver, put_in_place

_Reason = Callable[[], str]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no module list devices while tests are collected."""

    def too_early() -> None:
        raise RuntimeError("list devices when a test runs, not when it is collected")

    with mock.patch.object(backends, "status", too_early):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test with the marker `needs` if its function gives a reason, or out of its turn."""
    for mark in item.iter_markers("needs"):
        missing: _Reason = mark.args[0]
        if reason := missing():
            pytest.skip(reason)
    if turns.waits(item.nodeid):
        pytest.skip(turns.NOT_ITS_TURN)
    if item.get_closest_marker("every_other"):
        assert isinstance(item, pytest.Function)
        skip_every_other(item)


def first_devices() -> list[DeviceInfo]:
    """Return the first device of each backend that has one, the preferred backend first."""
    found: dict[str, DeviceInfo] = {}
    for info in backends.list_devices():
        found.setdefault(info.backend, info)
    return list(found.values())


def present() -> list[str]:
    """Return the names of the backends that have a device, in alphabetical order."""
    return sorted(info.backend for info in first_devices())


def missing_device(backend: str) -> str:
    """Return why a test of a backend cannot run, or an empty text."""
    return "" if backend in present() else f"no device of {backend}"


def device_of(backend: str) -> DeviceInfo:
    """Return the first device of a backend; the test is skipped if there is none."""
    if reason := missing_device(backend):
        pytest.skip(reason)
    return next(info for info in first_devices() if info.backend == backend)


def open_device(backend: str) -> Device:
    """Open the first device of a backend; the test is skipped if there is none."""
    return backends.BACKENDS[backend].open(device_of(backend).index)


def needs_device(backend: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where a backend has no device."""
    return pytest.mark.needs.with_args(functools.partial(missing_device, backend))


def on_backends(names: Iterable[str]) -> pytest.MarkDecorator:
    """Return a mark that gives a test the name of each of these backends that has a device."""
    return pytest.mark.parametrize(
        "backend", [pytest.param(name, marks=needs_device(name)) for name in names]
    )


on_every_backend = on_backends(BACKENDS)
"""Gives a test the name of a backend; the test runs once for each that has a device."""


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> DeviceInfo:
    """Run a test on the first device of each backend."""
    return device_of(request.param)


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test on each backend; without an NVIDIA GPU, CUDA is the simulated driver."""
    if missing := missing_device(request.param):
        if request.param != "cuda" or needs_emulator.args[0]():
            pytest.skip(missing)
        skip_every_other(request.node)
        put_in_place(monkeypatch)
    elif device_of(request.param).software:
        skip_every_other(request.node)
    yield request.param
    gc.collect()


def skip_every_other(item: pytest.Function) -> None:
    """Skip half of the combinations of a test's parameters, like the squares of a chessboard.

    So each value of a parameter meets half of those of another. Parameters that are given together
    count once. Of a test's backends alone none is skipped.
    """
    indices = dict(item.callspec.indices)
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        for name in names[1:]:
            del indices[name.strip()]
    if not turns.ALL and indices.keys() != {"backend"} and sum(indices.values()) % 2:
        pytest.skip(turns.NOT_ITS_TURN)


@pytest.fixture
def null_device() -> Iterator[PaperDevice]:
    """Let a test's delegates plan for a device on paper: for tests that look at reports alone."""
    with on_paper() as device:
        yield device


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDriver]:
    """Return the simulated driver of CUDA, in place whatever there is."""
    yield put_in_place(monkeypatch)
    gc.collect()
