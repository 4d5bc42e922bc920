"""The CUDA backend passes the conformance suite on a driver that computes on the CPU."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from backend_suite import *  # noqa: F403
from backend_suite import ADD_ONE, CELL, FLOATS, GROUP, floats, kernel, program, ready
from cuda_emulator import needs_emulator
from litegpu import backends
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings
from litegpu.backends.program import BufferRange, Launch
from simulated_cuda import put_in_place

pytestmark = needs_emulator


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    put_in_place(monkeypatch)
    return backends.BACKENDS["cuda"].open(0)


def test_arguments_begin_in_the_middle_of_memory_that_is_bound(device: Device) -> None:
    """As those of kernels that read and write parts of an input and of an output."""
    middle = CELL // 4
    parts = [BufferRange(False, n * CELL + middle, CELL - middle) for n in (1, 0)]
    launched = Launch("add_one", tuple(parts), (128, 1, 1), GROUP)
    built = replace(
        program([kernel("add_one", ADD_ONE)], [launched], [0], [1]),
        readers={0: ((0, 1),)},
        sole_writers={0: (0, 0)},
    )
    x, wanted = floats(), np.full(FLOATS, -7, np.float32)
    wanted[FLOATS // 4 : FLOATS // 4 + 512] = x[FLOATS // 4 : FLOATS // 4 + 512] + 1
    source, target = device.allocate(CELL), device.allocate(CELL)
    source.write(x)
    target.write(np.full(FLOATS, -7, np.float32))
    with contextlib.closing(ready(device, built)) as context:
        context.bind_cached(Bindings((source,), (target,))).run()
    np.testing.assert_array_equal(target.read().view(np.float32), wanted)
