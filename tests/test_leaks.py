"""Memory stays flat over invokes and over interpreters that come and go."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from litegpu import GpuDelegate
from litegpu.partition_kernel import PartitionKernel
from litegpu.runtime_abi import bridge
from small_models import CPU_ONLY, chain, fully_convolutional, interpreter, random, run

STATM = Path("/proc/self/statm")
pytestmark = pytest.mark.skipif(
    not STATM.exists(), reason="memory is read from /proc/self/statm, which only Linux has"
)
KIB = 1024
PAGE = 4096

INVOKES, INVOKE_TOLERANCE = 10_000, 512 * KIB
"""A leak of 53 bytes an invoke is found."""
CYCLES, CYCLE_TOLERANCE = 200, 2048 * KIB
"""A leak of 11 KiB an interpreter is found; the allocator's own noise is some 400 KiB."""


def resident() -> int:
    """Return the bytes of memory that this process occupies."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * PAGE


def growth(action: Callable[[], Any], times: int, warm_up: int) -> int:
    """Return by how many bytes the process grows while `action` runs; warmed up first."""
    for _ in range(warm_up):
        action()
    before = resident()
    for _ in range(times):
        action()
    print("GROWTH", (g := resident() - before))
    return g


@pytest.fixture(autouse=True)
def _no_log_records_that_pytest_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("litegpu"), "disabled", True)


def small_interpreter() -> Any:
    delegate = GpuDelegate()
    target = interpreter(chain(["ABS", CPU_ONLY], (1, 4, 4, 4)), delegate)
    assert delegate.report is not None and len(delegate.report.partitions) == 1
    return target


def cycle() -> None:
    """Create, use and drop an interpreter and its delegate."""
    run(small_interpreter(), random(1, 4, 4, 4))


def test_invokes_leave_memory_flat() -> None:
    assert growth(small_interpreter().invoke, INVOKES, warm_up=1000) < INVOKE_TOLERANCE


def test_interpreters_leave_memory_flat() -> None:
    live = bridge.live_kernels()
    assert growth(cycle, CYCLES, warm_up=20) < CYCLE_TOLERANCE
    assert bridge.live_kernels() == live


def test_resizing_leaves_memory_flat() -> None:
    target = interpreter(fully_convolutional((1, 4, 4, 3)), GpuDelegate())
    sizes = [1, 2]

    def resize() -> None:
        sizes.reverse()
        target.resize_tensor_input(0, [sizes[0], 4, 4, 3])
        target.allocate_tensors()
        target.invoke()

    assert growth(resize, CYCLES, warm_up=20) < CYCLE_TOLERANCE


def test_a_leak_in_invoke_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail."""
    kept: list[bytearray] = []
    real = PartitionKernel.invoke

    def leaky(self: PartitionKernel, context: int) -> None:
        kept.append(bytearray(53))
        real(self, context)

    monkeypatch.setattr(PartitionKernel, "invoke", leaky)
    assert growth(small_interpreter().invoke, INVOKES, warm_up=1000) > INVOKE_TOLERANCE


def test_a_leak_of_partitions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[PartitionKernel] = []
    monkeypatch.setattr(PartitionKernel, "close", lambda self: kept.append(self))
    try:
        assert growth(cycle, CYCLES // 2, warm_up=20) > CYCLE_TOLERANCE
    finally:
        monkeypatch.undo()
        for kernel in kept:
            kernel.close()
