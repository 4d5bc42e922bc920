"""Work groups cover the grid, respect the device's limits, and have few idle items."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from litegpu.codegen import PLAIN_LAUNCH, LaunchAttributes, round_up
from litegpu.engine.groups import group_for, with_registers
from litegpu.engine.target import DeviceTarget
from litegpu.numeric_policy import FP32
from paper_device import DEVICE

SMALL = DeviceTarget(DEVICE, FP32)
LARGE = DeviceTarget(replace(DEVICE, compute_units=132), FP32)


@pytest.mark.parametrize("x", [1, 2, 3, 8, 9, 256])
@pytest.mark.parametrize("y", [1, 2, 5, 64, 49 * 49, 3_211_264])
@pytest.mark.parametrize("moves_only", [True, False])
def test_few_items_are_idle(x: int, y: int, moves_only: bool) -> None:
    grid = (x, y, 1)
    local = group_for(grid, SMALL, moves_only)
    items = math.prod(local)
    assert items <= (256 if moves_only else 64) <= DEVICE.max_work_group_size
    whole = math.prod(round_up(size, group) for size, group in zip(grid, local, strict=True))
    # At most what rounding each side up to a power of two costs, or a last group.
    assert whole <= max(2 * math.prod(grid) * (2 if x > 8 else 1), 4 * math.prod(grid), 1)
    if math.prod(grid) >= 64:
        assert items >= 64, "no smaller than it must be"


def test_groups_are_large_where_there_are_many() -> None:
    assert group_for((2, 3_211_264, 1), LARGE) == (2, 128, 1)
    assert group_for((2, 3_211_264, 1), LARGE, moves_only=False) == (2, 32, 1)
    assert group_for((16, 196, 1), LARGE) == (8, 8, 1)
    limited = DeviceTarget(replace(DEVICE, max_work_group_size=128), FP32)
    assert group_for((2, 3_211_264, 1), limited) == (2, 32, 1)


HOPPER = DeviceTarget(replace(DEVICE, compute_units=132, compute_capability=(9, 0)), FP32)


@pytest.mark.parametrize(
    ("groups", "items", "least"),
    [(1, 256, 1), (132, 512, 1), (133, 256, 2), (1024, 64, 8), (132 * 32, 16, 32)],
)
def test_items_get_the_registers_that_few_groups_leave(groups: int, items: int, least: int) -> None:
    assert with_registers(PLAIN_LAUNCH, groups, items, HOPPER).min_blocks == least


@pytest.mark.parametrize(
    ("groups", "items", "why"),
    [
        (132 * 2 + 1, 256, "each would get fewer than many kernels want"),
        (132 * 8 + 1, 64, "each would get fewer than many kernels want"),
        (132 * 32 + 1, 8, "a multiprocessor has no room for so many"),
    ],
)
def test_kernels_of_many_groups_stay_as_they_are(groups: int, items: int, why: str) -> None:
    assert with_registers(PLAIN_LAUNCH, groups, items, HOPPER) is PLAIN_LAUNCH, why


def test_what_a_kernel_says_of_registers_itself_holds() -> None:
    own = LaunchAttributes(min_blocks=4)
    assert with_registers(own, 1, 64, HOPPER) is own
    assert with_registers(PLAIN_LAUNCH, 1, 64, LARGE) is PLAIN_LAUNCH, "only NVRTC is told"
