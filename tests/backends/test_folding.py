"""Launches with more work groups than the device allows on an axis."""

from __future__ import annotations

import numpy as np
import pytest

from backend_suite import (
    FLOATS,
    GROUP,
    REVERSE,
    WHERE,
    adding,
    cell,
    floats,
    kernel,
    program,
    ready,
    run,
)
from cuda_emulator import EmulatedDevice, needs_emulator
from every_backend import open_device
from litegpu.backends.base import Device
from litegpu.backends.folding import fold, fold_launches
from litegpu.backends.program import Launch

LIMITED = ("opengl", "webgpu", "cuda")


@pytest.fixture(params=[*LIMITED, pytest.param("emulated", marks=needs_emulator)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device that launches 2 work groups on an axis at most; CUDA's y axis takes more."""
    if request.param == "emulated":
        opened: Device = EmulatedDevice()
        monkeypatch.setattr(opened, "limits", _CUDA_LIMITS)
        return opened
    opened = open_device(request.param)
    if request.param == "cuda":
        monkeypatch.setattr("litegpu.backends.cuda.device.GRID_LIMITS", _CUDA_LIMITS)
    else:
        monkeypatch.setattr(opened, "group_limit", 2)
    return opened


_CUDA_LIMITS = (2, 1 << 30, 2)


@pytest.mark.parametrize("limit", [1 << 16, 7, 100])
@pytest.mark.parametrize("groups", [(1, 1, 1), (1, 70000, 1), (3, 5, 7), (6, 1, 1)])
def test_folding_keeps_all_groups(groups: tuple[int, int, int], limit: int) -> None:
    x, y, z = fold(groups, limit)
    total = groups[0] * groups[1] * groups[2]
    assert z == 1 and x <= limit
    assert total <= x * y < total + x + y
    assert y <= limit or total > limit * limit


def test_clusters_stay_whole() -> None:
    assert fold((12, 70000, 1), 7, cluster=4) == (4, 210000, 1)
    assert fold((8, 1, 3), 1 << 16, cluster=8) == (24, 1, 1)


def test_small_launches_are_not_folded() -> None:
    whole = adding(3)
    assert fold_launches(whole, (4, 1, 1)) == whole


def test_larger_ones_have_a_kernel_of_their_own() -> None:
    text = kernel("where", WHERE, (), vector=False, local_size=(8, 2, 1))
    small, large = (Launch("where", (cell(1),), n, (8, 2, 1)) for n in [(8, 2, 1), (16, 4, 3)])
    folded = fold_launches(program([text], [small, large], [], [1]), (2, 2, 2))
    assert [(k.name, k.attributes.folded) for k in folded.kernels] == [
        ("where", None),
        ("where_2x2x3", (2, 2, 3)),
    ]
    assert folded.launches == (
        small,
        Launch("where_2x2x3", (cell(1),), (16, 12, 1), (8, 2, 1)),
    )


def test_folded_work_items_know_their_place(device: Device) -> None:
    text = kernel("where", WHERE, (), vector=False, local_size=(8, 2, 1))
    launched = Launch("where", (cell(1),), (16, 4, 4), (8, 2, 1))
    context = ready(device, program([text], [launched], [], [1]))
    z, y, x = np.meshgrid(range(4), range(4), range(16), indexing="ij")
    expected = x + 100 * y + 10000 * z + 1000000 * (x // 8)
    np.testing.assert_array_equal(run(context, [])[0][: expected.size], expected.ravel())
    context.close()


def test_folded_groups_share_memory(device: Device) -> None:
    text = kernel("reverse", REVERSE, vector=False, shared=(("float", "scratch", 64),))
    launched = Launch("reverse", (cell(1), cell(0)), (FLOATS - 64, 1, 1), GROUP)
    context = ready(device, program([text], [launched], [0], [1]))
    (got,) = run(context, [floats()])
    np.testing.assert_array_equal(got[:-64], floats()[:-64].reshape(-1, 64)[:, ::-1].ravel())
    assert np.isnan(got[-64:]).all(), "groups beyond the last do nothing"
    context.close()
