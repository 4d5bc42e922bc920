"""cuda/conv_narrow with a fused max pool: results, and when it is selected."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest

import op_runner
from cases.base import SMALL, Case, Scale
from cases.pooled_conv import CASES
from comparing import mismatch
from cuda_emulator import INFO, ORDERS, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.buffers import Bindings
from litegpu.codegen import FLOAT
from litegpu.engine.layout import assign
from litegpu.engine.partition import compile_partition
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.kernels.cuda import conv_narrow
from litegpu.kernels.cuda.conv_narrow import pooled
from litegpu.kernels.examples import ConvExample
from litegpu.numeric_policy import FP16_ALL
from litegpu.ops.base import COPY
from litegpu.ops.common.functions import cast_name
from op_runner import MODES, Mode, Outcome, forced, run

FLOATS, HALVES = MODES[2], MODES[3]
ALONE = dataclasses.replace(INFO, compute_units=1)
KERNEL = "cuda_conv_narrow"


def unstaged(*args: Any, stage_boundary: bool, **rest: Any) -> Any:
    """Compile without padded copies of the inputs: these would not be dense."""
    return compile_partition(*args, **rest)


def check(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    device: EmulatedDevice,
    scale: Scale = op_runner.UNSCALED,
    ratio: float = 1e9,
    mode: Mode = HALVES,
) -> Outcome:
    """Run a case."""
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    monkeypatch.setattr(pooled, "_MAX_CLOCK_RATIO", ratio)
    monkeypatch.setattr(conv_narrow, "_MAX_CLOCK_RATIO", 1e9)
    monkeypatch.setattr(op_runner, "compile_partition", unstaged)
    outcome = run((dataclasses.replace(case, items=SMALL),), INFO, mode, scale)
    (found,) = outcome.values()
    if isinstance(found, Exception):
        raise found
    assert not found.faults
    assert not mismatch(found.expected[0], found.got[0], 2e-3)
    return found


@needs_emulator
@pytest.mark.parametrize(
    ("case", "number", "mode"),
    [
        *((case, 0, HALVES) for case in CASES),
        *((case, 1 + turn % 5, (HALVES, FLOATS)[turn % 2]) for turn, case in enumerate(CASES)),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_numbers_are_those_of_two_kernels(
    case: Case, number: int, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forced(number):
        together = check(case, monkeypatch, EmulatedDevice(), mode=mode)
    assert [name.rpartition("_")[0] for name in together.kernels[:-1]] == [KERNEL]
    apart = check(case, monkeypatch, EmulatedDevice(), ratio=0.0, mode=mode)
    assert len(apart.kernels) == 3
    assert np.array_equal(together.got[0], apart.got[0])


@needs_emulator
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.name)
def test_it_waits_and_keeps_to_its_memory(
    case: Case, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case, monkeypatch, EmulatedDevice(checked=True, order=order))


@pytest.mark.every_other
@needs_emulator
@pytest.mark.parametrize("values", [1e-8, 1e-3, 1.0, 1e4, 1e6])
@pytest.mark.parametrize("weights", [1e-6, 1.0, 1e6])
def test_magnitudes(values: float, weights: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What half cannot hold is noted before anything is rounded, and stored as float32 then."""
    check(CASES[0], monkeypatch, EmulatedDevice(), Scale(values, weights))


# What is not a number


def example() -> Graph:
    """Return a convolution and a pool as one node, and one after it: what lies between is half."""
    graph = ConvExample((1, 13, 21, 3), 8, kernel=5, pool=3).graph()
    (node,) = graph.nodes
    (output,) = node.outputs
    last = dataclasses.replace(graph.values[output], id=max(graph.values) + 1)
    negated = Node(1, COPY, 1, (output,), (last.id,), epilogue=(EpilogueOp("NEG"),))
    return Graph({**graph.values, last.id: last}, (node, negated), graph.inputs, (last.id,))


def program() -> tuple[Graph, BuiltProgram]:
    """Return the program for the example on one multiprocessor."""
    graph = example()
    with mock.patch.object(pooled, "_MAX_CLOCK_RATIO", 1e9):
        built = build_program(assign(graph, FP16_ALL), ALONE, graph.inputs, graph.outputs)
    assert built.launches[0].template == "cuda/conv_narrow"
    return graph, built


def computed(
    built: BuiltProgram,
    image: Any,
    shape: tuple[int, ...],
    checked: bool = False,
    dtype: DType = DType.FLOAT32,
) -> Any:
    """Return what the program gives; beside values it has words that tell of their range."""
    unwritten = np.nan if dtype is DType.FLOAT32 else np.iinfo(dtype.value).min
    result = np.full(shape, unwritten, dtype.value)
    given = [np.zeros(each.size, np.uint8) for each in built.program.inputs[1:]]
    reported = [np.zeros(each.size, np.uint8) for each in built.program.outputs[1:]]
    context = EmulatedDevice(ALONE, checked=checked).compile(built.program).context()
    context.run(Bindings.of([image, *given], [result, *reported]))
    return result


@needs_emulator
def test_not_a_number_is_passed_over_and_infinity_is_not() -> None:
    graph, built = program()
    image = np.random.default_rng(0).uniform(-1, 1, (1, 13, 21, 3)).astype(np.float32)
    shape = graph.values[graph.outputs[0]].shape
    before = computed(built, image, shape)
    image[0, 0, 0, 0] = np.nan  # the windows of the result's first 3 x 3 pixels
    after = computed(built, image, shape)
    # Of NaN alone, the maximum is that of nothing; what other windows hold stays what it is.
    assert np.isposinf(after[0, 0, 0]).all()
    assert np.array_equal(after[0, 1:, 1:], before[0, 1:, 1:])
    image[0, 0, 0, 0] = np.inf
    infinite = computed(built, image, shape)
    assert np.isinf(infinite[0, 0, 0]).all()
    assert np.array_equal(infinite[0, 1:, 1:], before[0, 1:, 1:])


@needs_emulator
def test_maxima_that_are_stored_as_integers_are_those_of_floats() -> None:
    """Warps keep floats, whatever the size of what is stored."""
    image = np.random.default_rng(0).uniform(-3, 3, (1, 13, 21, 3)).astype(np.float32)
    found = {}
    for dtype in (DType.FLOAT32, DType.INT8, DType.INT16):
        graph = ConvExample((1, 13, 21, 3), 24, kernel=5, pool=3).graph()
        (node,), (output,) = graph.nodes, graph.outputs
        cast = EpilogueOp(cast_name(FLOAT, dtype))
        value = dataclasses.replace(graph.values[output], dtype=dtype)
        ended = Graph(
            {**graph.values, output: value},
            (dataclasses.replace(node, epilogue=(cast,)),),
            graph.inputs,
            graph.outputs,
        )
        with mock.patch.object(pooled, "_MAX_CLOCK_RATIO", 1e9):
            built = build_program(assign(ended, FP16_ALL), ALONE, ended.inputs, ended.outputs)
        assert built.launches[0].template == "cuda/conv_narrow"
        found[dtype] = computed(built, image, value.shape, True, dtype)
    floats = np.trunc(found[DType.FLOAT32])
    assert 10 < np.abs(floats).max() < 128
    assert np.array_equal(found[DType.INT8], floats)
    assert np.array_equal(found[DType.INT16], floats)


@needs_emulator
@pytest.mark.parametrize("number", [0, 1])
def test_each_wait_of_a_warp_is_needed(number: int) -> None:
    """Maxima are looked for when all columns are kept; new ones are kept when all have looked."""
    graph, built = program()
    image = np.zeros((1, 13, 21, 3), np.float32)
    shape = graph.values[graph.outputs[0]].shape
    computed(built, image, shape, checked=True)
    first, *others = built.program.kernels
    parts = first.body.split("__syncwarp();")
    assert len(parts) == 3
    joined = "".join(
        part + "__syncwarp();" * (place in (0, 1) and place != number)
        for place, part in enumerate(parts)
    )
    mutant = dataclasses.replace(first, body=joined)
    changed = dataclasses.replace(built.program, kernels=(mutant, *others))
    with pytest.raises(AssertionError, match="no barrier since another thread"):
        computed(dataclasses.replace(built, program=changed), image, shape, checked=True)
