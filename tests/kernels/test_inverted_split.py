"""cuda/inverted_split, for few pixels: results, range, and when it is selected."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import turns
from cases.base import Scale
from cases.inverted import Inverted
from comparing import mismatch
from conv_graphs import built
from cuda_emulator import INFO, ORDERS, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.buffers import Bindings
from litegpu.engine import partition
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType
from litegpu.kernels.cuda import inverted_split
from litegpu.kernels.cuda.inverted_split.tile import SplitProblem, SplitTile, candidates
from litegpu.kernels.examples import ConvExample
from litegpu.numeric_policy import FP16
from litegpu.ops.common.window import Window
from op_runner import MODES, Mode, Outcome, forced, kept_busy_by, run

FLOATS, HALVES = MODES[2:]
CASES = [
    Inverted(image=(1, 14, 14, 64), expanded=96, filters=64, residual=True),
    Inverted(image=(2, 15, 18, 16), expanded=48, filters=24, activation="RELU"),
    Inverted(image=(1, 19, 22, 24), expanded=72, filters=24, residual=True),
    Inverted(image=(2, 13, 11, 32), expanded=80, filters=33, stride=(2, 2)),
    Inverted(image=(1, 12, 17, 9), expanded=41, filters=8, activation="RELU_0_TO_1"),
    Inverted(image=(1, 9, 10, 40), expanded=120, filters=40, kernel=(5, 5), residual=True),
    Inverted(image=(2, 14, 9, 17), expanded=33, filters=70, kernel=(5, 4), padding="VALID"),
    Inverted(image=(1, 10, 11, 64), expanded=64, filters=128, dilation=(2, 3), bias=False),
    Inverted(image=(1, 12, 13, 8), expanded=16, filters=9, stride=(3, 2), padding="VALID"),
    Inverted(image=(3, 7, 5, 33), expanded=200, filters=20, activation="NONE"),
    Inverted(image=(2, 25, 22, 3), expanded=32, filters=16, first=(3, 2)),
    Inverted(image=(1, 24, 27, 4), expanded=24, filters=33, first=(5, 2), stride=(2, 2)),
    Inverted(image=(1, 9, 12, 5), expanded=24, filters=9, first=(2, 2)),
    Inverted(image=(1, 11, 10, 12), expanded=40, filters=24, first=(3, 1), bias=False),
]


@pytest.fixture(autouse=True)
def _whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for margin in ("_MARGIN", "_MARGIN_OF_WINDOWS"):
        monkeypatch.setattr(inverted_split, margin, 0.0)


def outcome(
    case: Inverted,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode = FLOATS,
    number: int = 0,
    scale: Scale | None = None,
    device: EmulatedDevice | None = None,
) -> Outcome:
    """Return what the emulator makes of a case, by the tile of that number."""
    emulated = EmulatedBackend(device or EmulatedDevice())
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": emulated})
    with kept_busy_by(128), forced(number):
        found = run((case,), INFO, mode, *([scale] if scale else []))[case.name]
    if isinstance(found, Exception):
        raise found
    return found


def check(case: Inverted, found: Outcome, limit: float | None = None) -> None:
    """Require that one kernel made it, of maxima, and its numbers."""
    _, only = found.kernels
    assert only.startswith("cuda_inverted_split")
    assert not found.faults
    assert not mismatch(found.expected[0], found.got[0], limit or case.limit(half=True))


@needs_emulator
@pytest.mark.parametrize(
    ("case", "number"),
    [
        (case, number)
        for turn, case in enumerate(CASES)
        for number in ((0, 3, 5) if turns.ALL else (0, (3, 5)[turn % 2]))
    ],
    ids=lambda given: given.name if isinstance(given, Inverted) else "",
)
def test_numbers(case: Inverted, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of floats is lost, since weights this small keep all their digits."""
    check(case, outcome(case, monkeypatch, number=number), limit=1e-6)


@needs_emulator
@pytest.mark.parametrize("case", [CASES[0], CASES[5], *CASES[-4:]], ids=lambda case: case.name)
def test_halves(case: Inverted, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, outcome(case, monkeypatch, HALVES))


@needs_emulator
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [0, 2])
def test_threads_wait_where_they_must(
    number: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a cluster send each other their sums; some has one of those less."""
    case = Inverted(image=(1, 6, 7, 20), expanded=70, filters=20, residual=True)
    device = EmulatedDevice(checked=True, order=order)
    check(case, outcome(case, monkeypatch, number=number, device=device), limit=1e-6)


MAGNITUDES = [
    (FLOATS, (1.0, 1.0), 1e-8),
    (FLOATS, (1.0, 1.0), 1e6),
    (FLOATS, (1e-2, 1.0), 1e-3),
    (FLOATS, (1e4, 1e-2), 1e3),
    (FLOATS, (1.0, 1e-6), 1.0),
    (HALVES, (1e4, 1e-3), 1e-2),
    (HALVES, (3e-3, 1e2), 1e-2),
]
"""Modes, factors of weights, and of the image: halves hold what those are to make."""


@needs_emulator
@pytest.mark.parametrize(("mode", "small", "values"), MAGNITUDES)
def test_magnitudes(
    mode: Mode, small: tuple[float, float], values: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that half does not hold, of the image and in between, keep their digits."""
    case = Inverted(
        image=(1, 7, 9, 16), expanded=48, filters=24, bias=False, activation="RELU", small=small
    )
    limit = 1e-6 if mode is FLOATS else 2e-3
    check(case, outcome(case, monkeypatch, mode, scale=Scale(values, 1.0)), limit)


@needs_emulator
def test_what_is_not_finite_is_seen_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinity of a pixel reach the outputs whose windows see it, and no others."""
    # Nodes made by hand have their attributes.
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)
    example = ConvExample((1, 9, 11, 22), 33, depthwise=True, expand=42)
    program = built(example.graph(), FP16, INFO, DType.FLOAT32, 4)
    assert program.launches[-1].template == "cuda/inverted_split"
    context = EmulatedDevice().compile(program.program).context()
    image = np.random.default_rng(0).uniform(-1, 1, (1, 9, 11, 24)).astype(np.float32)
    image[..., 22:] = 0

    def result(value: float) -> npt.NDArray[np.float32]:
        image[0, 4, 6, 21] = value
        outputs = [np.zeros(each.size, np.uint8) for each in program.program.outputs]
        given = [np.zeros(each.size, np.uint8) for each in program.program.inputs[1:]]
        context.run(Bindings.of([image, *given], outputs))
        return outputs[0].view(np.float32).reshape(9, 11, -1)[..., :33]

    usual, unknown, infinite = result(0.5), result(np.nan), result(np.inf)
    seen = np.zeros((9, 11), bool)
    seen[3:6, 5:8] = True
    assert np.array_equal(np.isnan(unknown).all(axis=2), seen)
    assert np.array_equal(np.isnan(unknown).any(axis=2), seen)
    assert not mismatch(usual[~seen], unknown[~seen], 1e-6)
    assert not mismatch(usual[~seen], infinite[~seen], 1e-6)


@needs_emulator
def test_zeros_stay_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Inverted(image=(1, 9, 10, 16), expanded=32, filters=16, bias=False)
    found = outcome(case, monkeypatch, scale=Scale(0.0, 1.0))
    assert found.kernels[-1].startswith("cuda_inverted_split")
    assert not np.any(found.got[0])


@needs_emulator
@pytest.mark.parametrize(
    ("case", "scale", "mode"),
    [
        (Inverted(image=(1, 7, 9, 16)), Scale(), MODES[0]),
        (Inverted(image=(1, 7, 9, 16), kernel=(5, 6)), Scale(), FLOATS),
        (Inverted(image=(1, 7, 9, 16)), Scale(1.0, 1e6), FLOATS),
        (Inverted(image=(1, 3, 3, 330)), Scale(), FLOATS),
        (Inverted(image=(1, 7, 9, 90), first=(2, 1)), Scale(), FLOATS),
    ],
)
def test_others_are_left_to_two_kernels(
    case: Inverted, scale: Scale, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcome(case, monkeypatch, mode, scale=scale)
    assert not any(name.startswith("cuda_inverted") for name in found.kernels), found.kernels
    assert not mismatch(found.expected[0], found.got[0], case.limit(half=mode is not MODES[0]))


def _problem(size: int, inputs: int, middle: int, outputs: int) -> SplitProblem:
    shape, window = (1, size, size, middle), Window((3, 3), (1, 1), pads=(1, 1))
    return SplitProblem(inputs, shape, outputs, window, 2, (2, 2), ranged=True)


def test_shares_hold_all_channels_once() -> None:
    """No block of a cluster is without channels, and threads keep to theirs."""
    for tile in candidates(_problem(14, 64, 384, 64), DeviceTarget(INFO, FP16)):
        assert (tile.depth - 1) * tile.groups < 24 <= tile.depth * tile.groups
        assert tile.threads % (4 * tile.groups) == 0


def test_registers_of_blocks_that_share_a_multiprocessor() -> None:
    """A thread has fewer then: less is loaded ahead, and multiplied side by side."""
    few, many = (SplitTile(_problem(size, 16, 96, 24), (1, 14), 1, 6, 6, 132) for size in (14, 56))
    assert (few.resident, many.resident) == (1, 2)
    assert few.early and few.kinds == (3, 3)
    assert not many.early or many.kinds != (3, 3)
