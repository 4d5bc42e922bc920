"""Memory stays flat over invokes and over interpreters that come and go.

Each measurement has a process of its own: what other tests freed would hide a leak.
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from every_backend import on_every_backend
from litegpu import GpuDelegate
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.runtime_abi import bridge
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, chain, convolution, interpreter, random, run

STATM = Path("/proc/self/statm")
pytestmark = pytest.mark.skipif(
    not STATM.exists(), reason="memory is read from /proc/self/statm, which only Linux has"
)
KIB = 1024
PAGE = 4096

INVOKES, INVOKE_TOLERANCE = 10_000, 512 * KIB
"""A leak of 53 bytes an invoke is found."""
CYCLES, CYCLE_TOLERANCE = 80, 880 * KIB
"""A leak of 11 KiB an interpreter is found; the allocator's own noise is some 150 KiB."""
RESIZES, RESIZE_TOLERANCE = 600, 6 * 1024 * KIB
"""A leak of 11 KiB a resize is found; PoCL's compiler adds up to 3 MiB, however many there are."""
WARM_UP, WARM_UP_CYCLES = 100, 50
"""Resizes, and interpreters, until allocator and driver have grown their pools."""


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
    return resident() - before


def small_interpreter() -> Any:
    delegate = GpuDelegate(min_nodes_per_partition=1)
    target = interpreter(chain(["ABS", CPU_ONLY], (1, 4, 4, 4)), delegate)
    assert delegate.report is not None and len(delegate.report.partitions) == 1
    return target


def cycle() -> None:
    """Create, use and drop an interpreter and its delegate."""
    run(small_interpreter(), random(1, 4, 4, 4))


def over_invokes() -> int:
    return growth(small_interpreter().invoke, INVOKES, warm_up=1000)


def over_interpreters() -> int:
    live = bridge.live_kernels()
    found = growth(cycle, CYCLES, warm_up=WARM_UP_CYCLES)
    assert bridge.live_kernels() == live
    return found


def over_resizes() -> int:
    writer = ModelWriter()
    writer.output(convolution(writer, writer.input((1, 4, 4, 3)), 5))  # each resize compiles it
    target = interpreter(writer.build(), GpuDelegate())
    sizes = [1, 2]

    def resize() -> None:
        sizes.reverse()
        target.resize_tensor_input(0, [sizes[0], 4, 4, 3])
        target.allocate_tensors()
        target.invoke()

    return growth(resize, RESIZES, warm_up=WARM_UP)


def over_leaking_invokes() -> int:
    alive: list[bytearray] = []
    real = PartitionKernel.invoke

    def leaky(self: PartitionKernel, context: int) -> None:
        alive.append(bytearray(53))
        real(self, context)

    with mock.patch.object(PartitionKernel, "invoke", leaky):
        return over_invokes()


def over_leaking_interpreters() -> int:
    alive: list[PartitionKernel] = []
    with mock.patch.object(PartitionKernel, "close", lambda self, *_: alive.append(self)):
        return growth(cycle, CYCLES, warm_up=WARM_UP_CYCLES)


SCENARIOS: Mapping[str, Callable[[], int]] = {
    scenario.__name__: scenario
    for scenario in (
        over_invokes,
        over_interpreters,
        over_resizes,
        over_leaking_invokes,
        over_leaking_interpreters,
    )
}


def measured(scenario: Callable[[], int], backend: str = "opencl") -> int:
    """Return the growth of a scenario in a process of its own, which looks at one backend only."""
    name = scenario.__name__
    code = f"import test_leaks as t; t.quiet(); print('grown', t.SCENARIOS['{name}']())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "LITEGPU_BACKEND": backend,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def quiet() -> None:
    """Stop warnings about the software device, one at each delegate."""
    logging.getLogger("litegpu").disabled = True


def test_invokes_leave_memory_flat() -> None:
    assert measured(over_invokes) < INVOKE_TOLERANCE


@on_every_backend
def test_interpreters_leave_memory_flat(backend: str) -> None:
    assert measured(over_interpreters, backend) < CYCLE_TOLERANCE


def test_resizing_leaves_memory_flat() -> None:
    assert measured(over_resizes) < RESIZE_TOLERANCE


def test_a_leak_in_invoke_is_found() -> None:
    """So that the tests above can fail."""
    assert measured(over_leaking_invokes) > INVOKE_TOLERANCE


def test_a_leak_of_partitions_is_found() -> None:
    assert measured(over_leaking_interpreters) > CYCLE_TOLERANCE
