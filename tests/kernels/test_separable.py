"""cuda/separable, for a depthwise and a pointwise convolution: results, and when it is selected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases.base import Scale
from cases.separable import Separable
from comparing import mismatch
from conv_graphs import built
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.buffers import Bindings
from litegpu.codegen.storage import Shape4
from litegpu.engine import partition
from litegpu.engine.layout import assign
from litegpu.engine.program import build_program
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, EpilogueOp
from litegpu.kernels.cuda import separable
from litegpu.kernels.cuda.separable.tile import SeparableProblem, candidates
from litegpu.kernels.examples import ConvExample
from litegpu.numeric_policy import FP16, FP16_ALL, FP32
from litegpu.ops.common.window import Window
from op_runner import MODES, Mode, forced, kept_busy_by, run
from passes.graphs import RELU, GraphBuilder

FLOATS, HALVES = MODES[2], MODES[3]
CASES = [
    Separable(image=(2, 15, 18, 40), filters=70),
    Separable(image=(1, 33, 30, 17), filters=33, stride=(2, 2), activation="RELU"),
    Separable(image=(3, 14, 14, 96), filters=200, bias=""),
    Separable(image=(1, 30, 17, 64), filters=64, residual=True),
    Separable(image=(2, 20, 36, 33), filters=48, kernel=(5, 4), padding="VALID"),
    Separable(image=(1, 33, 35, 24), filters=140, dilation=(2, 3)),
    Separable(image=(1, 37, 16, 8), filters=8, stride=(2, 1), activation="TANH"),
    Separable(image=(1, 16, 16, 256), filters=130),
    Separable(image=(2, 13, 37, 40), filters=33, stride=(3, 2), dilation=(1, 2), padding="VALID"),
    Separable(image=(2, 14, 17, 72), filters=33, kernel=(5, 5), activation="NONE", added=True),
]


@pytest.fixture
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuda/separable run what is too small for it to pay."""
    for name in ("_FILLED", "_MIN_PIXELS", "_MIN_ELEMENTS"):
        monkeypatch.setattr(separable, name, 0)
    monkeypatch.setattr(separable, "_is_half", lambda *_: True)
    # Blocks that stay are in test_separable_stream.py.
    monkeypatch.setattr(separable, "streams", lambda *_: [])


@needs_emulator
@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize(
    ("case", "number", "mode"),
    [
        *((case, 0, HALVES) for case in CASES),
        # Slices of a dense float image are aligned only where channels come in fours.
        *((case, 0, FLOATS) for case in CASES if case.image[3] % 4 == 0),
        *((CASES[2], number, HALVES) for number in (1, 2, 3)),
    ],
)
def test_numbers(case: Separable, number: int, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(checked=case is CASES[0])
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    with kept_busy_by(128), forced(number):
        outcome = run((case,), INFO, mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert all(name.startswith("cuda_separable") for name in outcome.kernels), outcome.kernels
    assert not outcome.faults
    problem = mismatch(outcome.expected[0], outcome.got[0], case.limit(half=True))
    assert not problem


@needs_emulator
@pytest.mark.usefixtures("however_small")
@pytest.mark.parametrize("scale", [Scale(1e3, 1e-6), Scale(1e-3, 1e4), Scale(1.0, 1e-12)])
def test_weights_that_half_does_not_hold(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    case = Separable(image=(2, 9, 17, 40), filters=33, activation="NONE")
    with kept_busy_by(128):
        outcome = run((case,), INFO, HALVES, scale)[case.name]
    assert not isinstance(outcome, Exception)
    assert all(name.startswith("cuda_separable") for name in outcome.kernels), outcome.kernels
    assert not mismatch(outcome.expected[0], outcome.got[0], case.limit(half=True))


@needs_emulator
@pytest.mark.usefixtures("however_small")
def test_what_is_infinite_spares_other_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded in between is finite, as on the CPU."""
    # Nodes made by hand have their attributes.
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)
    graph = ConvExample((1, 9, 17, 40), 33, depthwise=True).graph()
    first, second = graph.nodes
    bounded = dataclasses.replace(first, epilogue=(EpilogueOp("RELU6"),))
    graph = partition.rewrite(
        dataclasses.replace(graph, nodes=(bounded, second)), DeviceTarget(INFO, FP16_ALL)
    )
    program = built(graph, FP16_ALL, INFO, DType.FLOAT16, 8)
    assert [launch.template for launch in program.launches] == ["cuda/separable"]
    image = np.random.default_rng(0).uniform(-1, 1, (1, 9, 17, 40)).astype(np.float16)
    results = []
    for value in (6e4, np.inf):
        image[0, 4, 8, 21] = value
        results.append(np.full((1, 9, 17, 33), np.nan, np.float32))
        given = [np.zeros(each.size, np.uint8) for each in program.program.inputs[1:]]
        reported = [np.zeros(each.size, np.uint8) for each in program.program.outputs[1:]]
        context = EmulatedDevice().compile(program.program).context()
        context.run(Bindings.of([image, *given], [results[-1], *reported]))
    large, infinite = results
    assert not mismatch(large, infinite, 2e-3)


def chosen(shape: Shape4, outputs: int, device: DeviceInfo, half: bool, kernel: int = 3) -> str:
    """Return the kernels for a depthwise and a pointwise convolution."""
    builder = GraphBuilder()
    source = builder.input(*shape)
    output = builder.conv(builder.depthwise(source, kernel=kernel), outputs, epilogue=[RELU])
    policy = FP16 if half else FP32
    graph = partition.rewrite(builder.graph(output), DeviceTarget(device, policy))
    layout = assign(graph, policy)
    launches = build_program(layout, device, graph.inputs, graph.outputs).launches
    return ", ".join(launch.template for launch in launches)


HOPPER, AMPERE = INFO, dataclasses.replace(INFO, compute_capability=(8, 0))


@pytest.mark.parametrize(
    ("shape", "outputs", "device", "half", "kernel", "expected"),
    [
        ((16, 64, 64, 64), 128, HOPPER, True, 3, "cuda/separable"),
        ((16, 64, 64, 64), 128, HOPPER, True, 5, "cuda/separable"),
        # More multiplications than may be written out, or more channels than fit the chip
        ((16, 64, 64, 64), 128, HOPPER, True, 7, "cuda/depthwise, cuda/conv_tile"),
        ((16, 64, 64, 320), 128, HOPPER, True, 3, "cuda/depthwise, cuda/conv_tile"),
        # Rounding to half is no option, or there are no groups of warps
        ((16, 64, 64, 64), 128, HOPPER, False, 3, "cuda/depthwise, cuda/conv_tile"),
        ((16, 64, 64, 64), 128, AMPERE, True, 3, "cuda/depthwise, cuda/conv_tile"),
        # Few pixels: launches decide
        ((1, 64, 64, 64), 128, HOPPER, True, 3, "cuda/conv_mma"),
        # Most of every patch would be empty
        ((300000, 3, 3, 16), 16, HOPPER, True, 3, "depthwise_conv_2d, cuda/conv_tile"),
    ],
)
def test_it_is_chosen_where_it_pays(
    shape: Shape4,
    outputs: int,
    device: DeviceInfo,
    half: bool,
    kernel: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nodes made by hand have their attributes.
    monkeypatch.setattr(partition, "normalize", lambda graph: graph)
    assert chosen(shape, outputs, device, half, kernel) == expected


def test_a_block_may_have_a_multiprocessor_for_itself_but_no_more_threads_than_registers() -> None:
    image, target = (1, 14, 14, 576), DeviceTarget(INFO, FP16)
    problem = SeparableProblem(image, "F32", image, 64, Window((3, 3), (1, 1), pads=(1, 1)))
    tiles = [tile for tile in candidates(problem, target.model) if tile.pixels == 128]
    assert {tile.min_blocks(target) for tile in tiles} == {1}
    assert all(tile.fits(target) for tile in tiles)
    assert not any(dataclasses.replace(tile, warps=32).fits(target) for tile in tiles)
