"""cuda/inverted, for inverted residual blocks: results, and when it is selected."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from cases.base import Scale
from cases.inverted import Inverted
from comparing import mismatch
from conv_graphs import built
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.buffers import Bindings
from litegpu.engine import partition
from litegpu.graph import DType
from litegpu.kernels.cuda import inverted, inverted_split, separable
from litegpu.kernels.examples import ConvExample
from litegpu.numeric_policy import FP16_ALL
from op_runner import MODES, Outcome, forced, kept_busy_by, run

HALVES = MODES[3]
CASES = [
    Inverted(image=(2, 15, 18, 16), expanded=48, filters=24),
    Inverted(image=(1, 19, 22, 24), expanded=72, filters=24, residual=True),
    Inverted(image=(2, 33, 30, 32), expanded=80, filters=33, stride=(2, 2)),
    Inverted(image=(1, 12, 17, 9), expanded=41, filters=8, activation="RELU_0_TO_1"),
    Inverted(image=(1, 20, 19, 40), expanded=120, filters=40, kernel=(5, 5), residual=True),
    Inverted(image=(2, 14, 21, 17), expanded=33, filters=70, kernel=(5, 4), padding="VALID"),
    Inverted(image=(1, 21, 23, 64), expanded=64, filters=128, dilation=(2, 3), bias=False),
    Inverted(image=(1, 23, 31, 8), expanded=16, filters=9, stride=(3, 2), padding="VALID"),
    Inverted(image=(1, 16, 9, 48), expanded=49, filters=49, stride=(1, 2), kernel=(1, 3)),
]


@pytest.fixture(autouse=True)
def _however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small blocks be one kernel, too, and this one."""
    for name in ("_FILLED", "_MIN_PIXELS", "_MIN_ELEMENTS"):
        monkeypatch.setattr(separable, name, 0)
    monkeypatch.setattr(inverted, "_MARGIN", 0.0)
    monkeypatch.setattr(inverted_split, "_MARGIN", math.inf)


def outcome(
    case: Inverted,
    monkeypatch: pytest.MonkeyPatch,
    number: int = 0,
    scale: Scale | None = None,
    checked: bool = False,
) -> Outcome:
    """Return what the emulator makes of a case, by the tile of that number."""
    device = EmulatedDevice(checked=checked)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    with kept_busy_by(128), forced(number):
        found = run((case,), INFO, HALVES, *([scale] if scale else []))[case.name]
    if isinstance(found, Exception):
        raise found
    return found


def check(case: Inverted, found: Outcome, limit: float | None = None) -> None:
    """Require that one kernel made it, of maxima, and its numbers."""
    _, only = found.kernels
    assert only.startswith("cuda_inverted")
    assert not found.faults
    assert not mismatch(found.expected[0], found.got[0], limit or case.limit(half=True))


@needs_emulator
@pytest.mark.parametrize(
    ("case", "number"),
    [*((case, 0) for case in CASES), *((CASES[i], n) for i in (0, 2) for n in (1, 3, 5))],
)
def test_numbers(case: Inverted, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, outcome(case, monkeypatch, number, checked=case is CASES[0]))


@needs_emulator
@pytest.mark.parametrize(
    ("small", "values"), [((3e-3, 3e-3), 3e-3), ((1.0, 2e-3), 6e-4), ((2e-3, 1e3), 6e-4)]
)
def test_small_values_in_between_keep_their_digits(
    small: tuple[float, float], values: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that half just holds make values that it does not."""
    case = Inverted(image=(1, 12, 17, 16), expanded=48, filters=24, bias=False, small=small)
    check(case, outcome(case, monkeypatch, scale=Scale(values, 1.0)), limit=1.5e-3)


@needs_emulator
def test_what_is_not_finite_is_seen_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN reaches all outputs of the windows that see it; infinity is bounded in between."""
    # Nodes made by hand have their attributes.
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)
    example = ConvExample((1, 9, 17, 24), 33, depthwise=True, expand=40)
    program = built(example.graph(), FP16_ALL, INFO, DType.FLOAT16, 8)
    assert program.launches[-1].template == "cuda/inverted"
    context = EmulatedDevice().compile(program.program).context()
    image = np.random.default_rng(0).uniform(-1, 1, (1, 9, 17, 24)).astype(np.float16)

    def result(value: float) -> npt.NDArray[np.float32]:
        image[0, 4, 8, 21] = value
        output = np.full((1, 9, 17, 33), np.nan, np.float32)
        given = [np.zeros(each.size, np.uint8) for each in program.program.inputs[1:]]
        reported = [np.zeros(each.size, np.uint8) for each in program.program.outputs[1:]]
        context.run(Bindings.of([image, *given], [output, *reported]))
        return output

    large, infinite, unknown = result(6e4), result(np.inf), result(np.nan)
    assert not mismatch(large, infinite, 2e-3)
    seen = np.zeros((9, 17), bool)
    seen[3:6, 7:10] = True
    assert np.array_equal(np.isnan(unknown).all(axis=(0, 3)), seen)
    assert np.array_equal(np.isnan(unknown).any(axis=(0, 3)), seen)
    assert np.array_equal(unknown[0][~seen], large[0][~seen])


@needs_emulator
def test_zeros_stay_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Inverted(image=(1, 9, 10, 16), expanded=32, filters=16, bias=False)
    found = outcome(case, monkeypatch, scale=Scale(0.0, 1.0))
    assert found.kernels[-1].startswith("cuda_inverted")
    assert not np.any(found.got[0])


@needs_emulator
@pytest.mark.parametrize(
    ("case", "scale"),
    [
        (Inverted(image=(1, 12, 17, 16), activation="RELU"), Scale()),
        (Inverted(image=(1, 12, 17, 16), kernel=(5, 6)), Scale()),
        (Inverted(image=(1, 12, 17, 72)), Scale()),
        (Inverted(image=(1, 12, 17, 16), filters=130), Scale()),
        (Inverted(image=(1, 12, 17, 16)), Scale(1.0, 1e-6)),
    ],
)
def test_others_are_left_to_two_kernels(
    case: Inverted, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcome(case, monkeypatch, scale=scale)
    assert not any(name.startswith("cuda_inverted") for name in found.kernels), found.kernels
    assert not mismatch(found.expected[0], found.got[0], case.limit(half=True))
