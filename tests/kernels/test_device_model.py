"""The models of GPU architectures, and the model that a GPU gets."""

from __future__ import annotations

import pytest

from cuda_emulator import INFO
from litegpu.device_model import GENERIC, MODELS, Capability, model_of
from paper_device import DEVICE


@pytest.mark.parametrize(
    ("capability", "known"),
    [
        ((8, 6), (8, 6)),
        ((8, 8), (8, 7)),
        ((9, 0), (9, 0)),
        ((10, 3), (10, 0)),
        ((12, 1), (12, 0)),
        ((99, 0), (12, 0)),
    ],
)
def test_a_gpu_counts_as_the_newest_that_is_not_newer(
    capability: Capability, known: Capability
) -> None:
    assert model_of(capability) is MODELS[known]


@pytest.mark.parametrize("capability", [None, (6, 0), (7, 5)])
def test_others_have_nothing_but_the_portable_dialect(capability: Capability | None) -> None:
    assert model_of(capability) is GENERIC
    assert not (GENERIC.tensor_cores or GENERIC.clusters or GENERIC.warp_groups)


def test_what_blocks_may_have_is_what_nvidia_tells() -> None:
    """Per block in KiB, as in the table of technical specifications."""
    expected = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
    expected[12, 0] = 99
    assert {each: model.shared_bytes_per_block >> 10 for each, model in MODELS.items()} == expected


def test_features_come_with_architectures() -> None:
    assert all(model.tensor_cores for model in MODELS.values())
    assert {each for each, model in MODELS.items() if model.clusters} == {(9, 0), (10, 0), (12, 0)}
    assert all(model.overlapped_launches == model.clusters for model in MODELS.values())
    assert [each for each, model in MODELS.items() if model.warp_groups] == [(9, 0)]


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [
        (128, 64, 0, 8),  # registers
        (1024, 16, 0, 2),  # threads
        (32, 16, 0, 32),  # blocks
        (256, 16, 113 << 10, 2),  # shared memory, with 1 KiB of the system's for each
        (256, 16, (113 << 10) + 16, 1),
        (256, 16, 228 << 10, 0),
    ],
)
def test_blocks_on_a_multiprocessor(
    threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    assert MODELS[9, 0].resident_blocks(threads, registers, shared_bytes) == blocks


def test_devices_know_their_model() -> None:
    assert INFO.model is MODELS[9, 0]
    assert DEVICE.model is GENERIC
