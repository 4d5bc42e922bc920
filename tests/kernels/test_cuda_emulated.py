"""CUDA kernels give the CPU's results in the emulator, which compiles them as C++."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import cases
import cuda_emulator
import turns
from cases.base import SMALL, Case
from cases.conv_2d import Conv
from cases.hybrid import HybridConv
from cases.quantized_conv import QuantizedConv
from cases.quantized_depthwise import QuantizedDepthwise
from cases.separable import Separable
from comparing import mismatch
from cuda_emulator import INFO, ORDERS, EmulatedBackend, EmulatedDevice, is_usable, needs_emulator
from litegpu import backends
from op_runner import MODES, Mode, forced, groups, run

FLOATS, HALVES = MODES[0], MODES[-1]
KINDS = (
    *(
        "Attention",
        "Conv",
        "Dense",
        "Depthwise",
        "Matmul",
        "MeanDense",
        "Normalization",
        "Separable",
        "Softmax",
        "TransposeConv",
        "View",
    ),
    *("QuantizedConv", "QuantizedDepthwise", "QuantizedMatrix"),
)
"""Cases of operations that have templates, or parts of them, for CUDA alone."""
_LARGE: Any = {"size": (13, 11), "items": SMALL}
_FIELDS: Sequence[dict[str, Any]] = (
    {"per_channel": True},
    {"dtype": "uint8", "stride": (2, 2)},
    {"dilation": (2, 1), "kernel": (2, 5)},
)
_DEPTHWISE = [
    QuantizedDepthwise(image=image, items=SMALL, **fields)
    for image in ((2, 9, 13, 40), (1, 7, 8, 64), (1, 8, 9, 132))
    for fields in _FIELDS
]
_IN_TURNS = ("Normalization", "Softmax")
"""Those of which just a part is CUDA's own: of their groups every third runs, for time."""
_ALL_GROUPS = [group for group in groups(cases.TABLE) if type(group[0]).__name__ in KINDS]
GROUPS = [
    group
    for number, group in enumerate(_ALL_GROUPS)
    if turns.ALL or number % 3 == 0 or type(group[0]).__name__ not in _IN_TURNS
]


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="its threads are fibers in assembly for Linux on x86-64",
)
def test_there_is_an_emulator() -> None:
    """Without one no kernel of CUDA's own runs where there is no GPU: that must not go unseen."""
    assert is_usable(), "make setup, or apt-get install g++"


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """An emulated GPU; each test has one of the orders of threads, always the same."""
    order = ORDERS[zlib.crc32(request.node.name.encode()) % len(ORDERS)]
    device = EmulatedDevice(order=order)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})


def checked(group: tuple[Case, ...], mode: Mode) -> list[str]:
    """Run cases, compare all that they give, and return the names of the kernels."""
    kernels: list[str] = []
    for name, outcome in run(group, INFO, mode).items():
        if isinstance(outcome, Exception):
            raise outcome
        assert not outcome.faults, f"{name}: {'; '.join(outcome.faults)}"
        for expected, got in zip(outcome.expected, outcome.got, strict=True):
            case = next(case for case in group if case.name == name)
            problem = mismatch(expected, got, case.limit(mode.half))
            assert not problem, f"{name}: {problem}"
        kernels += outcome.kernels
    return kernels


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: type(group[0]).__name__)
def test_cases_agree_with_the_cpu(group: tuple[Case, ...]) -> None:
    if not turns.ALL:  # each kernel takes a C++ compiler long
        group = turns.share(group, turns.of_commit(2), 2)
    # What is chosen for a load of a certain size differs between halves, not between floats.
    assert checked(group, FLOATS if group[0].items is None else HALVES)


@needs_emulator
@pytest.mark.usefixtures("emulated")
def test_depthwise_convolutions_of_bytes_take_no_other_integers() -> None:
    """Floats as bytes have lost their zero point and with it their 8 bits."""
    large = [case for case in cases.TABLE.values() if isinstance(case, HybridConv) and case.items]
    assert not [name for name in checked((*large,), FLOATS) if name.startswith("cuda_depthwise")]


@needs_emulator
@pytest.mark.usefixtures("emulated")
def test_parts_of_an_output_are_made_by_large_tiles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One multiprocessor is busy with anything: each phase of a transposed convolution is large."""
    device = EmulatedDevice(dataclasses.replace(INFO, compute_units=1))
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    transposed = next(group for group in GROUPS if type(group[0]).__name__ == "TransposeConv")
    assert any(name.startswith("cuda_conv_tile") for name in checked(transposed, FLOATS))


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("case", "mode", "template"),
    [
        *(
            (Conv(image=image, filters=filters, kernel=kernel, items=SMALL), mode, "cuda_conv_tile")
            for mode in (FLOATS, HALVES)
            for image, filters, kernel in (
                ((2, 9, 8, 72), 65, (1, 1)),
                ((1, 9, 7, 3), 20, (3, 3)),
                ((1, 19, 17, 9), 70, (3, 2)),
                ((1, 12, 11, 60), 70, (2, 3)),
            )
        ),
        *(
            (case, FLOATS, template)
            for case, template in (
                *((case, "cuda_depthwise") for case in _DEPTHWISE),
                (QuantizedConv(channels=40, filters=20, per_channel=True), "cuda_conv_mma"),
                (QuantizedConv(channels=48, filters=20, dtype="uint8", batch=2), "cuda_conv_mma"),
                (
                    QuantizedConv(channels=264, filters=65, kernel=(1, 1), **_LARGE),
                    "cuda_conv_tile",
                ),
                (QuantizedConv(channels=32, filters=40, stride=(2, 1), **_LARGE), "cuda_conv_tile"),
                (QuantizedConv(channels=31, filters=70, **_LARGE), "cuda_conv_tile"),
                (QuantizedConv(channels=31, filters=40, dtype="uint8", **_LARGE), "cuda_conv_tile"),
                (QuantizedConv(channels=64, filters=40, dtype="uint8", **_LARGE), "cuda_conv_tile"),
                (QuantizedConv(channels=60, filters=40, dtype="uint8", **_LARGE), "cuda_conv_tile"),
            )
        ),
        (Separable(image=(1, 14, 14, 96), filters=130, items=SMALL), HALVES, "cuda_conv_mma"),
    ],
)
def test_templates_agree_with_the_cpu(case: Case, mode: Mode, template: str) -> None:
    assert all(name.startswith(template) for name in checked((case,), mode))


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("number", range(10) if turns.ALL else (0, 2, 5, 7))
@pytest.mark.parametrize(
    ("case", "template"),
    [
        (QuantizedConv(channels=48, filters=140, size=(25, 22), kernel=(1, 1)), "cuda_conv_mma"),
        (QuantizedConv(channels=20, filters=70, dtype="uint8"), "cuda_conv_mma"),
        (QuantizedConv(channels=48, filters=140, **_LARGE), "cuda_conv_tile"),
        (QuantizedConv(channels=16, filters=140, dtype="uint8", **_LARGE), "cuda_conv_tile"),
        # An even number of k-tiles, of rows that cannot be copied as they lie
        (QuantizedConv(channels=98, filters=140, kernel=(1, 2), **_LARGE), "cuda_conv_tile"),
    ],
    ids=lambda given: given.name if isinstance(given, Case) else "",
)
def test_all_tiles_of_bytes_agree_with_the_cpu(case: Case, template: str, number: int) -> None:
    with forced(number):
        assert all(name.startswith(template) for name in checked((case,), FLOATS))


def some(count: int, begin: int) -> range:
    """Return numbers below `count`, every second one where tests take turns."""
    return range(count) if turns.ALL else range(begin % 2, count, 2)


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("mode", "number", "channels"),
    [
        *((FLOATS, n, channels) for channels in (24, 72) for n in some(5, channels // 24)),
        *((HALVES, n, channels) for channels in (24, 72) for n in some(6, channels // 48)),
        *((HALVES, n, 128) for n in some(9, 0)),  # an even number of k-tiles
    ],
)
def test_all_tiles_of_a_convolution_agree_with_the_cpu(
    mode: Mode, number: int, channels: int
) -> None:
    # 5 tiles of pixels and 2 or more of channels, the last ones not full
    case = Conv(image=(1, 25, 22, channels), filters=140, kernel=(1, 1), items=SMALL)
    with forced(number) as chosen:
        assert all(name.startswith("cuda_conv_tile") for name in checked((case,), mode))
    assert number in chosen


@needs_emulator
def test_kernels_are_found_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that they are made of: scripts/mutants.py changes headers, too."""
    monkeypatch.setattr(cuda_emulator, "LIBRARIES", str(tmp_path))
    first = cuda_emulator._build("int one() { return 1; }", "one")
    with mock.patch.object(subprocess, "run", side_effect=AssertionError("compiled again")):
        second = cuda_emulator._build("int one() { return 1; }", "other")
    assert [second] == list(tmp_path.iterdir())
    assert second.read_bytes() == first.read_bytes()
    monkeypatch.setattr(cuda_emulator, "_before_all", lambda: "int zero() { return 0; }")
    assert cuda_emulator._shared_library("int one() { return 1; }", False) != second
