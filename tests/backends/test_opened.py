"""Each device is opened once per process, and again after a loss; needs no GPU."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu import ForkedProcessError, UnsupportedDeviceError, backends
from litegpu.backends import base
from litegpu.backends.failures import Failures
from litegpu.backends.opened import OpenDevices
from litegpu.host import fork_safety as process
from paper_device import PaperDevice


@pytest.fixture(autouse=True)
def nothing_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_openers", {})


@pytest.fixture
def other_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Returns a function that makes this process look like its own forked child."""
    yield lambda: monkeypatch.setattr(os, "getpid", lambda: -1)


def opener(opened: list[int]) -> Any:
    def open_device(index: int) -> Any:
        opened.append(index)
        return SimpleNamespace(lost=False, failures=Failures())

    return open_device


def test_a_device_is_opened_once() -> None:
    opened: list[int] = []
    devices = OpenDevices("Fake", opener(opened))
    assert devices.get(0) is devices.get(0)
    assert devices.get(1) is not devices.get(0)
    assert opened == [0, 1]


def test_a_lost_device_is_opened_anew() -> None:
    devices = OpenDevices("Fake", opener([]))
    first = devices.get(0)
    first.lost = True
    second = devices.get(0)
    assert second is not first
    assert devices.get(0) is second


def test_threads_find_the_same_failures_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Implementations that one thread excludes after a loss are excluded for the other thread."""
    both = threading.Barrier(2)

    def make() -> Failures:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(5)
        return Failures()

    monkeypatch.setattr(base, "Failures", make)
    device = PaperDevice()
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda _: device.failures, range(2))]
    assert found[0] is found[1] is device.failures


def test_a_device_that_fails_to_open_is_tried_again() -> None:
    attempts: list[int] = []

    def open_device(index: int) -> Any:
        attempts.append(index)
        if len(attempts) == 1:
            raise UnsupportedDeviceError("asleep")
        return SimpleNamespace(lost=False, failures=Failures())

    devices: OpenDevices[Any] = OpenDevices("Fake", open_device)
    with pytest.raises(UnsupportedDeviceError, match="asleep"):
        devices.get(0)
    assert not devices.get(0).lost


def test_threads_get_the_same_device() -> None:
    opened: list[int] = []

    def slow(index: int) -> Any:
        time.sleep(0.05)
        return opener(opened)(index)

    devices: OpenDevices[Any] = OpenDevices("Fake", slow)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(devices.get(0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [0]
    assert found == [found[0]] * 4


def test_the_child_of_a_process_that_opened_a_device(other_process: Callable[[], None]) -> None:
    devices = OpenDevices("Fake", opener([]))
    devices.get(0)
    with devices._opening:  # as a thread of the parent held it
        other_process()
        with pytest.raises(ForkedProcessError, match=r"Fake was opened before .*'spawn'"):
            devices.get(0)
    with pytest.raises(ForkedProcessError, match="Fake was opened before"):
        process.refuse_if_forked()


def test_the_child_of_a_process_that_opened_nothing(other_process: Callable[[], None]) -> None:
    devices = OpenDevices("Fake", opener([]))
    other_process()
    process.refuse_if_forked()
    devices.get(0)


class Touched:
    """A backend whose API was opened in the parent process."""

    name, title, extra = "touched", "Touched", "touched"

    def devices(self) -> list[Any]:
        process.touch(self.title)
        return []


def test_where_all_apis_were_opened_by_the_parent_the_choice_says_so(
    monkeypatch: pytest.MonkeyPatch, other_process: Callable[[], None]
) -> None:
    monkeypatch.delenv("LITEGPU_BACKEND", raising=False)
    monkeypatch.setattr(backends, "BACKENDS", {"touched": Touched()})
    assert backends.list_devices() == []
    other_process()
    (status,) = backends.status()
    assert "Touched was opened before this process was forked" in status.reason
    with pytest.raises(ForkedProcessError, match="get_context"):
        backends.select(None, None)
