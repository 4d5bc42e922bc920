"""cuda/conv_stationary, for bytes, with weights in registers: results and selected tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cases.base import Case
from cases.quantized_chains import QuantizedResidual
from cases.quantized_conv import QuantizedConv
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.engine.layout import assign
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda.conv_stationary import QuantizedConvStationary
from litegpu.kernels.cuda.conv_stationary.tile import StationaryProblem, candidates
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.kernels.selector import select
from litegpu.numeric_policy import FP16
from litegpu.ops.base import get
from op_runner import MODES, forced, problem_of, run

TARGET = DeviceTarget(INFO, FP16)


def conv(channels: int, filters: int, dtype: str = "int8", batch: int = 1) -> QuantizedConv:
    """Return a case whose last set of pixels is not full."""
    return QuantizedConv(
        channels=channels, filters=filters, dtype=dtype, batch=batch, kernel=(1, 1), size=(13, 11)
    )


CASES: list[tuple[Case, tuple[int, ...]]] = [
    (conv(64, 40), (0, 2, 3, 5)),
    (conv(24, 20, "uint8"), (0,)),
    (conv(100, 300, "uint8"), (1,)),
    (conv(250, 33), (0,)),
    (conv(32, 40, batch=2), (0, 4)),
    # The sum is an epilogue: what is added is read ahead, one word or two.
    (QuantizedResidual(shape=(1, 13, 11, 64)), (0, 3)),
    (QuantizedResidual(dtype="uint8", shape=(1, 9, 8, 72)), (1,)),
]


@needs_emulator
@pytest.mark.parametrize(
    ("case", "number"),
    [pytest.param(case, n, id=f"{case.name}-{n}") for case, numbers in CASES for n in numbers],
)
def test_numbers(case: Case, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(replace(INFO, compute_units=1), checked=case is CASES[1][0])
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    with forced(number):
        outcome = run((case,), INFO, MODES[0])[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert outcome.kernels[-1].startswith("cuda_conv_stationary")
    assert not problem_of(case, outcome, MODES[0])


@pytest.mark.parametrize("outputs", [32, 64, 72, 256, 1000])
@pytest.mark.parametrize("inputs", [16, 32, 48, 64, 100, 128, 250])
def test_tiles_make_everything_once(inputs: int, outputs: int) -> None:
    problem = StationaryProblem(12345, inputs, outputs, 2, zeros=True)
    found = [*candidates(problem, TARGET)]
    assert found
    for tile in found:
        channels = tile.column_blocks * tile.warps_n * 32 * tile.groups
        assert outputs <= channels < outputs + 32 * tile.groups * tile.column_blocks
        assert 0 <= tile.positions * tile.pixels - problem.rows < tile.pixels
        # Nobody has more turns than another has, but for one.
        turns = -(-tile.positions // (tile.workers * tile.warps_m))
        assert (turns - 1) * tile.workers * tile.warps_m < tile.positions
        assert tile.fits(TARGET)
        assert problem.steps * 32 >= inputs


@pytest.mark.parametrize(
    ("image", "filters", "kernel", "reason"),
    [
        ((64, 56, 56, 64), 256, 1, ""),
        ((1, 256, 256, 32), 40, 1, ""),
        ((64, 56, 56, 64), 256, 3, "the output has another number of pixels than the input"),
        ((1, 56, 56, 64), 256, 1, "too few pixels reuse the weights in registers"),
        ((64, 28, 28, 264), 128, 1, "the weights do not fit into registers"),
        ((64, 28, 28, 8), 8, 1, "the sums are too short for tensor cores"),
    ],
)
def test_which_it_computes(
    image: tuple[int, int, int, int], filters: int, kernel: int, reason: str
) -> None:
    graph = QuantizedConvExample(image, filters, kernel).graph()
    node = graph.nodes[-1]
    (spec,) = get(node.op).specs(node, Selected(assign(graph, FP16), TARGET))
    found = QuantizedConvStationary().plan(spec, TARGET)
    assert (found.reason if isinstance(found, Rejected) else "") == reason
    if not reason:
        assert select(spec, TARGET).name == "cuda/conv_stationary"
