"""cuda/depthwise_mma, for bytes on tensor cores: results and selected tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cases.quantized_depthwise import QuantizedDepthwise
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.engine.layout import assign
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda.depthwise_mma import DepthwiseMma, DepthwiseProblem, candidates
from litegpu.kernels.examples import DepthwiseExample
from litegpu.kernels.selector import select
from litegpu.numeric_policy import FP16
from litegpu.ops.base import get
from litegpu.ops.common.depthwise_spec import DepthwiseSpec
from litegpu.ops.common.window import Shape4, Window
from op_runner import MODES, forced, problem_of, run

TARGET = DeviceTarget(INFO, FP16)
CASES = [
    (QuantizedDepthwise(image=(1, 9, 8, 64), activation="RELU6"), (0, 1, 2)),
    # Without their zero point these weights have 9 bits.
    (QuantizedDepthwise(image=(2, 7, 7, 32), dtype="uint8"), (0, 2)),
    (QuantizedDepthwise(image=(2, 9, 31, 48), stride=(2, 2), per_channel=True), (0,)),
    (QuantizedDepthwise(image=(1, 13, 15, 96), dilation=(2, 3), dtype="uint8"), (1,)),
    (
        QuantizedDepthwise(
            image=(1, 9, 18, 160), stride=(1, 2), kernel=(4, 4), padding="VALID", per_channel=True
        ),
        (0,),
    ),
    (QuantizedDepthwise(image=(1, 5, 15, 24), kernel=(3, 2)), (1,)),
]


@needs_emulator
@pytest.mark.parametrize(
    ("case", "number"),
    [pytest.param(case, n, id=f"{case.name}-{n}") for case, numbers in CASES for n in numbers],
)
def test_numbers(case: QuantizedDepthwise, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(
        replace(INFO, compute_units=1), checked=case in (CASES[0][0], CASES[2][0])
    )
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    with forced(number):
        outcome = run((case,), INFO, MODES[0])[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert outcome.kernels[-1].startswith("cuda_depthwise_mma")
    assert not problem_of(case, outcome, MODES[0])


@pytest.mark.parametrize("result", [(1, 1, 8, 32), (3, 7, 7, 1000), (64, 112, 112, 24)])
@pytest.mark.parametrize("terms", [1, 2])
def test_tiles_make_everything_once(result: Shape4, terms: int) -> None:
    problem = DepthwiseProblem(Window((3, 3), (1, 1)), result, terms)
    found = candidates(problem, TARGET)
    assert found
    for tile in found:
        channels = tile.column_blocks * tile.warps_n * 32
        assert result[3] <= channels < result[3] + 32 * tile.column_blocks
        turns = -(-tile.positions // (tile.workers * tile.warps_m))
        assert (turns - 1) * tile.workers * tile.warps_m < tile.positions
        assert tile.fits(TARGET)


def spec_of(image: Shape4, kernel: int = 3) -> DepthwiseSpec:
    """Return what is computed in an example of bytes."""
    graph = DepthwiseExample(image, kernel, quantized=True).graph()
    node = graph.nodes[-1]
    (spec,) = get(node.op).specs(node, Selected(assign(graph, FP16), TARGET))
    assert isinstance(spec, DepthwiseSpec)
    return spec


def reason(spec: DepthwiseSpec, target: DeviceTarget = TARGET) -> str:
    """Return why it is not computed, or an empty text."""
    found = DepthwiseMma().plan(spec, target)
    return found.reason if isinstance(found, Rejected) else ""


def test_which_it_computes() -> None:
    spec = spec_of((64, 56, 56, 64))
    assert not reason(spec)
    assert select(spec, TARGET).name == "cuda/depthwise_mma"
    assert reason(spec_of((64, 56, 56, 8))) == "too many products would be padding"
    assert reason(spec_of((64, 4, 4, 64))) == "too many products would be padding"
    assert (
        reason(spec_of((64, 56, 56, 60)))
        == "the number of input channels is not a multiple of eight"
    )
    assert reason(spec_of((64, 56, 56, 64), 5)) == "the weights do not fit into registers"
    assert reason(replace(spec, taps=None)) == "the weights or the input are not 8-bit"
    centred = replace(spec, src=replace(spec.src, dtype=DType.INT32))
    assert reason(centred) == "the weights or the input are not 8-bit"
    wide = replace(spec, taps=np.full((3, 3, 64), 255, np.int16))
    assert reason(wide) == "the weights are not sums of two 8-bit integers"
    twice = replace(spec, dst=replace(spec.dst, shape=(64, 56, 56, 128)))
    assert reason(twice) == "the depthwise convolution multiplies the number of channels"
    old = DeviceTarget(replace(INFO, compute_capability=(7, 5)), FP16)
    assert reason(spec, old) == "the device has no tensor cores"
