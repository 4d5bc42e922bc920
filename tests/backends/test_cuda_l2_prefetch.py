"""Prefetches of constants into the L2 cache by CUDA kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from litegpu import GpuDelegate
from litegpu.backends.cuda.l2_prefetch import prefetch_bytes, prefetch_ranges
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo import resolve_model
from simulated_cuda import SimulatedDriver, put_in_place

WEIGHTS = [BufferRange(True, 1 << 20 * number, 1 << 20) for number in range(4)]


def program(memory_bytes: int) -> Program:
    """Return a program of which all launches but the second have weights and a smaller bias."""
    rows = ((part, BufferRange(True, 0, 64), BufferRange(False, 0, 9 << 20)) for part in WEIGHTS)
    ranges = [row if number != 1 else row[2:] for number, row in enumerate(rows)]
    launches = tuple(Launch("kernel", each, (1, 1, 1), (1, 1, 1)) for each in ranges)
    constants = np.zeros(4 << 20, np.uint8)
    return Program((), launches, memory_bytes, constants, (), ())


def test_the_largest_constants_of_the_launch_after_the_next_one() -> None:
    assert prefetch_ranges(program(1 << 20), 1 << 20) == [*WEIGHTS[2:], None, None]
    assert prefetch_ranges(program(0), (8 << 20) - 1) == [*WEIGHTS[2:], None, None]


def test_nothing_where_values_are_more_than_constants() -> None:
    assert prefetch_ranges(program((4 << 20) + 1), 1 << 20) == [None] * 4


def test_nothing_where_a_run_finds_all_in_the_cache() -> None:
    assert prefetch_ranges(program(0), 8 << 20) == [None] * 4


def test_a_single_launch_has_nothing_after_it() -> None:
    whole = program(1 << 20)
    alone = Program((), whole.launches[:1], 1 << 20, whole.constants, (), ())
    assert prefetch_ranges(alone, 0) == [None]


@pytest.mark.parametrize(
    ("size", "blocks", "part"),
    [(4096, (2, 4, 1), 512), (4100, (3, 1, 1), 1360), (90, (6, 1, 1), 0)],
)
def test_blocks_share_out_whole_units(size: int, blocks: tuple[int, ...], part: int) -> None:
    assert prefetch_bytes(BufferRange(True, 0, size), blocks) == part


@needs_emulator
def test_what_is_asked_for_are_constants_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[int, int]] = []
    launch = SimulatedDriver._capture_kernel

    def note(self: SimulatedDriver, config: Any, function: Any, arguments: Any, extra: int) -> Any:
        *_, first, part = arguments[0]
        if part:
            blocks = config.gridDimX * config.gridDimY * config.gridDimZ
            requested.append((first, first + blocks * part))
        return launch(self, config, function, arguments, extra)

    monkeypatch.setattr(SimulatedDriver, "_capture_kernel", note)
    driver = put_in_place(monkeypatch)
    content = resolve_model("zoo:mobilenet_v1_0.25_128")
    target = interpreter(content, GpuDelegate(backend="cuda", cache=False))
    spaces = [(at, at + array.nbytes) for at, array in driver._arrays.items()]
    assert requested
    assert all(any(a <= first and end <= b for a, b in spaces) for first, end in requested)
    del target
