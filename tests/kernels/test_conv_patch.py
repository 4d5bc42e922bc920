"""cuda/conv_patch, with an image patch in shared memory: results, and when it is selected."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from cases.conv_2d import Conv
from comparing import mismatch
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.device_model import MODELS, DeviceModel
from litegpu.engine.choices import Choices
from litegpu.engine.layout import assign
from litegpu.engine.program import build_program
from litegpu.kernels.cuda import conv_patch
from litegpu.kernels.cuda.conv_patch.tile import PatchProblem, candidates
from litegpu.numeric_policy import FP16, FP32
from litegpu.ops.common.window import Pair, Window
from op_runner import MODES, Mode, forced, run
from passes.graphs import RELU, GraphBuilder

FLOATS, HALVES = MODES[2], MODES[3]
CASES = [
    Conv(image=(1, 65, 66, 8), filters=8, kernel=(9, 9), padding="VALID"),
    Conv(image=(2, 9, 18, 3), filters=8, kernel=(5, 5)),
    Conv(image=(1, 12, 33, 32), filters=32, kernel=(3, 3), activation="RELU"),
    Conv(image=(1, 13, 20, 20), filters=17, kernel=(3, 4), bias=""),
    Conv(image=(1, 19, 35, 12), filters=9, kernel=(5, 5), stride=(2, 2)),
    Conv(image=(1, 19, 22, 5), filters=40, kernel=(3, 3), dilation=(2, 3)),
    Conv(image=(3, 7, 5, 9), filters=10, kernel=(4, 2), stride=(2, 1)),
]


@pytest.mark.every_other
@needs_emulator
@pytest.mark.parametrize("mode", [FLOATS, HALVES], ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("case", "number"), [*((case, 0) for case in CASES), *((CASES[2], n) for n in (1, 2, 3))]
)
def test_numbers(case: Conv, number: int, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(checked=case is CASES[1])
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    with mock.patch.object(conv_patch, "_MAX_CLOCK_RATIO", 1e9), forced(number):
        outcome = run((case,), INFO, mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert any(name.startswith("cuda_conv_patch") for name in outcome.kernels)
    assert not outcome.faults
    problem = mismatch(outcome.expected[0], outcome.got[0], 1e-3 if mode is HALVES else 1e-6)
    assert not problem


def chosen(size: int, channels: Pair, kernel: int, device: DeviceInfo, half: bool) -> str:
    """Return the kernel for a convolution of a square image."""
    builder = GraphBuilder()
    output = builder.conv(builder.input(1, size, size, channels[0]), channels[1], kernel, [RELU])
    graph = builder.graph(output)
    layout = assign(graph, FP16 if half else FP32)
    (launch,) = build_program(layout, device, graph.inputs, graph.outputs).launches
    return launch.template


@pytest.mark.parametrize(
    ("size", "channels", "kernel", "half", "template"),
    [
        (384, (8, 3), 9, True, "cuda/conv_patch"),
        (384, (3, 8), 9, True, "cuda/conv_narrow"),
        (192, (16, 16), 3, True, "cuda/conv_patch"),
        (96, (32, 32), 3, True, "cuda/conv_mma"),
        (96, (32, 32), 3, False, "cuda/conv_mma"),
        (96, (32, 32), 1, True, "cuda/conv_mma"),
        (7, (512, 512), 3, True, "cuda/conv_mma"),
    ],
)
def test_it_is_chosen_where_windows_overlap(
    size: int, channels: Pair, kernel: int, half: bool, template: str
) -> None:
    assert chosen(size, channels, kernel, INFO, half) == template


@pytest.mark.parametrize(
    ("size", "channels", "kernel", "template"),
    [
        (384, (8, 3), 9, "conv_patch"),
        (96, (64, 96), 3, "conv_tile"),
        (192, (16, 16), 3, "conv_patch"),
        (7, (512, 512), 3, "conv_mma"),
    ],
)
def test_tiles_are_chosen_for_one_kernel_alone(
    size: int, channels: Pair, kernel: int, template: str
) -> None:
    """Each choice may be measured on the GPU: none is asked for that nobody takes."""
    queried = []

    def choose(_: Choices, problem: str, candidates: Sequence[Any]) -> Any:
        queried.append(problem)
        return candidates[0]

    with mock.patch.object(Choices, "choose", choose):
        assert chosen(size, channels, kernel, INFO, half=True) == f"cuda/{template}"
    (problem,) = queried
    assert template in problem


def test_it_needs_tensor_cores() -> None:
    device = dataclasses.replace(INFO, compute_capability=(7, 5))
    assert chosen(384, (8, 8), 9, device, half=True) == "conv_2d"


@pytest.mark.parametrize("model", MODELS.values(), ids=map(str, MODELS))
@pytest.mark.parametrize(("channels", "kernel"), [(8, 9), (32, 3), (64, 3), (20, 5)])
def test_no_more_blocks_count_than_a_multiprocessor_holds(
    channels: int, kernel: int, model: DeviceModel
) -> None:
    """The system keeps 1 KiB of the shared memory for each of them."""
    size = (96, 96)
    view = Window((kernel, kernel), (1, 1), pads=(kernel // 2, kernel // 2))
    tiles = list(candidates(PatchProblem(size, size, 1, channels, 32, view, True, True)))
    assert tiles
    for tile in tiles:
        assert tile.shared_bytes <= model.shared_bytes_per_block
        blocks = model.overlapped_blocks(tile.threads, 128, tile.shared_bytes)
        assert blocks >= 1
        assert blocks * (tile.shared_bytes + model.reserved_bytes) <= model.shared_bytes
