"""The CUDA backend passes the conformance suite on a driver that computes on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from backend_suite import *  # noqa: F403
from backend_suite import ADD_ONE, CELL, FLOATS, GROUP, floats, kernel, launch, program, ready
from cuda_emulator import needs_emulator
from litegpu import backends
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings, HostBuffer
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.cuda.context import CUDAContext
from litegpu.backends.cuda.device import CUDADevice
from litegpu.backends.program import BufferRange, Launch
from simulated_cuda import put_in_place

pytestmark = needs_emulator


@pytest.fixture(params=[1 << 20, 0], ids=["early", "late"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose contexts stage inputs and outputs early, or when a run needs them."""
    monkeypatch.setattr("litegpu.backends.cuda.context._EARLY_BYTES", request.param)
    put_in_place(monkeypatch)
    return backends.BACKENDS["cuda"].open(0)


def test_device_memory_needs_no_pinned_buffers(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litegpu.backends.cuda.context._EARLY_BYTES", 0)
    built = program([kernel("add_one", ADD_ONE)], [launch("add_one", 1, 0)], [0], [1])
    source, target = device.allocate(CELL), device.allocate(CELL)
    source.write(floats())
    with contextlib.closing(ready(device, built)) as context:
        assert isinstance(context, CUDAContext)
        for bind in (context.bind, context.bind_cached):
            bind(Bindings((source,), (target,))).run()
            np.testing.assert_array_equal(target.read().view(np.float32), floats() + 1)
        assert [*context.inputs, *context.outputs] == [(0, CELL), (0, CELL)]
        result = np.zeros(FLOATS, np.float32)
        context.run(Bindings((source,), (HostBuffer.of(result),)))
        np.testing.assert_array_equal(result, floats() + 1)
        assert not context.inputs[0][0] and context.outputs[0][0]
        context.pinned()
        assert all(address for address, _ in (*context.inputs, *context.outputs))


def test_threads_upload_blocks_in_pieces(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a piece of pinned memory; nothing remains of it."""
    monkeypatch.setattr("litegpu.backends.cuda.buffers._UPLOAD_BYTES", CELL // 8 + 4)
    contents = [floats(seed).view(np.uint8) for seed in (1, 2, 3, 2, 4)]
    blocks = [ConstantBlock(CELL, partial(np.copy, each)) for each in contents]
    assert isinstance(device, CUDADevice)
    before = len(device.holders)
    uploaded = device.blocks.upload(blocks, device)
    assert uploaded[1] is uploaded[3] and len({*uploaded}) == 4
    for block, each in zip(uploaded, contents, strict=True):
        assert ctypes.string_at(block.handle, CELL) == each.tobytes()
    gc.collect()
    assert len(device.holders) == before + 4
    assert device.blocks.upload(blocks[:2], device) == uploaded[:2]
    del block, uploaded
    gc.collect()
    assert len(device.holders) == before


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
