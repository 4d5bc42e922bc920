"""cuda/conv_narrow, for unpadded images with few channels: results, and when it is selected."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest

import op_runner
from cases.base import SMALL, Case, Sheet
from cases.conv_2d import Conv
from cases.quantized import POWER
from cases.quantized_conv import QuantizedConv
from comparing import mismatch
from conv_graphs import built, convolution, product
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.buffers import Bindings
from litegpu.codegen import HALF_MAX
from litegpu.engine.partition import compile_partition
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.kernels.cuda import conv_narrow
from litegpu.kernels.cuda.conv_narrow.patch import NarrowProblem
from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy
from litegpu.ops.base import COPY
from litegpu.ops.common.window import Pair, Window
from op_runner import MODES, Mode, forced, run

FLOATS, HALVES = MODES[2], MODES[3]
CASES = [
    Conv(image=(2, 17, 36, 3), filters=20, kernel=(3, 3), stride=(2, 2)),
    Conv(image=(1, 19, 40, 3), filters=40, kernel=(7, 7), stride=(2, 2)),
    Conv(image=(3, 9, 19, 3), filters=12, kernel=(3, 3), activation="RELU6"),
    Conv(image=(1, 12, 33, 1), filters=70, kernel=(4, 6), bias=""),
    Conv(image=(2, 11, 35, 2), filters=9, kernel=(5, 5), stride=(1, 3), padding="VALID"),
    Conv(image=(1, 14, 20, 1), filters=16, kernel=(2, 9), stride=(3, 1), dilation=(2, 1)),
    Conv(image=(1, 40, 44, 3), filters=33, kernel=(9, 11), stride=(1, 3)),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined(Case):
    """Two convolutions of an image, one with a value added, are parts of one value."""

    image: tuple[int, int, int, int] = (2, 13, 20, 3)
    kernel: Pair = (3, 3)

    def write(self, sheet: Sheet) -> None:
        """Also a pool, so that what is joined lies inside of the partition."""
        image, window = sheet.input(self.image), {"padding": "SAME", "stride_h": 2, "stride_w": 2}
        one = {**window, "dilation_h_factor": 1, "dilation_w_factor": 1}
        result = []
        for filters in (8, 16, 9):
            operands = sheet.operands(
                (filters, *self.kernel, self.image[3]), "constant", "constant"
            )
            result.append(sheet.fused("CONV_2D", [image, *operands], "RELU", one))
        total = sheet.fused("ADD", [result[1], sheet.input((2, 7, 10, 16))], "NONE")
        whole = sheet.fused("CONCATENATION", [result[0], total, result[2]], "NONE", {"axis": 3})
        pool = {**window, "filter_height": 2, "filter_width": 2}
        sheet.output(sheet.fused("MAX_POOL_2D", [whole], "NONE", pool))


BYTES = [
    QuantizedConv(channels=3, filters=20, size=(17, 36), stride=(2, 2), batch=2),
    QuantizedConv(channels=3, filters=64, size=(19, 40), kernel=(7, 7), stride=(2, 2)),
    QuantizedConv(channels=3, filters=32, size=(19, 39), stride=(2, 2), per_channel=True),
    QuantizedConv(channels=3, filters=12, size=(9, 19), kind=POWER, activation="RELU6"),
    QuantizedConv(channels=4, filters=70, size=(12, 33), kernel=(4, 6), dtype="uint8"),
    QuantizedConv(channels=3, filters=40, size=(23, 44), kernel=(7, 7), dtype="uint8"),
    QuantizedConv(channels=2, filters=16, size=(13, 20), kernel=(5, 5), dtype="uint8", kind=POWER),
    QuantizedConv(channels=1, filters=9, size=(11, 35), kernel=(5, 5), stride=(1, 3)),
    QuantizedConv(channels=1, filters=33, size=(14, 24), kernel=(2, 9), stride=(3, 1)),
    QuantizedConv(channels=3, filters=16, size=(9, 37), padding="VALID", dtype="uint8"),
]
JOINED = [Joined(), Joined(kernel=(2, 4))]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})


def unstaged(*args: Any, stage_boundary: bool, **rest: Any) -> Any:
    """Compile without padded copies of the inputs: these would not be dense."""
    return compile_partition(*args, **rest)


def check(case: Case, number: int, mode: Mode, worst: float, dense: bool = True) -> None:
    """Run a case with its candidate of that number, in float or half storage."""
    ratio = mock.patch.object(conv_narrow, "_MAX_CLOCK_RATIO", 1e9)
    replaced = mock.patch.object(op_runner, "compile_partition", unstaged)
    compiled = replaced if dense else contextlib.nullcontext()
    with ratio, compiled, forced(number):
        outcome = run((dataclasses.replace(case, items=SMALL),), INFO, mode)
    (found,) = outcome.values()
    if isinstance(found, Exception):
        raise found
    kernels = [name for name in found.kernels if "conv" in name]
    assert kernels
    assert all(name.startswith("cuda_conv_narrow") for name in kernels)
    assert not found.faults
    problem = mismatch(found.expected[0], found.got[0], worst)
    assert not problem


@pytest.mark.every_other
@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("case", "number"),
    [(case, number) for turn, case in enumerate(CASES) for number in range(turn % 2, 6, 2)],
    ids=lambda given: given.name if isinstance(given, Case) else "",
)
def test_floats_lose_nothing(case: Conv, number: int) -> None:
    check(case, number, FLOATS, 1e-6)


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", [*CASES, *JOINED], ids=lambda case: case.name)
def test_where_all_is_half_values_are_rounded(case: Case) -> None:
    check(case, 0, HALVES, 1e-3)


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("case", "number"),
    [
        *((case, 0) for case in BYTES),
        *((case, number) for case in BYTES[:2] for number in (1, 3, 5)),
    ],
    ids=lambda given: given.name if isinstance(given, Case) else "",
)
def test_bytes_are_equal_in_every_bit(case: QuantizedConv, number: int) -> None:
    check(case, number, FLOATS, case.tolerance)


@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", [BYTES[0], BYTES[6]], ids=lambda case: case.name)
def test_pixels_of_bytes_may_be_padded(case: QuantizedConv) -> None:
    check(case, 0, FLOATS, case.tolerance, dense=False)


@needs_emulator
@pytest.mark.parametrize("case", [BYTES[1], BYTES[4], BYTES[6]], ids=lambda case: case.name)
def test_bytes_are_read_within_their_memory(
    case: QuantizedConv, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = EmulatedDevice(checked=True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    check(case, 0, FLOATS, case.tolerance)


@needs_emulator
@pytest.mark.parametrize("width", [36, 35])
@pytest.mark.parametrize("mode", [FLOATS, HALVES], ids=lambda mode: mode.name)
def test_it_waits_and_keeps_to_its_memory(
    mode: Mode, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 108 values are read four at a time, those of 105 are not."""
    device = EmulatedDevice(checked=True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    case = Conv(image=(2, 17, width, 3), filters=20, kernel=(3, 3), stride=(2, 2))
    check(case, 0, mode, 1e-3)


# Graphs without a model


def computed(graph: Graph, image: Any, alignment: int = 1) -> Any:
    """Return what the kernel gives for values as they are, or padded."""
    single = dataclasses.replace(INFO, compute_units=1)
    with mock.patch.object(conv_narrow, "_MAX_CLOCK_RATIO", 1e9):
        program = built(graph, FP16, single, DType(image.dtype.name), alignment)
    image = np.pad(image, [(0, 0)] * 3 + [(0, -image.shape[3] % alignment)])
    (launch,) = program.launches
    assert launch.template == "cuda/conv_narrow"
    result = np.empty(graph.values[graph.outputs[0]].shape, np.float32)
    device = EmulatedDevice(checked=image.dtype == np.float16)
    device.compile(program.program).context().run(Bindings.of([image], [result]))
    return result


@pytest.mark.every_other
@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("image", "window"),
    [
        ((2, 11, 36, 3), Window((3, 3), (2, 2), pads=(1, 1))),
        ((2, 11, 35, 3), Window((4, 5), (1, 1), pads=(0, 2))),
        ((1, 9, 20, 2), Window((3, 5), (1, 1), pads=(2, 3))),
        ((1, 14, 24, 1), Window((5, 7), (1, 1), (2, 1), pads=(4, 1))),
        ((1, 10, 22, 4), Window((3, 3), (1, 1), pads=(1, 1))),
    ],
)
@pytest.mark.parametrize("alignment", [1, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_storage(image: tuple[int, ...], window: Window, dtype: str, alignment: int) -> None:
    graph = convolution(image, 12, window)
    values = np.random.default_rng(1).uniform(-1, 1, image).astype(dtype)
    assert not mismatch(product(graph, values), computed(graph, values, alignment), 1e-6)


@pytest.mark.every_other
@needs_emulator
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kernel", [(6, 3), (2, 8), (5, 5)])
def test_what_is_infinite_reaches_only_windows_that_have_it(kernel: Pair, channels: int) -> None:
    graph = convolution((1, 8, 40, channels), 12, Window(kernel, (1, 1)))
    values = np.random.default_rng(2).uniform(-1, 1, (1, 8, 40, channels)).astype(np.float32)
    values[0, 4, 17] = np.inf
    expected, got = product(graph, values), computed(graph, values)
    assert np.array_equal(np.isfinite(expected), np.isfinite(got))


@needs_emulator
@pytest.mark.usefixtures("emulated")
def test_values_beyond_half_keep_their_magnitude() -> None:
    """The rest takes over what the first half cannot hold."""
    graph = convolution((1, 8, 32, 3), 12, Window((3, 3), (1, 1)))
    values = np.full((1, 8, 32, 3), 1e5, np.float32)
    assert not mismatch(product(graph, values), computed(graph, values), 1e-3)


@pytest.mark.every_other
@needs_emulator
@pytest.mark.parametrize("number", [0, 1, 3, 5])
@pytest.mark.parametrize(
    ("image", "filters"), [((1, 8, 41, 3), 12), ((1, 10, 34, 3), 32), ((1, 8, 40, 3), 64)]
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_beside_an_infinity_halves_stay_finite(
    image: tuple[int, ...], filters: int, number: int
) -> None:
    """Lanes store one block of channels or two, of tiles that fill the result or do not."""
    alone = convolution(image, filters, Window((3, 3), (1, 1)))
    (output,) = alone.outputs
    last = dataclasses.replace(alone.values[output], id=max(alone.values) + 1)
    # What lies inside of the graph is half.
    after = Node(1, COPY, 1, (output,), (last.id,), epilogue=(EpilogueOp("ABS"),))
    graph = Graph({**alone.values, last.id: last}, (*alone.nodes, after), alone.inputs, (last.id,))
    single = dataclasses.replace(INFO, compute_units=1)
    with mock.patch.object(conv_narrow, "_MAX_CLOCK_RATIO", 1e9), forced(number):
        program = built(graph, FP16_ALL, single).program
    values = np.random.default_rng(2).uniform(-1e5, 1e5, image).astype(np.float32)
    values[0, 4, 17], values[0, 1, 30] = np.inf, np.nan
    expected = np.abs(product(alone, values))
    result = np.empty(expected.shape, np.float32)
    given = [np.zeros(each.size, np.uint8) for each in program.inputs[1:]]
    noted = [np.zeros(each.size, np.uint8) for each in program.outputs[1:]]
    bindings = Bindings.of([values, *given], [result, *noted])
    EmulatedDevice(single, checked=True).compile(program).context().run(bindings)
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(result))
    assert np.abs(expected[finite]).max() > HALF_MAX
    assert not mismatch(np.minimum(expected[finite], HALF_MAX), result[finite], 2e-3)


# When it is chosen


@pytest.mark.parametrize(
    ("image", "filters", "kernel", "policy", "template"),
    [
        ((64, 224, 224, 3), 32, (3, 3), FP16, "cuda/conv_narrow"),
        ((64, 224, 224, 3), 64, (7, 7), FP16_ALL, "cuda/conv_narrow"),
        ((8, 225, 223, 1), 24, (5, 5), FP16, "cuda/conv_narrow"),
        ((1, 224, 224, 3), 32, (3, 3), FP16, "cuda/conv_mma"),
        ((1, 768, 768, 4), 8, (3, 3), FP16, "cuda/conv_narrow"),
        ((64, 224, 224, 3), 32, (3, 3), FP32, "cuda/conv_tile"),
        ((64, 224, 224, 3), 32, (17, 1), FP16, "cuda/conv_tile"),
        ((64, 224, 224, 4), 32, (3, 3), FP16, "cuda/conv_narrow"),
        ((64, 224, 224, 5), 32, (3, 3), FP16, "cuda/conv_tile"),
    ],
)
def test_it_is_chosen_for_many_pixels_of_few_channels(
    image: tuple[int, ...], filters: int, kernel: Pair, policy: NumericPolicy, template: str
) -> None:
    graph = convolution(image, filters, Window(kernel, (2, 2), pads=(1, 1)))
    (launch,) = built(graph, policy, INFO).launches
    assert launch.template == template


@pytest.mark.parametrize(
    "change",
    [{"kernel": (3, 1)}, {"dilation": (1, 2)}, {"zoom": (2, 2)}, {"mirror": 0}],
    ids=lambda change: next(iter(change)),
)
def test_windows_must_be_runs_of_the_image_itself(change: dict[str, Any]) -> None:
    window = dataclasses.replace(Window((3, 3), (2, 2)), **change)
    graph = convolution((64, 112, 112, 3), 32, window)
    (launch,) = built(graph, FP16, INFO).launches
    assert launch.template != "cuda/conv_narrow"


def test_it_needs_tensor_cores() -> None:
    device = dataclasses.replace(INFO, compute_capability=(7, 5))
    graph = convolution((64, 224, 224, 3), 32, Window((3, 3), (2, 2)))
    (launch,) = built(graph, FP16, device).launches
    assert launch.template == "conv_2d_tiles"


# The k axis


@pytest.mark.parametrize(
    ("kernel", "channels", "steps"),
    [
        ((3, 3), 3, 2),
        ((7, 7), 3, 10),
        ((5, 5), 3, 5),
        ((3, 3), 1, 1),
        ((1, 9), 3, 2),
        ((9, 9), 3, 17),
    ],
)
def test_each_pair_of_a_window_is_in_one_place(kernel: Pair, channels: int, steps: int) -> None:
    problem = NarrowProblem(
        (32, 32), (32, 32), 1, channels, 8, Window(kernel, (1, 1)), True, False, "float32", True
    )
    positions = [position for quad in problem.quads for position in quad]
    pairs = -(-kernel[1] * channels // 2)
    assert set(positions) == {(y, x) for y in range(kernel[0]) for x in range(pairs)}
    assert problem.steps == steps
