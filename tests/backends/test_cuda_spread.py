"""Shared memory that launches request so that their blocks are distributed evenly."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fake_cuda import FakeDriver, Status, install
from litegpu.backends.cuda.occupancy import even_bytes, shared_bytes
from litegpu.backends.program import Launch
from litegpu.codegen import KernelText
from litegpu.codegen.dialect import LaunchAttributes
from litegpu.device_model import MODELS, DeviceModel
from litegpu.errors import KernelError

HOPPER = MODELS[9, 0]
KERNEL = KernelText("kernel", (), (256, 1, 1), (), "")
UNITS = 132
OPTED = 227 << 10


@pytest.mark.parametrize("model", [m for m in MODELS.values() if m.overlapped_launches])
@pytest.mark.parametrize("declared", [0, 17, 1024, 24 << 10])
@pytest.mark.parametrize("share", [1, 2, 3, 7, 31])
def test_so_many_blocks_fit_and_no_more(model: DeviceModel, declared: int, share: int) -> None:
    each = declared + even_bytes(model, share, declared) + model.reserved_bytes
    assert each * (share + 1) > model.shared_bytes
    if declared + model.reserved_bytes <= model.shared_bytes // (share + 1):
        assert each * share <= model.shared_bytes


class Requests:
    """What `shared_bytes` returns for launches on a device that is described."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clusters: int = 1 << 10) -> None:
        self.registers = 48
        self.limits: list[int] = []
        self.configs: list[Any] = []

        def attribute(which: str, _function: str) -> tuple[Status, int]:
            # Of functions that are not loaded yet the driver tells no more.
            known = {"SHARED_SIZE_BYTES": 1024, "NUM_REGS": self.registers}
            return Status.CUDA_SUCCESS, known[which]

        def allow(_function: str, _which: str, nbytes: int) -> tuple[Status]:
            self.limits.append(nbytes)
            return (Status.CUDA_SUCCESS,)

        def most(_function: str, config: Any) -> tuple[Status, int]:
            self.configs.append(config)
            return Status.CUDA_SUCCESS, clusters

        driver = FakeDriver(
            cuFuncGetAttribute=attribute,
            cuFuncSetAttribute=allow,
            cuOccupancyMaxActiveClusters=most,
        )
        install(monkeypatch, driver)

    def __call__(
        self,
        blocks: int,
        kernel: KernelText = KERNEL,
        capability: tuple[int, int] = (9, 0),
        threads: int = 256,
    ) -> int:
        info = SimpleNamespace(compute_units=UNITS, local_memory_bytes=OPTED)
        device: Any = SimpleNamespace(
            capability=capability, info=info, rejects=partial(KernelError, "The device")
        )
        launch = Launch("kernel", (), (threads, blocks, 1), (threads, 1, 1))
        return shared_bytes(launch, kernel, "function", device)


@pytest.mark.parametrize(("blocks", "share"), [(1, 1), (132, 1), (133, 2), (264, 2), (500, 4)])
def test_a_multiprocessor_takes_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch, blocks: int, share: int
) -> None:
    requested = Requests(monkeypatch)
    nbytes = requested(blocks)
    assert nbytes == even_bytes(HOPPER, share, 1024) > 0
    assert HOPPER.resident_blocks(256, 48, 1024 + nbytes) == share
    assert requested.limits == [OPTED - 1024], "for all launches of the function"


def test_nothing_is_asked_for_where_there_are_more_blocks_than_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested = Requests(monkeypatch)
    resident = HOPPER.resident_blocks(256, 48, 1024)
    assert requested((resident - 1) * UNITS) > 0
    assert requested((resident - 1) * UNITS + 1) == 0
    assert requested(1 << 20) == 0


def test_what_a_kernel_needs_stays_where_it_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    large = dataclasses.replace(KERNEL, shared=(("float4", "tile", 8192),))
    assert Requests(monkeypatch)(100, large) == 8192 * 16


def test_clusters_that_must_share_multiprocessors_may(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = dataclasses.replace(KERNEL, attributes=LaunchAttributes(cluster_size=8))
    requested = Requests(monkeypatch, clusters=15)  # 120 blocks at a time
    assert requested(120, kernel) == even_bytes(HOPPER, 1, 1024)
    assert [each.attrs[0].value.clusterDim.y for each in requested.configs] == [8]
    assert requested(128, kernel) == 0, "no share holds them all"
    nbytes = [each.sharedMemBytes for each in requested.configs[1:]]
    assert nbytes == sorted(nbytes, reverse=True)
    assert len(nbytes) > 1


def test_launches_that_do_not_overlap_ask_for_what_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested = Requests(monkeypatch)
    assert requested(100, capability=(8, 0)) == 0
    large = dataclasses.replace(KERNEL, shared=(("float4", "tile", 4096),))
    assert requested(100, large, (8, 0)) == 4096 * 16


def test_what_the_device_cannot_launch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    large = dataclasses.replace(KERNEL, shared=(("float4", "tile", 16384),))
    with pytest.raises(
        KernelError,
        match=rf"kernel: the kernel needs 263168 bytes of shared memory, .* has {OPTED}\.",
    ) as caught:
        Requests(monkeypatch)(1, large)
    assert list(caught.value.reasons) == ["kernel"]
    requested = Requests(monkeypatch)
    requested(1, threads=1024)
    requested.registers = 66
    with pytest.raises(
        KernelError, match="needs 1024 threads of 66 registers, but the device has 896"
    ):
        requested(1, threads=1024)
